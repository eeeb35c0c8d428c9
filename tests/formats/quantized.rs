//! Quantized tensors of safetensors files, as their names, types, shapes and configuration describe
//! them: how they are read, or why they are refused.

use jerboa::Error;
use jerboa::format::{
    Checkpoint, CheckpointFile, Dtype, Encoding, Float, PartBytes, PartRole, TensorInfo,
    check_parts, detect, transcode,
};
use jerboa::reference::dequant::dequant_in_order;
use serde_json::{Value, json};

/// Name, type and shape.
type Tensor<'a> = (&'a str, Dtype, &'a [usize]);

/// A checkpoint of tensors with these types and shapes.
fn checkpoint(tensors: &[Tensor<'_>]) -> Checkpoint {
    let mut out = Checkpoint::default();
    let mut at = 0;
    for (name, dtype, shape) in tensors {
        let end = at + (shape.iter().product::<usize>() as u64 * dtype.bits()).div_ceil(8);
        let info = TensorInfo {
            name: (*name).into(),
            dtype: *dtype,
            shape: shape.to_vec(),
            file: 0,
            range: at..end,
        };
        out.tensors.insert(info.name.clone(), info);
        at = end;
    }
    out.files.push(CheckpointFile {
        name: "model.safetensors".into(),
        size: at,
    });
    out
}

/// Inconsistent quantized weights, each with the error's reason.
#[test]
fn quantized_tensors_that_do_not_fit() {
    use Dtype::{BF16, F8E4M3, F16, F32, I8, I32, I64, U8, U32};
    let gptq = |format: &str, bits: u64| json!({"quantization_config": {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": format}});
    let compressed = |bits: u64| {
        json!({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"],
        "weights": {"num_bits": bits, "group_size": 32}}}}})
    };
    let mlx = json!({"quantization": {"bits": 4, "group_size": 64}});
    let words: Tensor<'_> = ("m.qweight", I32, &[8, 32]);
    let cases: Vec<(Value, Vec<Tensor<'_>>, &str)> = vec![
        (
            gptq("gptq", 4),
            vec![words],
            "Its 'scales' tensor is missing;",
        ),
        (
            gptq("gptq", 4),
            vec![words, ("m.scales", I32, &[2, 32])],
            "Its scales must be F32, F16 or BF16;",
        ),
        (
            gptq("gptq", 4),
            vec![("m.qweight", F16, &[8, 32]), ("m.scales", F16, &[2, 32])],
            "Its codes must be I32 or U32;",
        ),
        (
            gptq("gptq", 4),
            vec![("m.qweight", I32, &[256]), ("m.scales", F16, &[2, 32])],
            "Its codes or scales are not 2-D; use GPTQ or AWQ",
        ),
        (
            gptq("gptq", 4),
            vec![words, ("m.scales", F16, &[2, 40])],
            "Its shapes match neither GPTQ nor AWQ gemm;",
        ),
        (
            gptq("gptq", 5),
            vec![words, ("m.scales", F16, &[2, 32])],
            "GPTQ is supported with 2, 3, 4 and 8 bits;",
        ),
        (
            gptq("marlin", 4),
            vec![words, ("m.scales", F16, &[2, 32])],
            "Its 'checkpoint_format' is marlin;",
        ),
        (
            gptq("gptq", 4),
            vec![words, ("m.scales", F16, &[3, 32])],
            "Its group size or bit width is not supported;",
        ),
        (
            gptq("gptq", 4),
            vec![
                words,
                ("m.scales", F16, &[2, 32]),
                ("m.qzeros", I32, &[1, 4]),
            ],
            "its Zeros part has 16 bytes",
        ),
        (
            compressed(4),
            vec![("m.weight_packed", I32, &[32, 8])],
            "Its 'weight_scale' tensor is missing;",
        ),
        (
            compressed(9),
            vec![
                ("m.weight_packed", I32, &[32, 8]),
                ("m.weight_scale", BF16, &[32, 2]),
            ],
            "Its 'num_bits' must be 2 to 8;",
        ),
        (
            compressed(4),
            vec![
                ("m.weight_packed", I32, &[32, 8]),
                ("m.weight_scale", BF16, &[31, 2]),
            ],
            "The types or shapes of 'weight_packed' and 'weight_scale' do not match;",
        ),
        (
            mlx.clone(),
            vec![("m.weight", U32, &[32, 8]), ("m.scales", F16, &[32, 1])],
            "Its 'biases' tensor is missing or differs from 'scales' in type or shape;",
        ),
        (
            json!({"quantization": {"bits": 7, "group_size": 64}}),
            vec![
                ("m.weight", U32, &[32, 9]),
                ("m.scales", F16, &[32, 1]),
                ("m.biases", F16, &[32, 1]),
            ],
            "match no bit width of 2, 3, 4, 5, 6 or 8",
        ),
        (
            mlx.clone(),
            vec![("m.weight", U32, &[32, 3]), ("m.scales", U8, &[32, 1])],
            "the modes mxfp4, mxfp8 and nvfp4",
        ),
        (
            mlx,
            vec![
                ("m.weight", U32, &[32, 8]),
                ("m.scales", F16, &[31, 1]),
                ("m.biases", F16, &[31, 1]),
            ],
            "its Scales part has 62 bytes",
        ),
        (
            json!({}),
            vec![("m.weight", F8E4M3, &[32, 32])],
            "It has neither 'weight_scale' nor 'weight_scale_inv';",
        ),
        (
            json!({}),
            vec![
                ("m.weight", F8E4M3, &[32, 32]),
                ("m.weight_scale", F32, &[7]),
            ],
            "matches neither blocks nor rows",
        ),
        (
            json!({}),
            vec![("m.weight", I8, &[32, 32]), ("m.SCB", F32, &[31])],
            "I8 needs 'SCB' or a symmetric 'weight_scale'",
        ),
        (
            json!({}),
            vec![("m.weight", U8, &[512, 1])],
            "U8 is supported for bitsandbytes nf4 or fp4",
        ),
        (
            json!({}),
            vec![
                ("m.weight", U8, &[512, 1]),
                ("m.weight.quant_state.bitsandbytes__nf4", U8, &[3]),
            ],
            "Its 'quant_state' is missing or not valid JSON;",
        ),
        (
            json!({}),
            vec![("m.weight", I64, &[4, 4])],
            "Use a checkpoint in F32, F16, BF16 or a supported quantization.",
        ),
    ];
    for (config, tensors, expected) in cases {
        let weights = detect(&config, &checkpoint(&tensors), &jerboa::SortedMap::new());
        let found = weights
            .get("m.weight", "a model")
            .and_then(check_parts)
            .expect_err(expected);
        assert!(
            matches!(found.code(), "unsupported_encoding" | "malformed"),
            "{expected}: {}",
            found.code()
        );
        assert!(found.to_string().contains(expected), "{expected}: {found}");
    }
}

/// GPTQ codes and the packing that a quantization block describes: whether zero points are stored
/// minus one, or why it is refused.
#[test]
fn packings_of_integer_codes_are_read_or_refused_by_name() {
    use Dtype::{F16, I32};
    let tensors: &[Tensor<'_>] = &[
        ("m.qweight", I32, &[8, 32]),
        ("m.qzeros", I32, &[2, 4]),
        ("m.scales", F16, &[2, 32]),
    ];
    let read = |block: Value| {
        let config = json!({ "quantization_config": block });
        let weights = detect(&config, &checkpoint(tensors), &jerboa::SortedMap::new());
        match weights.get("m.weight", "a model")?.encoding {
            Encoding::Gptq { minus_one, .. } => Ok::<_, Error>(minus_one),
            other => panic!("{}", other.name()),
        }
    };
    let auto_round = |field: &str, packing: &str| {
        let mut block = json!({ "quant_method": "auto-round", "bits": 4, "group_size": 32 });
        block[field] = packing.into();
        block
    };
    for (field, packing, minus_one) in [
        ("packing_format", "auto_round:auto_gptq", true),
        ("packing_format", "auto_round:gptqmodel", false),
        ("packing_format", "auto_round", false),
        ("backend", "auto_round:gptq:exllamav2", true),
        ("backend", "auto_round:tritonv2", false),
        ("backend", "auto_round:exllamav2", false),
        ("backend", "auto", true),
        ("iters", "200", true),
    ] {
        let found = read(auto_round(field, packing)).expect(packing);
        assert_eq!(found, minus_one, "{field} {packing}");
    }
    let mut intel = auto_round("backend", "auto_round:tritonv2");
    intel["quant_method"] = "intel/auto-round".into();
    assert!(!read(intel).expect("the older method's name"));
    for (block, expected) in [
        (
            auto_round("packing_format", "auto_round:llm_compressor"),
            "Its 'packing_format' is auto_round:llm_compressor;",
        ),
        (
            auto_round("backend", "auto_round:qbits"),
            "Its 'backend' is auto_round:qbits;",
        ),
        (
            auto_round("packing_format", "auto_round:auto_awq"),
            "Its shapes match neither GPTQ nor AWQ gemm;",
        ),
        (
            json!({ "quant_method": "squeezellm" }),
            "Its 'quant_method' is squeezellm;",
        ),
    ] {
        let error = read(block).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let awq: &[Tensor<'_>] = &[
        ("m.qweight", I32, &[64, 4]),
        ("m.qzeros", I32, &[2, 4]),
        ("m.scales", F16, &[2, 32]),
    ];
    let config =
        json!({ "quantization_config": auto_round("packing_format", "auto_round:auto_awq") });
    let weights = detect(&config, &checkpoint(awq), &jerboa::SortedMap::new());
    let weight = weights.get("m.weight", "a model").expect("AWQ");
    assert_eq!(weight.encoding.name(), "awq 4 bit group 32");
}

/// As compressed-tensors: a name wins over a regular expression, which wins over the class.
#[test]
fn targets_of_compressed_tensors_choose_the_group() {
    use Dtype::{F32, I32};
    // Channel scales: only the configuration has the bits.
    let tensors: &[Tensor<'_>] = &[
        ("model.layers.0.mlp.down_proj.weight_packed", I32, &[16, 8]),
        ("model.layers.0.mlp.down_proj.weight_scale", F32, &[16, 1]),
    ];
    let columns = |groups: Value| {
        let config = json!({ "quantization_config": { "quant_method": "compressed-tensors", "config_groups": groups } });
        let weights = detect(&config, &checkpoint(tensors), &jerboa::SortedMap::new());
        let weight = weights.get("model.layers.0.mlp.down_proj.weight", "a model")?;
        Ok::<_, Error>(weight.shape[1])
    };
    let group =
        |bits: u64, target: &str| json!({ "weights": { "num_bits": bits }, "targets": [target] });
    let four = |other: Value| json!({ "a": group(4, "Linear"), "b": other });
    for (target, expected) in [
        ("re:.*down_proj", 32),
        ("re:.*mlp.*", 32),
        (r"re:model\.layers\.[0-9]+\.mlp\.(up|down)_proj$", 32),
        ("model.layers.0.mlp.down_proj", 32),
        ("down_proj", 32),
        ("proj", 64),
        ("re:down_proj", 64),
        ("re:.*self_attn.*", 64),
        ("model.layers.1.mlp.down_proj", 64),
    ] {
        assert_eq!(
            columns(four(group(8, target))).expect(target),
            expected,
            "{target}"
        );
    }
    let named =
        json!({ "a": group(4, "re:.*mlp.*"), "b": group(8, "model.layers.0.mlp.down_proj") });
    assert_eq!(columns(named).expect("a name"), 32);
    assert_eq!(
        columns(json!({ "a": group(8, "other") })).expect("one group"),
        32
    );
    for (groups, expected) in [
        (
            json!({ "a": group(4, "x"), "b": group(8, "y") }),
            "No target of 'config_groups' names this module",
        ),
        (
            four(group(8, r"re:(?<=x+)y")),
            "The target 're:(?<=x+)y' of 'config_groups' is not supported",
        ),
    ] {
        let error = columns(groups).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The shape of the scales tells blocks from rows, also if there are as many of them as rows.
#[test]
fn fp8_scales_of_blocks_and_rows_differ_by_shape() {
    use Dtype::{F8E4M3, F32, I8};
    let config = |block: Value| json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": block } });
    let read = |config: &Value, dtype: Dtype, name: &str, shape: &[usize], scales: &[usize]| {
        let tensors: &[Tensor<'_>] = &[("m.weight", dtype, shape), (name, F32, scales)];
        let weights = detect(config, &checkpoint(tensors), &jerboa::SortedMap::new());
        weights.get("m.weight", "a model").map(|w| w.encoding)
    };
    let small = config(json!([8, 8]));
    let usual = config(json!([128, 128]));
    for (config, shape, scales, block) in [
        // 64 scales of 64 rows, and the two matrices in which this happens to published models.
        (&small, [64, 64], &[8, 8][..], (8, 8)),
        (&usual, [7168, 16384], &[56, 128], (128, 128)),
        (&usual, [2048, 16384], &[16, 128], (128, 128)),
        (&Value::Null, [2048, 16384], &[16, 128], (128, 128)),
        (&small, [64, 64], &[64, 1], (1, 64)),
        (&small, [64, 64], &[64], (1, 64)),
        (&small, [64, 64], &[1, 64], (1, 64)),
        (&small, [64, 64], &[], (64, 64)),
        (&small, [64, 64], &[1], (64, 64)),
        (&small, [60, 20], &[8, 3], (8, 8)),
    ] {
        for name in ["m.weight_scale_inv", "m.weight_scale"] {
            let found = read(config, F8E4M3, name, &shape, scales).expect("read");
            let expected = Encoding::Fp8 {
                block,
                divide: false,
                scale: Float::F32,
            };
            assert_eq!(found, expected, "{shape:?} {scales:?}");
        }
    }
    for (dtype, expected) in [(F8E4M3, "neither blocks nor rows"), (I8, "I8 needs 'SCB'")] {
        let refused = read(&usual, dtype, "m.weight_scale", &[64, 64], &[8, 8]);
        let error = refused.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(read(&usual, I8, "m.weight_scale", &[64, 64], &[64, 1]).is_ok());
}

/// GPTQModel divides by `weight_scale_inv`, where DeepSeek multiplies by it.
#[test]
fn fp8_of_gptqmodel_divides_by_its_scales() {
    use Dtype::{F8E4M3, F32};
    let read = |block: Value, name: &str| {
        let tensors: &[Tensor<'_>] = &[("m.weight", F8E4M3, &[2, 2]), (name, F32, &[2])];
        let config = json!({ "quantization_config": block });
        let weights = detect(&config, &checkpoint(tensors), &jerboa::SortedMap::new());
        let source = weights.get("m.weight", "a model").expect("read").clone();
        let scales = [4.0f32, 0.5].map(f32::to_le_bytes).concat();
        // 0x38 is 1.0, 0x40 is 2.0 and 0xb8 is -1.0 in E4M3.
        let bytes = PartBytes::new()
            .with(PartRole::Weight, &[0x38, 0x40, 0xb8, 0x40])
            .with(PartRole::Scales, &scales);
        dequant_in_order(&transcode(&source, &bytes, true).expect("decoded"))
    };
    let inverse = json!({ "quant_method": "fp8", "weight_scale_semantics": "inverse" });
    let multiplied = [4.0, 8.0, -0.5, 1.0];
    for (block, name, expected) in [
        (
            inverse.clone(),
            "m.weight_scale_inv",
            [0.25, 0.5, -2.0, 4.0],
        ),
        (inverse, "m.weight_scale", multiplied),
        (
            json!({ "quant_method": "fp8" }),
            "m.weight_scale_inv",
            multiplied,
        ),
    ] {
        assert_eq!(read(block, name), expected, "{name}");
    }
}

/// A method that is not known is named instead of a missing tensor.
#[test]
fn unknown_quantization_methods_are_named() {
    let tensors: &[Tensor<'_>] = &[
        ("m.W_q", Dtype::U8, &[32, 64]),
        ("n.weight", Dtype::F32, &[4]),
    ];
    let message = |method: &str| {
        let config = json!({ "quantization_config": { "quant_method": method } });
        let weights = detect(&config, &checkpoint(tensors), &jerboa::SortedMap::new());
        assert!(weights.get("n.weight", "a model").is_ok());
        weights
            .get("m.weight", "a model")
            .expect_err(method)
            .to_string()
    };
    for method in ["hqq", "quanto", "torchao", "aqlm", "vptq"] {
        let found = message(method);
        assert!(found.contains(&format!(
            "m.weight is stored as {method}, which is not supported"
        )));
        assert!(found.contains("one of GPTQ, AWQ,"), "{found}");
    }
    for method in ["", "gptq", "intel/auto-round", "fbgemm_fp8"] {
        assert!(
            message(method).contains("has no tensor m.weight"),
            "{method}"
        );
    }
}

/// `bnb_4bit_quant_storage` labels the bytes of codes as floats.
#[test]
fn codes_of_bitsandbytes_are_bytes_of_any_type() {
    use Dtype::{BF16, F16, F32, U8};
    let state =
        json!({ "quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 64] });
    let mut side = jerboa::SortedMap::new();
    let name = "m.weight.quant_state.bitsandbytes__nf4";
    side.insert(name.to_owned(), state.to_string().into_bytes());
    for (dtype, codes) in [(U8, 256), (F16, 128), (BF16, 128), (F32, 64)] {
        let shape = [codes, 1];
        let tensors: &[Tensor<'_>] = &[
            ("m.weight", dtype, &shape),
            ("m.weight.absmax", F32, &[8]),
            ("m.weight.quant_map", F32, &[16]),
            (name, U8, &[80]),
        ];
        let weights = detect(&json!({}), &checkpoint(tensors), &side);
        let weight = weights.get("m.weight", "a model").expect("read");
        check_parts(weight).expect("its parts fit");
        assert_eq!(
            (weight.encoding.name(), &weight.shape[..]),
            ("bitsandbytes 4 bit".into(), &[8, 64][..])
        );
        assert_eq!(
            (weight.parts[0].info.dtype, &weight.parts[0].info.shape[..]),
            (U8, &[256, 1][..])
        );
    }
}

/// ModelOpt multiplies by the second scale, where compressed-tensors divides by its global scale.
#[test]
fn nvfp4_of_modelopt_is_read() {
    use Dtype::{BF16, F8E4M3, F32, U8};
    let config =
        json!({ "quantization_config": { "quant_method": "modelopt", "quant_algo": "NVFP4" } });
    let weight: Tensor<'_> = ("m.weight", U8, &[2, 16]);
    let scale: Tensor<'_> = ("m.weight_scale", F8E4M3, &[2, 2]);
    let factor: Tensor<'_> = ("m.weight_scale_2", F32, &[]);
    let read = |tensors: &[Tensor<'_>]| {
        let weights = detect(&config, &checkpoint(tensors), &jerboa::SortedMap::new());
        weights.get("m.weight", "a model").cloned()
    };
    let source = read(&[weight, scale, factor, ("m.input_scale", F32, &[])]).expect("read");
    assert_eq!(
        (source.encoding.name(), source.shape.clone()),
        ("nvfp4".into(), vec![2, 32])
    );
    // 0x2 is 1.0 and 0xF is -6.0 in E2M1; 0x38 is 1.0 and 0x40 is 2.0 in E4M3.
    let codes = [[0xF2u8; 8], [0x22; 8], [0x2F; 8], [0xFF; 8]].concat();
    let scales = [0x38u8, 0x40, 0x40, 0x38];
    let factor_bytes = 0.3f32.to_le_bytes();
    let bytes = PartBytes::new()
        .with(PartRole::Weight, &codes)
        .with(PartRole::Scales, &scales)
        .with(PartRole::GlobalFactor, &factor_bytes);
    let packed = transcode(&source, &bytes, true).expect("decoded");
    let found = dequant_in_order(&packed);
    let pairs = [[1.0f32, -6.0], [2.0, 2.0], [-12.0, 2.0], [-6.0, -6.0]];
    for (i, value) in found.iter().enumerate() {
        let expected = pairs[i / 16][i % 2] * 0.3;
        assert!(
            (value - expected).abs() < 1e-6,
            "{i}: {value} != {expected}"
        );
    }
    for (tensors, expected) in [
        (
            vec![
                weight,
                scale,
                factor,
                ("m.pre_quant_scale", BF16, &[32][..]),
            ],
            "Its inputs are scaled by 'pre_quant_scale'.",
        ),
        (
            vec![weight, ("m.weight_scale", F8E4M3, &[2, 1]), factor],
            "NVFP4 needs an F8_E4M3 'weight_scale' per 16 elements",
        ),
    ] {
        let error = read(&tensors).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Scaling by ModelOpt's SmoothQuant, transforms of compressed-tensors and rotations of others.
#[test]
fn inputs_that_are_changed_at_run_time_are_refused() {
    use Dtype::{BF16, F8E4M3, F32, I8};
    let method = |name: &str| json!({ "quantization_config": { "quant_method": name } });
    let rotated = |field: &str, value: Value| json!({ "quantization_config": { "quant_method": "gptq", field: value } });
    let transform = |location: &str| {
        json!({ "quantization_config": { "quant_method": "compressed-tensors", "transform_config": { "config_groups": {
            "R1": { "type": "hadamard", "apply": [{ "location": "weight_output", "targets": ["o_proj"] }] },
            "R4": { "type": "hadamard", "apply": [{ "location": location, "targets": ["down_proj"] }] },
        } } } })
    };
    let scale: Tensor<'_> = ("m.pre_quant_scale", F32, &[32]);
    let eight: Tensor<'_> = ("m.weight", I8, &[4, 32]);
    let fp8: Tensor<'_> = ("m.weight", F8E4M3, &[4, 32]);
    let scales: Tensor<'_> = ("m.weight_scale", F32, &[4]);
    let one: Tensor<'_> = ("m.weight_scale", F32, &[]);
    let plain: Tensor<'_> = ("m.weight", BF16, &[4, 32]);
    for (config, tensors, expected) in [
        (method("modelopt"), vec![eight, scales], None),
        (
            method("modelopt"),
            vec![eight, scales, scale],
            Some("'pre_quant_scale'"),
        ),
        (
            method("modelopt"),
            vec![fp8, one, scale],
            Some("'pre_quant_scale'"),
        ),
        (transform("weight_input"), vec![plain], None),
        (transform("input"), vec![plain], Some("transforms 'input'")),
        (
            rotated("rotation", json!("hadamard")),
            vec![plain],
            Some("The 'rotation' of its quantization transforms inputs"),
        ),
        (rotated("rotation", Value::Null), vec![plain], None),
        (rotated("rotation_config", json!({})), vec![plain], None),
        (
            rotated("rotation_config", json!({ "algorithm": "hadamard" })),
            vec![plain],
            Some("'rotation_config'"),
        ),
        (
            rotated("spinquant_config", json!({ "r4": true })),
            vec![plain],
            Some("'spinquant_config'"),
        ),
        (
            rotated("algo_config", json!([{ "name": "quarot" }])),
            vec![plain],
            Some("'algo_config'"),
        ),
        (
            rotated(
                "algo_config",
                json!({ "name": "rotation", "r3": false, "r4": true }),
            ),
            vec![plain],
            Some("'algo_config'"),
        ),
        (
            rotated(
                "algo_config",
                json!([
                    { "name": "smooth" }, { "name": "rotation", "r3": false, "r4": false },
                ]),
            ),
            vec![plain],
            None,
        ),
        (
            transform("k_cache"),
            vec![plain],
            Some("transforms 'k_cache'"),
        ),
    ] {
        let weights = detect(&config, &checkpoint(&tensors), &jerboa::SortedMap::new());
        let error = weights.get("m.weight", "a model").err();
        let error = error.map(|error| error.to_string());
        match (&error, expected) {
            (None, None) => {}
            (Some(error), Some(part)) => assert!(error.contains(part), "{error}"),
            _ => panic!("{error:?}, expected {expected:?}"),
        }
    }
}

/// Without a usable size in the configuration, groups get the default size that fits, also with a
/// partial last group.
#[test]
fn group_sizes_without_a_configuration() {
    use Dtype::{F16, I32};
    let awq: &[Tensor<'_>] = &[
        ("m.qweight", I32, &[144, 4]),
        ("m.qzeros", I32, &[3, 4]),
        ("m.scales", F16, &[3, 32]),
    ];
    let gptq: &[Tensor<'_>] = &[
        ("m.qweight", I32, &[18, 32]),
        ("m.qzeros", I32, &[3, 4]),
        ("m.scales", F16, &[3, 32]),
    ];
    for (tensors, method) in [(awq, "awq"), (gptq, "gptq")] {
        for group in [
            json!(null),
            json!(0),
            json!(-1),
            json!(32),
            json!(64),
            json!("64"),
        ] {
            let config =
                json!({"quantization_config": {"quant_method": method, "group_size": group}});
            let weights = detect(&config, &checkpoint(tensors), &jerboa::SortedMap::new());
            let weight = weights.get("m.weight", "a model").expect("read");
            assert_eq!(
                weight.encoding.name(),
                format!("{method} 4 bit group 64"),
                "{group}"
            );
            check_parts(weight).expect("its parts fit");
        }
    }
}
