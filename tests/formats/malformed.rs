//! Files that violate their container's rules, each with its error.

use jerboa::arch::{find_gguf, find_mlc};
use jerboa::exec::{ModelFiles, RunOptions, Session};
use jerboa::format::{
    Checkpoint, CheckpointFile, Dtype, Encoding, Float, PartBytes, PartRole, TensorInfo,
    check_parts, detect, gguf, mlc, transcode,
};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::reference::dequant::dequant_in_order;
use jerboa::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

/// A GGUF header: version, metadata pairs (already encoded), tensors (already encoded).
fn header(version: u32, pairs: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    out.extend(pairs.iter().flatten());
    out.extend(tensors.iter().flatten());
    out
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let count = (dims.len() as u32).to_le_bytes();
    [
        text(name),
        count.to_vec(),
        dims_bytes,
        kind.to_le_bytes().to_vec(),
        offset.to_le_bytes().to_vec(),
    ]
    .concat()
}

fn gguf_error(file: &[u8]) -> String {
    match gguf::parse("bad.gguf", file, file.len() as u64) {
        Err(e @ Error::Malformed { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn gguf_errors() {
    let array =
        |kind: u32, n: u64| [kind.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat();
    let mut counts = b"GGUF\x03\0\0\0".to_vec();
    counts.extend(u64::MAX.to_le_bytes());
    counts.extend(0u64.to_le_bytes());
    let twice = pair("a", 4, &[0; 4]);
    let align = |n: u32| pair("general.alignment", 4, &n.to_le_bytes());
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GGML\x03\0\0\0".to_vec(), "does not begin with 'GGUF'"),
        (b"GG".to_vec(), "cut off"),
        (header(1, &[], &[]), "version is 1;"),
        (header(3u32.swap_bytes(), &[], &[]), "big-endian"),
        (counts, "claims 18446744073709551615 tensors"),
        (header(3, &[pair("k", 77, &[])], &[]), "unknown type 77"),
        (
            header(3, &[pair("k", 9, &array(9, 1))], &[]),
            "array of the unsupported type 9",
        ),
        (
            header(3, &[pair("k", 9, &array(0, u64::MAX))], &[]),
            "claims 18446744073709551615 elements",
        ),
        (
            header(3, &[pair("k", 9, &array(8, 1 << 20))], &[]),
            "cut off",
        ),
        (
            header(3, &[pair("k", 8, &u64::MAX.to_le_bytes())], &[]),
            "claims 18446744073709551615 bytes",
        ),
        (header(3, &[twice.clone(), twice], &[]), "occurs twice"),
        (header(3, &[align(0)], &[]), "alignment is 0"),
        (header(3, &[align(48)], &[]), "alignment is 48"),
        (
            header(3, &[pair("general.alignment", 7, &[1])], &[]),
            "alignment is not an integer",
        ),
        (
            header(3, &[], &[tensor("t", &[1; 5], 0, 0)]),
            "5 dimensions",
        ),
        (
            header(3, &[], &[tensor("t", &[0], 0, 0)]),
            "is empty or has too many elements",
        ),
        (
            header(3, &[], &[tensor("t", &[1 << 40, 1 << 40], 0, 0)]),
            "is empty or has too many elements",
        ),
        (
            header(3, &[], &[tensor("t", &[33], 2, 0)]),
            "not a multiple of the Q4_0 block size",
        ),
        (
            header(3, &[], &[tensor("t", &[1], 0, 8)]),
            "not at a multiple of 32",
        ),
        (
            header(3, &[], &[tensor("t", &[1 << 20], 0, 0)]),
            "ends beyond the file",
        ),
        (
            header(3, &[], &[tensor("t", &[1], 0, u64::MAX - 31)]),
            "ends beyond the file",
        ),
        (
            header(3, &[], &[tensor("t", &[1], 0, 0), tensor("u", &[1], 0, 0)]),
            "ends beyond the file",
        ),
    ];
    for (file, expected) in cases {
        let message = gguf_error(&file);
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let mut overlap = header(
        3,
        &[],
        &[tensor("t", &[16], 0, 0), tensor("u", &[8], 0, 32)],
    );
    overlap.resize(overlap.len().next_multiple_of(32) + 64, 0);
    assert!(gguf_error(&overlap).contains("overlaps"));
    let mut twice = header(3, &[], &[tensor("t", &[8], 0, 0), tensor("t", &[8], 0, 32)]);
    twice.resize(twice.len().next_multiple_of(32) + 64, 0);
    assert!(gguf_error(&twice).contains("occurs twice"));
}

/// Unsupported entries are refused by name, and only when they are requested.
#[test]
fn gguf_refusals() {
    let arch = |name: &str| pair("general.architecture", 8, &text(name));
    let open = |arch_name: &str, tensors: &[Vec<u8>]| {
        let mut file = header(3, &[arch(arch_name)], tensors);
        file.resize(file.len().next_multiple_of(32) + 4096, 0);
        gguf::parse("x.gguf", &file, file.len() as u64)
            .expect("valid")
            .expect("whole")
    };
    let gguf = open("qwen2", &[tensor("blk.0.attn_q.weight", &[32, 32], 40, 0)]);
    let weights = gguf.weights(find_gguf(&gguf).expect("mapped"));
    let error = weights
        .get("model.layers.0.self_attn.q_proj.weight", "qwen2")
        .expect_err("NVFP4");
    assert!(
        matches!(&error, Error::UnsupportedEncoding { encoding, .. } if encoding == "NVFP4"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("Use a file with another quantization"),
        "{error}"
    );
    // Unknown types are named by their number.
    let gguf = open("qwen2", &[tensor("blk.0.attn_q.weight", &[32, 32], 99, 0)]);
    let weights = gguf.weights(find_gguf(&gguf).expect("mapped"));
    let error = weights
        .get("model.layers.0.self_attn.q_proj.weight", "qwen2")
        .expect_err("type 99");
    assert!(
        error.to_string().contains("stored as ggml type 99"),
        "{error}"
    );
    let error = weights
        .get("model.norm.weight", "qwen2")
        .expect_err("absent");
    assert_eq!(error.code(), "missing_tensor");
    let error = find_gguf(&open("mamba", &[])).expect_err("unmapped");
    assert!(error.to_string().contains("GGUF mamba"), "{error}");
    let gguf = open("llama", &[tensor("blk.0.attn_q.weight", &[32, 30], 0, 0)]);
    let weights = gguf.weights(find_gguf(&gguf).expect("mapped"));
    let error = weights
        .get("model.layers.0.self_attn.q_proj.weight", "llama")
        .expect_err("head count is missing");
    assert!(error.to_string().contains("head_count"));
    assert_eq!(
        open("llama", &[])
            .tokenizer()
            .expect_err("no tokens")
            .code(),
        "tokenizer"
    );
}

fn shards(record: &Value) -> Result<()> {
    let list = json!({"metadata": {}, "records": [{"dataPath": "params_shard_0.bin", "nbytes": 64, "records": [record]}]});
    mlc::parse_shards("ndarray-cache.json", &list.to_string()).map(|_| ())
}

#[test]
fn mlc_errors() {
    let record = |dtype: &str, shape: Value, nbytes: u64, offset: u64| json!({"name": "p", "shape": shape, "dtype": dtype, "format": "raw", "nbytes": nbytes, "byteOffset": offset});
    assert!(shards(&record("float16", json!([4, 8]), 64, 0)).is_ok());
    for (bad, expected) in [
        (record("float16", json!([4, 8]), 63, 0), "has 63 bytes"),
        (
            record("float16", json!([4, 8]), 64, 1),
            "ends beyond its shard",
        ),
        (
            record("float16", json!([4, 8]), 64, u64::MAX),
            "ends beyond its shard",
        ),
        (
            record("complex64", json!([4, 8]), 64, 0),
            "unknown type complex64",
        ),
        (
            record("float16", json!([u32::MAX, u32::MAX, u32::MAX]), 64, 0),
            "has 64 bytes",
        ),
        (json!({"name": "p"}), "missing field"),
    ] {
        let message = shards(&bad).expect_err(expected).to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    for path in ["../x.bin", "/etc/x", "a/../../x"] {
        let list = json!({"records": [{"dataPath": path, "nbytes": 0, "records": []}]});
        let error = mlc::parse_shards("ndarray-cache.json", &list.to_string()).expect_err(path);
        assert!(
            error.to_string().contains("leaves the repository"),
            "{error}"
        );
    }
    assert_eq!(
        mlc::config("{}", find_mlc).expect_err("empty").code(),
        "config"
    );
}

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
            four(group(8, r"re:(?<=x)y")),
            "The target 're:(?<=x)y' of 'config_groups' is not supported",
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
                scale: Float::F32,
            };
            assert_eq!(found, expected, "{shape:?} {scales:?}");
        }
    }
    let other = read(&usual, F8E4M3, "m.weight_scale", &[64, 64], &[8, 8]);
    assert!(
        other
            .expect_err("other blocks")
            .to_string()
            .contains("neither blocks nor rows")
    );
    let blocks = read(&usual, I8, "m.weight_scale", &[64, 64], &[8, 8]);
    assert!(
        blocks
            .expect_err("blocks")
            .to_string()
            .contains("I8 needs 'SCB'")
    );
    assert!(read(&usual, I8, "m.weight_scale", &[64, 64], &[64, 1]).is_ok());
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
            "Its inputs are scaled by 'pre_quant_scale';",
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

#[test]
fn gguf_files_without_their_other_parts_are_refused() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("split-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = header(
        3,
        &[
            pair("general.architecture", 8, &text("llama")),
            pair("split.count", 2, &3u16.to_le_bytes()),
        ],
        &[],
    );
    std::fs::write(folder.join("x-00001-of-00003.gguf"), file).expect("written");
    let opened = pollster::block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        ModelFiles::open(&source, None).await
    });
    std::fs::remove_dir_all(&folder).expect("removed");
    let message = opened.expect_err("in parts").to_string();
    assert!(
        message.contains("x-00002-of-00003.gguf") && message.contains("part 2 of 3"),
        "{message}"
    );
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

fn load(folder: &Path, gguf: Option<&str>) -> Result<()> {
    pollster::block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        let files = ModelFiles::open(&source, gguf).await?;
        Session::load_files(
            jerboa_tests::open(&DeviceOptions::default()),
            &source,
            files,
            RunOptions::default(),
        )
        .await
    })
    .map(|_| ())
}

/// A model in two shards, the second with a bias before its weight; then each container truncated.
#[test]
fn truncated_files_are_refused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cut-{}", std::process::id()));
    let golden = |name: &str| jerboa_tests::golden::golden(name);
    let fresh = |from: &str| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        for entry in std::fs::read_dir(golden(from)).expect(from) {
            let path = entry.expect("an entry").path();
            std::fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("copied");
        }
    };
    let cut = |name: &str, left: &dyn Fn(u64) -> u64| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(folder.join(name))
            .expect(name);
        file.set_len(left(file.metadata().expect("a size").len()))
            .expect("cut");
    };
    let refused = |gguf: Option<&str>, parts: &[&str]| {
        let error = load(&folder, gguf).expect_err("cut off");
        assert_eq!(error.code(), "malformed", "{error}");
        for part in parts.iter().chain(&["Download it again"]) {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    };

    fresh("models/llama_bias");
    let file = std::fs::read(folder.join("model.safetensors")).expect("weights");
    let all = safetensors::SafeTensors::deserialize(&file).expect("safetensors");
    let module = "model.layers.1.self_attn.q_proj.";
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let (second, first): (Vec<_>, Vec<_>) = all
        .tensors()
        .into_iter()
        .partition(|(name, _)| name.starts_with(module));
    assert_eq!(second.len(), 2, "a weight with a bias");
    let shard_of = |tensors: &[(String, _)], name| {
        tensors
            .iter()
            .map(|(t, _)| (t.clone(), json!(name)))
            .collect()
    };
    let mut map: serde_json::Map<String, Value> = shard_of(&first, names[0]);
    map.extend::<serde_json::Map<String, Value>>(shard_of(&second, names[1]));
    for (name, tensors) in names.into_iter().zip([first, second]) {
        std::fs::write(
            folder.join(name),
            safetensors::serialize(tensors, None).expect("a shard"),
        )
        .expect("written");
    }
    std::fs::write(
        folder.join("model.safetensors.index.json"),
        json!({"weight_map": map}).to_string(),
    )
    .expect("written");
    std::fs::remove_file(folder.join("model.safetensors")).expect("removed");
    load(&folder, None).expect("whole shards");
    let size = std::fs::metadata(folder.join(names[1]))
        .expect("a shard")
        .len();
    for left in [size - 1, size - 100, size - 3000] {
        cut(names[1], &|_| left);
        refused(
            None,
            &[names[1], "q_proj.weight ends at byte", "out of range"],
        );
    }
    cut(names[1], &|_| 200);
    refused(None, &[names[1], "it is cut off: the header ends at byte"]);

    for mlc in ["quant/llama_mlc", "quant/phi3_mlc"] {
        for part in [1, 2, 3] {
            fresh(mlc);
            cut("params_shard_0.bin", &|size| size * part / 4);
            refused(
                None,
                &["params_shard_0.bin", "bytes, its tensor list requires"],
            );
        }
    }
    fresh("quant/gguf_q8_0");
    cut("model.gguf", &|size| size * 3 / 4);
    refused(
        Some("model.gguf"),
        &["model.gguf", "ends beyond the file's"],
    );
    std::fs::remove_dir_all(&folder).expect("removed");
}
