//! Damaged and random input never panics: containers, detection and transcoding return a value or
//! an error. PROPTEST_CASES=1000000 makes it a long run.

use crate::support::read;
use jerboa::arch::{find_gguf, find_mlc};
use jerboa::format::gguf::{self, config::RopeFactors};
use jerboa::format::{
    Checkpoint, CheckpointFile, Dtype, Encoding, Float, PartBytes, PartRole, StoredPart,
    TensorInfo, WeightSource, check_parts, detect, ggml::GgmlType, mlc, transcode,
};
use jerboa::reference::dequant::dequant_in_order;
use proptest::prelude::*;
use serde_json::json;

/// Everything derived from a GGUF header.
fn use_gguf(bytes: &[u8], size: u64) {
    let Ok(Some(gguf)) = gguf::parse("x.gguf", bytes, size) else {
        return;
    };
    let _ = (gguf.tokenizer(), gguf.tokenizer_config(), gguf.stop_ids());
    assert_eq!(gguf.checkpoint().tensors.len(), gguf.tensors.len());
    if let Ok(family) = find_gguf(&gguf) {
        let _ = gguf.config(family, &RopeFactors::default());
        for source in gguf.weights(family).iter() {
            assert!(
                source
                    .parts
                    .iter()
                    .all(|p| p.info.range.end <= size && p.info.range.start <= p.info.range.end)
            );
        }
    }
}

fn encoding() -> impl Strategy<Value = Encoding> {
    let float = prop_oneof![Just(Float::F32), Just(Float::F16), Just(Float::BF16)];
    let group = prop_oneof![
        Just(16usize),
        Just(32),
        Just(64),
        Just(128),
        Just(48),
        0usize..300
    ];
    let kinds: Vec<GgmlType> = GgmlType::all().collect();
    (float, group, 0u8..10, any::<bool>(), 0usize..25, 0usize..16).prop_map(
        move |(scale, group, bits, flag, kind, which)| {
            let block = (group, usize::from(bits) * 8);
            match which {
                0 => Encoding::Dense(scale),
                1 => Encoding::MlxAffine { bits, group, scale },
                2 => Encoding::MlxMxfp4,
                3 => Encoding::MlxMxfp8,
                4 => Encoding::Nvfp4,
                5 => Encoding::Mlc {
                    transposed: flag,
                    scale,
                },
                6 => Encoding::Gptq {
                    bits,
                    group,
                    minus_one: flag,
                    scale,
                },
                7 => Encoding::Awq { group, scale },
                8 => Encoding::PackQuantized {
                    bits,
                    group,
                    stream: flag,
                    scale,
                },
                9 => Encoding::Int8 { scale },
                10 => Encoding::Fp8 {
                    block,
                    divide: flag,
                    scale,
                },
                11 => Encoding::Bnb4 {
                    block: group,
                    nested_block: flag.then_some(group),
                    nested_offset: 0.5,
                    dtype: scale,
                },
                12 => Encoding::Bnb8,
                13 => Encoding::BitNet {
                    divide: flag,
                    scale,
                },
                14 => Encoding::Mxfp4Blocks,
                _ => Encoding::Ggml(kinds[kind % kinds.len()]),
            }
        },
    )
}

proptest! {
    #[test]
    fn damaged_gguf(cut in 0usize..8000, damage in prop::collection::vec((0usize..8000, any::<u8>()), 0..12), size in any::<u64>()) {
        let mut file = read("gguf_q8_0/model.gguf");
        for (at, byte) in damage {
            if let Some(b) = file.get_mut(at) {
                *b = byte;
            }
        }
        let whole = file.len() as u64;
        use_gguf(&file, whole);
        file.truncate(cut);
        use_gguf(&file, whole);
        use_gguf(&file, size);
    }

    #[test]
    fn random_gguf(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let file = [b"GGUF\x03\0\0\0".as_slice(), &body].concat();
        use_gguf(&file, file.len() as u64);
    }

    #[test]
    fn random_json_in_mlc(text in "[\\[\\]{}\",:a-z0-9]{0,80}") {
        let _ = (mlc::parse_shards("x.json", &text), mlc::config(&text, find_mlc));
    }

    /// Any encoding over bytes of any length gives an error or a matrix of the promised size,
    /// without panicking.
    #[test]
    fn any_bytes_in_any_encoding(
        encoding in encoding(), rows in 0usize..20, cols in 0usize..300, vector in any::<bool>(),
        lengths in prop::collection::vec(prop_oneof![Just(4096usize), 0usize..9000], 10),
        present in any::<u16>(), fill in any::<u8>(), exact in any::<bool>(),
    ) {
        let shape = if vector { vec![cols] } else { vec![rows, cols] };
        let source = WeightSource::new("w", shape, encoding, Vec::new());
        let roles = [PartRole::Weight, PartRole::Scales, PartRole::Biases, PartRole::Zeros, PartRole::GroupIndex, PartRole::GlobalScale, PartRole::GlobalFactor,
            PartRole::QuantMap, PartRole::NestedScales, PartRole::NestedMap];
        let data: Vec<Vec<u8>> = lengths.iter().map(|n| vec![fill; *n]).collect();
        let bytes = roles.iter().zip(&data).enumerate().filter(|(i, _)| present >> i & 1 == 1)
            .fold(PartBytes::new(), |all, (_, (role, data))| all.with(*role, data));
        // Checks before an upload match the decoder's needs.
        let mut listed = source.clone();
        for (i, (role, data)) in roles.iter().zip(&data).enumerate().filter(|(i, _)| present >> i & 1 == 1 && roles[*i] != PartRole::GroupIndex) {
            let info = TensorInfo { name: format!("p{i}"), dtype: Dtype::U8, shape: vec![data.len()], file: 0, range: 0..data.len() as u64 };
            listed.parts.push(StoredPart { role: *role, info });
        }
        let grouped = present >> 4 & 1 == 1;
        let checked = check_parts(&listed);
        let result = transcode(&source, &bytes, exact);
        if !vector && !grouped && source.layout().is_ok() {
            prop_assert_eq!(checked.is_ok(), result.is_ok(), "{:?} but {:?}", checked.err(), result.err());
        }
        if let Ok(packed) = result {
            prop_assert_eq!(dequant_in_order(&packed).len(), packed.rows * packed.cols);
        }
    }

    /// Detection over arbitrary shapes and types, then transcoding from bytes of the stated length.
    #[test]
    fn arbitrary_checkpoints(
        tensors in prop::collection::vec((0usize..22, 0usize..22, prop::collection::vec(0usize..40, 0..4)), 1..8),
        method in "(gptq|awq|bitnet|compressed-tensors|fp8|mlx|)", bits in 0u64..9, group in 0u64..130,
    ) {
        const NAMES: [&str; 22] = ["m.weight", "m.scales", "m.biases", "m.qweight", "m.qzeros", "m.g_idx", "m.weight_packed",
            "m.weight_scale", "m.weight_zero_point", "m.weight_g_idx", "m.weight_scale_inv", "m.SCB", "m_blocks", "m_scales",
            "m.weight.absmax", "m.weight.quant_map", "m.weight.quant_state.bitsandbytes__nf4", "m.weight.nested_absmax",
            "m.weight.nested_quant_map", "m.bias", "x.switch_mlp.up.weight", "m.weight_global_scale"];
        let types: Vec<Dtype> = Dtype::all().collect();
        let mut checkpoint = Checkpoint::default();
        let mut end = 0u64;
        for (name, dtype, shape) in tensors {
            let dtype = types[dtype % types.len()];
            let start = end;
            end += (shape.iter().product::<usize>() as u64 * dtype.bits()).div_ceil(8);
            let name = NAMES[name].to_string();
            checkpoint.tensors.insert(name.clone(), TensorInfo { name, dtype, shape, file: 0, range: start..end });
        }
        checkpoint.files.push(CheckpointFile { name: "x".into(), size: end });
        let config = json!({"quantization_config": {"quant_method": method, "bits": bits, "group_size": group,
            "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": bits, "group_size": group}}}}});
        let state = br#"{"shape": [8, 64], "blocksize": 64, "dtype": "float16"}"#.to_vec();
        let side = jerboa::SortedMap::from([("m.weight.quant_state.bitsandbytes__nf4".to_string(), state)]);
        let zeros = vec![0u8; end as usize];
        for source in detect(&config, &checkpoint, &side).iter() {
            let bytes = source.parts.iter().fold(PartBytes::new(), |all, p| {
                all.with(p.role, &zeros[p.info.range.start as usize..p.info.range.end as usize])
            });
            if let Ok(packed) = transcode(source, &bytes, true) {
                prop_assert_eq!(dequant_in_order(&packed).len(), packed.rows * packed.cols);
            }
        }
    }
}
