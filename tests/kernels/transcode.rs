//! GPU transcoders and quantization on load against their CPU references, bit for bit.

use jerboa::format::ggml::GgmlType;
use jerboa::format::{
    self, Encoding, Float, PackedMatrix, PartRole, RowOrder, WeightLayout, WeightSource,
    encoding::rows_cols, quantize,
};
use jerboa::kernels::transcode::{BufferOffset, StoredRows, TranscodeTarget, transcode};
use jerboa::reference::dequant::dequant;
use jerboa_tests::{bytes, gpu, random, run};
use safetensors::SafeTensors;

/// Sizes of a weight's parts in bytes.
type Parts = Vec<(PartRole, Vec<u8>)>;

fn golden(name: &str, case: &str, parts: &[(PartRole, &str)]) -> (Vec<usize>, Parts) {
    let path = format!(
        "{}/golden/quant/{name}/tensors.safetensors",
        env!("CARGO_MANIFEST_DIR")
    );
    let file = std::fs::read(path).expect("golden file");
    let file = SafeTensors::deserialize(&file).expect("safetensors");
    let name = |part: &str| {
        if case.is_empty() {
            part.to_string()
        } else {
            format!("{case}.{part}")
        }
    };
    let get = |part: &str| file.tensor(&name(part)).expect(part);
    let shape = get("expected").shape().to_vec();
    (
        shape,
        parts
            .iter()
            .map(|(role, part)| (*role, get(part).data().to_vec()))
            .collect(),
    )
}

/// Runs both transcoders on the same bytes. The GPU writes after `gap` rows that must stay
/// unchanged, and reads after unrelated bytes.
fn compare(what: &str, source: &WeightSource, parts: &Parts, expected: &PackedMatrix, gap: usize) {
    let (rows, cols) = rows_cols(&source.shape);
    let layout = expected.layout;
    let lead = if matches!(source.encoding, Encoding::Ggml(_)) {
        6
    } else {
        8
    };
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    let mut whole = |role: PartRole| {
        let data = parts.iter().find(|p| p.0 == role).map(|p| p.1.clone())?;
        buffers.push(data);
        Some(buffers.len() - 1)
    };
    let mut table = whole(PartRole::QuantMap);
    let nested = whole(PartRole::NestedMap).zip(whole(PartRole::NestedScales));
    let of = |role: PartRole| parts.iter().find(|p| p.0 == role).map(|p| &p.1);
    // Inputs that the loader prepares.
    if source.encoding == Encoding::Nvfp4 {
        buffers.push(bytes(&format::mxfp4::half_scales(&|role| {
            of(role).map(Vec::as_slice)
        })));
        table = Some(buffers.len() - 1);
    }
    let divided = of(PartRole::Scales)
        .filter(|_| source.encoding == Encoding::Bnb8)
        .map(|b| bytes(&format::bnb::row_scales(b)));
    let scale = parts
        .iter()
        .find(|p| p.0 == PartRole::Scales)
        .and_then(|p| format::bitnet::row_scale(source, &p.1));
    let mut part = |role: PartRole| {
        let data = parts.iter().find(|p| p.0 == role).map(|p| &p.1)?;
        let data = divided
            .as_ref()
            .filter(|_| role == PartRole::Scales)
            .unwrap_or(data);
        buffers.push([&vec![0xa5; lead][..], data].concat());
        Some(BufferOffset {
            buffer: buffers.len() - 1,
            at: lead as u32,
        })
    };
    let weight = part(PartRole::Weight).expect("a weight");
    let scales = part(PartRole::Scales);
    let zeros = part(PartRole::Zeros).or_else(|| part(PartRole::Biases));
    let order = expected.column_order.as_ref().map(|order| {
        buffers.push(bytes(order));
        buffers.len() - 1
    });
    let planes = layout.plane_bytes(rows + gap, cols).map(|n| {
        buffers.push(vec![0; n as usize]);
        buffers.len() - 1
    });
    let from = StoredRows {
        encoding: source.encoding,
        weight,
        scales,
        zeros,
        table,
        nested,
        scale: scale.unwrap_or(0.0),
        row_scales: of(PartRole::Scales).is_some_and(|b| b.len() > 4),
        order,
        first_row: source.first_row as u32,
        rows: rows as u32,
        all_rows: source.stored_rows as u32,
        row_order: source.row_order,
    };
    let s = (!matches!(layout, WeightLayout::Dense(_))).then_some(planes[1]);
    let to = TranscodeTarget {
        layout,
        cols: cols as u32,
        q: planes[0],
        s,
        first_row: gap as u32,
    };
    let launch = transcode(what, &from, &to).unwrap_or_else(|| panic!("{what}: no kernel"));
    let out = run(gpu(), &launch, 1, &buffers);
    for plane in 0..2 {
        // Four of MXFP4's scale bytes share a word, so the test compares bytes.
        let row_bytes = match (layout, plane) {
            (WeightLayout::Mxfp4, 1) => cols / 32,
            (_, 0) => layout.row_words(cols) * 4,
            _ => layout.row_param_words(cols) * 4,
        };
        let (before, found) = out[planes[plane]].split_at(gap * row_bytes);
        assert!(
            before.iter().all(|b| *b == 0),
            "{what}: wrote before its rows"
        );
        let expected = &bytes(&expected.planes[plane])[..rows * row_bytes];
        if let Some(i) = (0..expected.len()).find(|&i| found[i] != expected[i]) {
            panic!(
                "{what}: plane {plane} byte {i}: {:02x} != {:02x}",
                found[i], expected[i]
            );
        }
    }
}

fn check(name: &str, case: &str, encoding: Encoding, wanted: &[(PartRole, &str)]) {
    check_as(name, case, encoding, wanted, None);
}

/// Converts to the layout of the encoding, or to another supported one.
fn check_as(
    name: &str,
    case: &str,
    encoding: Encoding,
    wanted: &[(PartRole, &str)],
    layout: Option<WeightLayout>,
) {
    let (shape, parts) = golden(name, case, wanted);
    let source = WeightSource::new(case, shape, encoding, Vec::new());
    let all = parts
        .iter()
        .fold(format::PartBytes::new(), |all, (role, data)| {
            all.with(*role, data)
        });
    let layout = layout.unwrap_or_else(|| source.layout().expect("a layout"));
    let expected = format::transcode_to(&source, &all, layout).expect("CPU transcoder");
    compare(&format!("{name} {case}"), &source, &parts, &expected, 3);
}

const W: (PartRole, &str) = (PartRole::Weight, "weight");
const S: (PartRole, &str) = (PartRole::Scales, "scales");
const Q: (PartRole, &str) = (PartRole::Weight, "qweight");
const Z: (PartRole, &str) = (PartRole::Zeros, "qzeros");

#[test]
fn mlx() {
    for bits in [2u8, 3, 4, 5, 6, 8] {
        for (group, scale) in [(32, Float::BF16), (64, Float::F16), (128, Float::F32)] {
            let encoding = Encoding::MlxAffine { bits, group, scale };
            check(
                "mlx_affine",
                &format!("b{bits}_g{group}"),
                encoding,
                &[W, S, (PartRole::Biases, "biases")],
            );
        }
    }
}

#[test]
fn gptq_and_awq() {
    for (case, bits, minus_one) in [
        ("b4_sym", 4u8, true),
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
        check(
            "gptq",
            case,
            encoding,
            &[Q, Z, S, (PartRole::GroupIndex, "g_idx")],
        );
    }
    let sym = Encoding::Gptq {
        bits: 4,
        group: 32,
        minus_one: true,
        scale: Float::F16,
    };
    check("gptq", "b4_sym", sym, &[Q, S]);
    for group in [32usize, 64, 128] {
        check(
            "awq",
            &format!("g{group}"),
            Encoding::Awq {
                group,
                scale: Float::F16,
            },
            &[Q, Z, S],
        );
    }
    // A partial last group.
    check(
        "more",
        "awq_tail",
        Encoding::Awq {
            group: 64,
            scale: Float::F16,
        },
        &[Q, Z, S],
    );
    let tail = Encoding::Gptq {
        bits: 4,
        group: 64,
        minus_one: true,
        scale: Float::F16,
    };
    check(
        "more",
        "gptq_tail",
        tail,
        &[Q, Z, S, (PartRole::GroupIndex, "g_idx")],
    );
}

#[test]
fn mlc_and_compressed_tensors() {
    for (case, transposed) in [("q4f16_1", false), ("q4f16_0", true)] {
        let parts = [
            (PartRole::Weight, "q_weight"),
            (PartRole::Scales, "q_scale"),
        ];
        check(
            "mlc",
            case,
            Encoding::Mlc {
                transposed,
                scale: Float::F16,
            },
            &parts,
        );
    }
    for (case, scale) in [("q4f32_1", Float::BF16), ("q4f32_1_raw", Float::F32)] {
        let parts = [
            (PartRole::Weight, "q_weight"),
            (PartRole::Scales, "q_scale"),
        ];
        check(
            "more",
            case,
            Encoding::Mlc {
                transposed: false,
                scale,
            },
            &parts,
        );
    }
    let packed = |bits, group| Encoding::PackQuantized {
        bits,
        group,
        stream: true,
        scale: Float::BF16,
    };
    let parts = [
        (PartRole::Weight, "weight_packed"),
        (PartRole::Scales, "weight_scale"),
    ];
    let zeros = [parts[0], parts[1], (PartRole::Zeros, "weight_zero_point")];
    check("more", "ct4_sym", packed(4, 32), &parts);
    check("more", "ct4_asym", packed(4, 64), &zeros);
    check("more", "ct8_row", packed(8, 192), &parts);
    check("more", "ct3_dense", packed(3, 32), &zeros);
    for bits in [2, 5, 6] {
        check("more", &format!("ct{bits}"), packed(bits, 64), &zeros);
    }
    check(
        "more",
        "ct4_order",
        packed(4, 32),
        &[parts[0], parts[1], (PartRole::GroupIndex, "weight_g_idx")],
    );
}

#[test]
fn gguf() {
    use GgmlType as G;
    let plain = [G::F16, G::BF16, G::Q4_0, G::Q4_1, G::Q5_0, G::Q5_1, G::Q8_0];
    let nested = [
        G::Q2_K,
        G::Q3_K,
        G::Q4_K,
        G::Q5_K,
        G::Q6_K,
        G::IQ4_NL,
        G::IQ4_XS,
        G::TQ1_0,
        G::TQ2_0,
        G::MXFP4,
    ];
    for kind in plain.into_iter().chain(nested) {
        check(
            "gguf_blocks",
            kind.name(),
            Encoding::Ggml(kind),
            &[(PartRole::Weight, "blocks")],
        );
    }
}

#[test]
fn bitnet() {
    let parts = [W, (PartRole::Scales, "weight_scale")];
    for divide in [false, true] {
        check_as(
            "bitnet_ternary",
            "",
            Encoding::BitNet {
                divide,
                scale: Float::BF16,
            },
            &parts,
            None,
        );
    }
    check_as(
        "bitnet_ternary",
        "",
        Encoding::Ggml(GgmlType::I2S),
        &[(PartRole::Weight, "i2_s_x86")],
        None,
    );
}

#[test]
fn nibbles_and_bytes() {
    check("mlx_fp", "mxfp4", Encoding::MlxMxfp4, &[W, S]);
    check("mlx_fp", "nvfp4", Encoding::Nvfp4, &[W, S]);
    check(
        "mxfp4_gpt_oss",
        "",
        Encoding::Mxfp4Blocks,
        &[
            (PartRole::Weight, "w_blocks"),
            (PartRole::Scales, "w_scales"),
        ],
    );
    let packed = [
        (PartRole::Weight, "weight_packed"),
        (PartRole::Scales, "weight_scale"),
    ];
    check(
        "more",
        "nvfp4",
        Encoding::Nvfp4,
        &[
            packed[0],
            packed[1],
            (PartRole::GlobalScale, "weight_global_scale"),
        ],
    );
    let bytes = [W, (PartRole::Scales, "weight_scale")];
    check(
        "more",
        "int8_row",
        Encoding::Int8 { scale: Float::F32 },
        &bytes,
    );
    check(
        "more",
        "int8_tensor",
        Encoding::Int8 { scale: Float::F32 },
        &bytes,
    );
    check(
        "more",
        "llm_int8",
        Encoding::Bnb8,
        &[W, (PartRole::Scales, "SCB")],
    );
}

/// FP8 and bitsandbytes' 4 bits, to every unquantized type.
#[test]
fn fp8_and_nf4() {
    for to in [Float::BF16, Float::F16, Float::F32] {
        let to = Some(WeightLayout::Dense(to));
        check_as("mlx_fp", "mxfp8", Encoding::MlxMxfp8, &[W, S], to);
        for (case, block, scale, name) in [
            ("fp8_block", (8, 16), Float::F32, "weight_scale_inv"),
            ("fp8_row", (1, 48), Float::BF16, "weight_scale"),
            ("fp8_tensor", (20, 48), Float::F32, "weight_scale"),
        ] {
            check_as(
                "more",
                case,
                Encoding::Fp8 {
                    block,
                    divide: false,
                    scale,
                },
                &[W, (PartRole::Scales, name)],
                to,
            );
        }
        let four_bit = |nested_block, nested_offset| Encoding::Bnb4 {
            block: 64,
            nested_block,
            nested_offset,
            dtype: Float::F16,
        };
        let mut parts = vec![
            W,
            (PartRole::Scales, "absmax"),
            (PartRole::QuantMap, "quant_map"),
        ];
        check_as("more", "nf4", four_bit(None, 0.0), &parts, to);
        parts.extend([
            (PartRole::NestedScales, "nested_absmax"),
            (PartRole::NestedMap, "nested_quant_map"),
        ]);
        check_as("more", "nf4_nested", four_bit(Some(4), 0.875), &parts, to);
    }
}

/// Unquantized types, with a shape that no block divides, converted to each other.
#[test]
fn dense() {
    let rows = 70;
    let cols = 45;

    let mut values = random(5, rows * cols);
    values[..6].copy_from_slice(&[0.0, -0.0, 65519.9, 70000.0, 6.1e-8, -1e-5]);
    for from in [Float::F16, Float::BF16, Float::F32] {
        let data = encode(&values, from);
        for to in [Float::F16, Float::BF16, Float::F32] {
            let apart = RowOrder::Grouped {
                groups: 10,
                group_rows: [2, 1, 4, 0],
            };
            for row_order in [
                RowOrder::Stored,
                RowOrder::Interleaved { head_rows: 14 },
                apart,
            ] {
                let mut source =
                    WeightSource::new("dense", vec![rows, cols], Encoding::Dense(from), Vec::new());
                source.row_order = row_order;
                let mut expected = PackedMatrix::zeros(WeightLayout::Dense(to), rows, cols);
                for row in 0..rows {
                    for col in 0..cols {
                        let i = row_order.stored_row(row) * cols + col;
                        expected.set_dense(row, col, from.get(&data, i).expect("in range"));
                    }
                }
                let parts = vec![(PartRole::Weight, data.clone())];
                compare(
                    &format!("{} to {}", from.name(), to.name()),
                    &source,
                    &parts,
                    &expected,
                    2,
                );
            }
        }
    }
}

fn encode(values: &[f32], float: Float) -> Vec<u8> {
    values
        .iter()
        .flat_map(|v| float.to_bits(*v).to_le_bytes()[..float.bytes()].to_vec())
        .collect()
}

#[test]
fn quantize_on_load() {
    let rows = 37;
    let cols = 77;

    for bits in [4u8, 8] {
        for from in [Float::F16, Float::BF16, Float::F32] {
            let mut values: Vec<f32> = random(u64::from(bits), rows * cols)
                .iter()
                .map(|v| v * v * v * 0.1)
                .collect();
            values[..40].fill(0.125);
            values[cols..cols + 4].copy_from_slice(&[1e6, -3.0, 1e-7, 0.0]);
            values[2 * cols..2 * cols + 32]
                .iter_mut()
                .for_each(|v| *v *= 1e-6);
            let data = encode(&values, from);

            let expected = quantize::quantize(bits, rows, cols, |row: usize, col: usize| {
                from.get(&data, row * cols + col).expect("in range")
            });
            let source = WeightSource::new(
                "quantize",
                vec![rows, cols],
                Encoding::Dense(from),
                Vec::new(),
            );
            let parts = vec![(PartRole::Weight, data.clone())];
            compare(
                &format!("{} to q{bits}", from.name()),
                &source,
                &parts,
                &expected,
                1,
            );
        }
    }
}

/// Edge cases of the scale search, with widths that are no multiple of 32. The GPU's bits equal the
/// reference's, every value is finite, and each error is at most a step of its block plus the f16
/// rounding of its scale and offset.
#[test]
fn edge_case_blocks_are_quantized() {
    let noise = random(77, 32);
    let block = |kind: usize, i: usize| match kind {
        0 => 0.0,
        1 => -0.75,
        // One outlier among small numbers, at either end, and numbers of one sign far from zero.
        2 => {
            if i == 5 {
                900.0
            } else {
                noise[i] * 0.01
            }
        }
        3 => {
            if i == 31 {
                -3.0
            } else {
                0.001 * noise[i].abs()
            }
        }
        4 => 100.0 + noise[i] * 0.5,
        // Below the smallest normal f16, and below all f16.
        5 => noise[i] * 3e-6,
        6 => noise[i] * 1e-9,
        7 => noise[i] * 1e-41,
        // The whole range of f16 and beyond.
        8 => noise[i] * 65504.0,
        9 => {
            if i.is_multiple_of(2) {
                f32::INFINITY
            } else {
                f32::NEG_INFINITY
            }
        }
        // Two values, and the 16 values of a grid, as in a checkpoint that was quantized before.
        10 => {
            if i < 9 {
                0.25
            } else {
                -1.5
            }
        }
        11 => (i % 16) as f32 * 0.125 - 1.0,
        _ => noise[i] * noise[i] * noise[i],
    };
    for cols in [1usize, 7, 31, 32, 33, 95] {
        let rows = 13;
        let value = |row: usize, col: usize| block(row, (col + row) % 32);
        let values: Vec<f32> = (0..rows * cols)
            .map(|i| value(i / cols, i % cols))
            .collect();
        for bits in [4u8, 8] {
            let expected = quantize::quantize(bits, rows, cols, value);
            let source = WeightSource::new(
                "awkward",
                vec![rows, cols],
                Encoding::Dense(Float::F32),
                Vec::new(),
            );
            let parts = vec![(PartRole::Weight, encode(&values, Float::F32))];
            compare(
                &format!("{cols} columns to q{bits}"),
                &source,
                &parts,
                &expected,
                1,
            );
            let plain = dequant(&expected);
            for (row, kept) in plain.chunks_exact(cols).enumerate() {
                for (start, kept) in kept.chunks(32).enumerate() {
                    let x: Vec<f32> = (0..kept.len())
                        .map(|i| value(row, start * 32 + i).clamp(-65504.0, 65504.0))
                        .collect();
                    let (low, high) = x
                        .iter()
                        .fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
                    // A subnormal scale is rounded up by less than 2^-24, an offset by half of
                    // that.
                    let underflow = 2f32.powi(-24);
                    let rounding = low.abs().max(high - low) / 1024.0 + underflow;
                    let limit = (high - low) * quantize::quantization_step(bits) * 1.01 + rounding;
                    for (v, k) in x.iter().zip(kept) {
                        assert!(
                            k.is_finite() && (v - k).abs() <= limit,
                            "q{bits}, row {row} of {cols}: {v} is {k}"
                        );
                    }
                }
            }
        }
    }
}

/// The search is effective: its error is below that of each group's minimum and maximum.
#[test]
fn quantization_error() {
    let rows = 64;
    let cols = 256;

    let uniform = random(9, rows * cols * 4);
    let values: Vec<f32> = uniform
        .chunks_exact(4)
        .map(|c| c.iter().sum::<f32>() * 0.05)
        .collect();
    for (bits, limit) in [(4u8, 0.005), (8, 2.2e-5)] {
        let packed = quantize::quantize(bits, rows, cols, |r, c| values[r * cols + c]);
        let mut plain = PackedMatrix::zeros(quantize::layout(bits), rows, cols);
        for row in 0..rows {
            for block in 0..cols / 32 {
                let x = &values[row * cols + block * 32..][..32];
                let (low, high) = x
                    .iter()
                    .fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
                let scale = (high - low) * quantize::quantization_step(bits);
                plain.set_pair(row, block, (scale, low));
                plain.set_codes(
                    row,
                    block,
                    &std::array::from_fn(|i| ((x[i] - low) / scale).round() as u8),
                );
            }
        }
        let error = |m: &PackedMatrix| jerboa_tests::nmse(&dequant(m), &values);
        assert!(
            error(&packed) < error(&plain) && error(&packed) < limit,
            "{bits} bits: {} {}",
            error(&packed),
            error(&plain)
        );
    }
}
