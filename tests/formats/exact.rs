//! Every encoding, transcoded to its canonical layout and decoded by the kernels' CPU reference,
//! equals the independent decoder bit for bit.

use crate::support::Tensors;
use jerboa::format::ggml::GgmlType;
use jerboa::format::{Encoding, Float, PartRole};
use std::collections::BTreeSet;

const W: (PartRole, &str) = (PartRole::Weight, "weight");
const S: (PartRole, &str) = (PartRole::Scales, "scales");

#[test]
fn mlx_affine() {
    let t = Tensors::open("mlx_affine");
    for bits in [2u8, 3, 4, 5, 6, 8] {
        for (group, scale) in [(32, Float::BF16), (64, Float::F16), (128, Float::F32)] {
            let layout = format!("q{bits}_g{group}_bias_{}", scale.name());
            let encoding = Encoding::MlxAffine { bits, group, scale };
            t.check(
                &format!("b{bits}_g{group}"),
                encoding,
                &[W, S, (PartRole::Biases, "biases")],
                Some(&layout),
            );
        }
    }
}

#[test]
fn mlx_float_modes() {
    let t = Tensors::open("mlx_fp");
    t.check("mxfp4", Encoding::MlxMxfp4, &[W, S], Some("mxfp4"));
    t.check("mxfp8", Encoding::MlxMxfp8, &[W, S], Some("bf16"));
    t.check("nvfp4", Encoding::Nvfp4, &[W, S], Some("q5_g16_zero_f32"));
}

#[test]
fn gptq() {
    let t = Tensors::open("gptq");
    let parts = [
        (PartRole::Weight, "qweight"),
        (PartRole::Zeros, "qzeros"),
        S,
        (PartRole::GroupIndex, "g_idx"),
    ];
    for (case, bits, minus_one) in [
        ("b4_sym", 4, true),
        ("b4_act_order", 4, true),
        ("b4_asym", 4, true),
        ("b8_sym", 8, true),
        ("b8_act_order", 8, true),
        ("b3_asym", 3, true),
        ("b2_asym", 2, true),
        ("b4_v2", 4, false),
    ] {
        let encoding = Encoding::Gptq {
            bits,
            group: 32,
            minus_one,
            scale: Float::F16,
        };
        let layout = format!("q{bits}_g32_zero_f16");
        let packed = t.check(case, encoding, &parts, Some(&layout));
        assert_eq!(
            packed.column_order.is_some(),
            case.contains("act_order"),
            "{case}"
        );
        if case.contains("sym") && !case.contains("asym") {
            // Without zero points and order: the symmetric zero is half the range.
            t.check(
                case,
                encoding,
                &[(PartRole::Weight, "qweight"), S],
                Some(&layout),
            );
        }
    }
}

/// No layout has groups of arbitrary size: they are dequantized. A short last group is supported.
#[test]
fn uneven_groups() {
    let t = Tensors::open("more");
    let parts = [
        (PartRole::Weight, "qweight"),
        (PartRole::Zeros, "qzeros"),
        S,
        (PartRole::GroupIndex, "g_idx"),
    ];
    let gptq = |group| Encoding::Gptq {
        bits: 4,
        group,
        minus_one: true,
        scale: Float::F16,
    };
    t.check("gptq_uneven", gptq(32), &parts, Some("f32"));
    t.check("gptq_tail", gptq(64), &parts, Some("q4_g64_zero_f16"));
    t.check("gptq_tail", gptq(64), &parts[..3], Some("q4_g64_zero_f16"));
    t.check(
        "awq_tail",
        Encoding::Awq {
            group: 64,
            scale: Float::F16,
        },
        &parts[..3],
        Some("q4_g64_zero_f16"),
    );
}

#[test]
fn awq() {
    let t = Tensors::open("awq");
    for group in [32usize, 64, 128] {
        let layout = format!("q4_g{group}_zero_f16");
        let parts = [
            (PartRole::Weight, "qweight"),
            (PartRole::Zeros, "qzeros"),
            S,
        ];
        t.check(
            &format!("g{group}"),
            Encoding::Awq {
                group,
                scale: Float::F16,
            },
            &parts,
            Some(&layout),
        );
    }
}

#[test]
fn mlc() {
    let t = Tensors::open("mlc");
    let parts = [
        (PartRole::Weight, "q_weight"),
        (PartRole::Scales, "q_scale"),
    ];
    for (case, transposed) in [("q4f16_1", false), ("q4f16_0", true)] {
        t.check(
            case,
            Encoding::Mlc {
                transposed,
                scale: Float::F16,
            },
            &parts,
            Some("q4_g32_zero_f16"),
        );
    }
    let t = Tensors::open("more");
    for (case, scale) in [("q4f32_1", Float::BF16), ("q4f32_1_raw", Float::F32)] {
        let layout = format!("q4_g32_zero_{}", scale.name());
        t.check(
            case,
            Encoding::Mlc {
                transposed: false,
                scale,
            },
            &parts,
            Some(&layout),
        );
    }
}

#[test]
fn gpt_oss_mxfp4() {
    let t = Tensors::open("mxfp4_gpt_oss");
    t.check(
        "",
        Encoding::Mxfp4Blocks,
        &[
            (PartRole::Weight, "w_blocks"),
            (PartRole::Scales, "w_scales"),
        ],
        Some("mxfp4"),
    );
}

#[test]
fn bitnet() {
    let t = Tensors::open("bitnet_ternary");
    let packed = Encoding::BitNet {
        divide: false,
        scale: Float::BF16,
    };
    t.check(
        "",
        packed,
        &[
            (PartRole::Weight, "weight"),
            (PartRole::Scales, "weight_scale"),
        ],
        Some("ternary"),
    );
    t.check(
        "",
        Encoding::Ggml(GgmlType::I2S),
        &[(PartRole::Weight, "i2_s_x86")],
        Some("ternary"),
    );
}

#[test]
fn gguf_blocks() {
    let t = Tensors::open("gguf_blocks");
    let mut seen = BTreeSet::new();
    for kind in GgmlType::all() {
        let case = kind.name();
        if t.names().iter().any(|n| *n == format!("{case}.blocks")) {
            t.check(
                case,
                Encoding::Ggml(kind),
                &[(PartRole::Weight, "blocks")],
                None,
            );
            seen.insert(case.to_string());
        }
    }
    let all: BTreeSet<String> = t
        .names()
        .iter()
        .filter_map(|n| n.strip_suffix(".blocks").map(String::from))
        .collect();
    assert_eq!(seen, all);
    let blocks = [(PartRole::Weight, "blocks")];
    Tensors::open("more").check(
        "IQ1_M",
        Encoding::Ggml(GgmlType::IQ1_M),
        &blocks,
        Some("q5_g16_zero_f32"),
    );
    // The golden blocks, BitNet's and unquantized types cover all types.
    let elsewhere = ["IQ1_M", "I2_S", "F32"].map(String::from);
    assert_eq!(
        GgmlType::all()
            .map(|k| k.name().to_string())
            .collect::<BTreeSet<_>>(),
        &all | &elsewhere.into()
    );
}

#[test]
fn compressed_tensors() {
    let t = Tensors::open("more");
    let packed = |bits, group, stream| Encoding::PackQuantized {
        bits,
        group,
        stream,
        scale: Float::BF16,
    };
    let parts = [
        (PartRole::Weight, "weight_packed"),
        (PartRole::Scales, "weight_scale"),
    ];
    let with_zeros = [parts[0], parts[1], (PartRole::Zeros, "weight_zero_point")];
    t.check(
        "ct4_sym",
        packed(4, 32, true),
        &parts,
        Some("q4_g32_zero_bf16"),
    );
    t.check(
        "ct4_asym",
        packed(4, 64, true),
        &with_zeros,
        Some("q4_g64_zero_bf16"),
    );
    t.check(
        "ct8_row",
        packed(8, 192, true),
        &parts,
        Some("q8_g128_zero_bf16"),
    );
    t.check(
        "ct3_dense",
        packed(3, 32, true),
        &with_zeros,
        Some("q3_g32_zero_bf16"),
    );
    t.check(
        "ct3_loose",
        packed(3, 32, false),
        &with_zeros,
        Some("q3_g32_zero_bf16"),
    );
    for (bits, layout) in [
        (2, "q2_g64_zero_bf16"),
        (5, "q5_g64_zero_bf16"),
        (6, "q6_g64_zero_bf16"),
        (7, "q8_g64_zero_bf16"),
    ] {
        t.check(
            &format!("ct{bits}"),
            packed(bits, 64, true),
            &with_zeros,
            Some(layout),
        );
    }
    let ordered = [parts[0], parts[1], (PartRole::GroupIndex, "weight_g_idx")];
    assert!(
        t.check("ct4_order", packed(4, 32, true), &ordered, None)
            .column_order
            .is_some()
    );
    let bytes = [
        (PartRole::Weight, "weight"),
        (PartRole::Scales, "weight_scale"),
    ];
    t.check(
        "int8_row",
        Encoding::Int8 { scale: Float::F32 },
        &bytes,
        Some("q8_g128_zero_f32"),
    );
    t.check(
        "int8_tensor",
        Encoding::Int8 { scale: Float::F32 },
        &bytes,
        Some("q8_g128_zero_f32"),
    );
    let nvfp4 = [
        parts[0],
        parts[1],
        (PartRole::GlobalScale, "weight_global_scale"),
    ];
    t.check("nvfp4", Encoding::Nvfp4, &nvfp4, Some("q5_g16_zero_f32"));
}

#[test]
fn fp8() {
    let t = Tensors::open("more");
    let fp8 = |block, scale| Encoding::Fp8 {
        block,
        divide: false,
        scale,
    };
    let w = (PartRole::Weight, "weight");
    t.check(
        "fp8_block",
        fp8((8, 16), Float::F32),
        &[w, (PartRole::Scales, "weight_scale_inv")],
        Some("f32"),
    );
    t.check(
        "fp8_row",
        fp8((1, 48), Float::BF16),
        &[w, (PartRole::Scales, "weight_scale")],
        Some("f32"),
    );
    t.check(
        "fp8_tensor",
        fp8((20, 48), Float::F32),
        &[w, (PartRole::Scales, "weight_scale")],
        Some("f32"),
    );
}

#[test]
fn bitsandbytes() {
    let t = Tensors::open("more");
    let four = |nested_block| Encoding::Bnb4 {
        block: 64,
        nested_block,
        nested_offset: 0.875,
        dtype: Float::F16,
    };
    let parts = [
        (PartRole::Weight, "weight"),
        (PartRole::Scales, "absmax"),
        (PartRole::QuantMap, "quant_map"),
    ];
    t.check("nf4", four(None), &parts, Some("f32"));
    let nested = [
        (PartRole::NestedScales, "nested_absmax"),
        (PartRole::NestedMap, "nested_quant_map"),
    ];
    t.check(
        "nf4_nested",
        four(Some(4)),
        &[&parts[..], &nested[..]].concat(),
        Some("f32"),
    );
    t.check(
        "llm_int8",
        Encoding::Bnb8,
        &[(PartRole::Weight, "weight"), (PartRole::Scales, "SCB")],
        Some("q8_g128_zero_f32"),
    );
}

/// Types without an exact layout are rounded once to f16.
#[test]
fn rounded_encodings_round_once() {
    let t = Tensors::open("more");
    let (shape, expected) = t.f32("fp8_block.expected");
    let encoding = Encoding::Fp8 {
        block: (8, 16),
        divide: false,
        scale: Float::F32,
    };
    let source = jerboa::format::WeightSource::new("fp8", shape, encoding, Vec::new());
    let w = t.bytes("fp8_block.weight");
    let s = t.bytes("fp8_block.weight_scale_inv");

    let bytes = jerboa::format::PartBytes::new()
        .with(PartRole::Weight, &w)
        .with(PartRole::Scales, &s);
    let packed = jerboa::format::transcode(&source, &bytes, false).expect("transcodes");
    let rounded: Vec<f32> = expected
        .iter()
        .map(|x| half::bf16::from_f32(*x).to_f32())
        .collect();
    assert_eq!(packed.layout.name(), "bf16");
    crate::support::assert_bits(
        "fp8 as bf16",
        &jerboa::reference::dequant::dequant(&packed),
        &rounded,
    );
}
