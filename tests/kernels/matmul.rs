//! GEMV and GEMM for every weight layout.

use jerboa::device::{MatrixDialect, SubgroupMatrix};
use jerboa::format::ggml::GgmlType;
use jerboa::format::layout::{AffineForm, Float, PackedMatrix, WeightLayout};
use jerboa::gpu::{Backend, Caps, DeviceOptions, Gpu, VariantOverride};
use jerboa::kernels::matmul::{
    GemmTiling, Matmul, NormPrologue, QuantizeInputs, View, WeightPlanes,
};
use jerboa::kernels::registry::{Kernel, tunable_constants};
use jerboa::reference::dequant::dequant;
use jerboa::reference::matmul as reference;
use jerboa::reference::norm::round_to_int8;
use jerboa_tests::{bytes, floats, gpu, nmse, number, open, random, run_all};

/// A packed random matrix and its dequantized values.
pub(super) fn weights(
    layout: WeightLayout,
    n: usize,
    k: usize,
    seed: u64,
) -> (PackedMatrix, Vec<f32>) {
    let mut packed = PackedMatrix::zeros(layout, n, k);
    let values = random(seed, n * k);
    let mut exact = vec![0.0; n * k];
    if let WeightLayout::Dense(float) = layout {
        for (i, v) in values.iter().enumerate() {
            packed.set_dense(i / k, i % k, *v);
            exact[i] = float.from_bits(float.to_bits(*v));
        }
        return (packed, exact);
    }
    let WeightLayout::Affine {
        bits, group, form, ..
    } = layout
    else {
        fill(&mut packed, seed);
        let exact = dequant(&packed);
        return (packed, exact);
    };
    let group = usize::from(group);
    for row in 0..n {
        for g in 0..packed.layout.padded_cols(k).div_ceil(group) {
            let r = [0, 1].map(|place| number(seed + (row * 1000 + g) as u64 + 7, place));
            let second = if form == AffineForm::Zero {
                (r[1] * 3.0 + 4.0).round()
            } else {
                r[1] * 0.5
            };
            packed.set_pair(row, g, (r[0] * 0.1 + 0.15, second));
        }
        for block in 0..packed.layout.padded_cols(k) / 32 {
            let codes: [u8; 32] = std::array::from_fn(|i| {
                let v = number(seed + (row * 7919 + block * 32 + i) as u64, 0);
                (((v + 1.0) * 0.5 * f32::from((1u16 << bits) - 1)) as u32) as u8
            });
            packed.set_codes(row, block, &codes);
            for (i, code) in codes.iter().enumerate().filter(|(i, _)| block * 32 + i < k) {
                let (s, b) = packed.pair(row, (block * 32 + i) / group);
                let q = f32::from(*code);
                exact[row * k + block * 32 + i] = if form == AffineForm::Zero {
                    (q - b) * s
                } else {
                    q * s + b
                };
            }
        }
    }
    (packed, exact)
}

/// Random codes and sensible scales for layouts with their own kind of scales.
fn fill(packed: &mut PackedMatrix, seed: u64) {
    let word = |i: usize, seed: u64| (number(seed + i as u64, 1) * 8_388_608.0) as i32 as u32;
    let layout = packed.layout;
    for (i, w) in packed.planes[0].iter_mut().enumerate() {
        *w = word(i, seed) << 16 ^ word(i, seed + 1000);
        if layout == WeightLayout::Ternary {
            // The code 3 is unused.
            *w &= !(*w >> 1 & 0x5555_5555);
        }
    }
    for (i, w) in packed.planes[1].iter_mut().enumerate() {
        let random = word(i, seed + 2000);
        *w = match layout {
            WeightLayout::Ternary => (0.05 + (random & 15) as f32 * 0.01).to_bits(),
            WeightLayout::Mxfp4 => 0x7b7a_7c79 + (random & 0x0303_0303),
            // f16 scales of about 0.001 precede the bytes.
            _ if i % 5 == 0 => 0x1400_1600 + (random & 0x00ff_00ff),
            WeightLayout::Q4K => random & 0x3f3f_3f3f,
            _ => random,
        };
    }
}

pub(super) fn layouts() -> Vec<WeightLayout> {
    let mut all = vec![
        WeightLayout::Dense(Float::F32),
        WeightLayout::Dense(Float::F16),
        WeightLayout::Dense(Float::BF16),
    ];
    let forms = [
        (32, AffineForm::Bias, Float::F16),
        (64, AffineForm::Zero, Float::BF16),
        (128, AffineForm::Bias, Float::F32),
        (16, AffineForm::Zero, Float::F16),
    ];
    all.extend([
        WeightLayout::Q4K,
        WeightLayout::Q6K,
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
    ]);
    // Every width, and every kind of scale and offset with the most common width.
    for (i, bits) in [4u8, 4, 4, 4, 8, 2, 3, 5, 6].into_iter().enumerate() {
        let (group, form, scale) = forms[i % 4];
        all.push(WeightLayout::Affine {
            bits,
            group,
            form,
            scale,
        });
    }
    all
}

/// 4 bits as quantized on load.
fn affine() -> WeightLayout {
    affine_of(4, 32, AffineForm::Bias, Float::F16)
}

fn affine_of(bits: u8, group: u16, form: AffineForm, scale: Float) -> WeightLayout {
    WeightLayout::Affine {
        bits,
        group,
        form,
        scale,
    }
}

struct Case {
    gated: bool,
    norm: bool,
    round: bool,
    bias: bool,
    residual: bool,
    /// Whether the matmul's result is multiplied elementwise.
    times: bool,
    gemm: bool,
    /// Whether the GEMM quantizes its input to 8 bits.
    packed: bool,
    /// Whether the GEMV does, for several rows.
    batch: bool,
    softcap: f32,
    /// Rows and columns of a tile and the number of workgroups; `None` leaves the choice to the
    /// engine.
    tiles: Option<(u32, u32, u32)>,
}

/// Runs one matmul and its CPU reference; returns the normalized mean square error. Subgroup
/// matrices, which may multiply f16, have their own tests.
fn check(gpu: &Gpu, layout: WeightLayout, rows: usize, n: usize, k: usize, case: &Case) -> f64 {
    check_as(
        gpu,
        &Caps {
            matrix: None,
            ..gpu.caps().clone()
        },
        layout,
        [rows, n, k],
        case,
    )
}

/// As above, with kernels chosen for a device of these capabilities.
fn check_as(
    gpu: &Gpu,
    caps: &Caps,
    layout: WeightLayout,
    [rows, n, k]: [usize; 3],
    case: &Case,
) -> f64 {
    let total = if case.gated { 2 * n } else { n };
    let (packed, w) = weights(layout, total, k, 11 + k as u64);
    let stride = k.next_multiple_of(4);
    let mut x = random(3, rows * stride);
    let gain = random(5, k.next_multiple_of(4));
    let bias = random(6, total);
    let residual = random(8, rows * n);

    // Padding between K and the stride must not matter.
    for row in x.chunks_exact_mut(stride) {
        row[k..].fill(f32::NAN);
    }
    let s = (!packed.planes[1].is_empty()).then_some(2);
    let view = |buffer, stride: usize| View {
        buffer,
        offset: 0,
        stride: stride as u32,
    };
    let weight = WeightPlanes {
        layout,
        rows: total as u32,
        cols: k as u32,
        q: 1,
        s,
    };
    let mut m = Matmul::plain("test", weight, view(0, stride), view(3, n));
    m.n = n as u32;
    m.bias = case.bias.then_some(4);
    m.residual = case.residual.then(|| view(5, n));
    m.multiply = case.times;
    m.norm = case.norm.then_some(NormPrologue {
        gain: 6,
        offset: 1.0,
        eps: 1e-5,
    });
    m.gated = case.gated.then_some(n as u32);
    m.quantize = case.round;
    m.batch = case.batch;
    assert!(
        !case.round || m.quantizes_input(caps, rows),
        "{layout} {rows}x{n}x{k}: not rounded"
    );
    m.act = if case.gated { 1 } else { 0 };
    m.softcap = case.softcap;
    let mut choice = GemmTiling::of(caps, &m, rows);
    if let Some((bm, bn, target)) = case.tiles {
        choice = GemmTiling {
            bm,
            bn,
            target,
            max_per_tile: 8,
            ..choice
        };
    }
    let wide = matches!(layout, WeightLayout::Affine { group: 64.., .. });
    let x_group = if wide { 64 } else { 32 };
    let quantized = case.packed.then(|| {
        m.quantized_rows(caps, rows, QuantizeInputs::Always)
            .expect("weights of 4 or 8 bits")
            .with_group(x_group)
    });
    let (parts, launches) = match case.gemm {
        true if case.packed => {
            let mut choice = GemmTiling::packed(caps, &m, rows);
            if let Some((bm, _, target)) = case.tiles {
                choice = GemmTiling {
                    bm,
                    target,
                    max_per_tile: 8,
                    ..choice
                };
            }
            (
                m.parts_bytes(rows as u32, choice),
                m.gemm_packed(7, (9, quantized.expect("its form")), 8, choice),
            )
        }
        true if caps.subgroup_matrix().is_some() => m.prefill(caps, rows, 7, 8, None),
        true => (m.parts_bytes(rows as u32, choice), m.gemm(7, 8, choice)),
        false => (0, [m.gemv(caps, rows, 7), m.gemv(caps, rows, 7)]),
    };
    let mut launches = if case.gemm {
        launches.to_vec()
    } else {
        launches[..1].to_vec()
    };
    if let Some(form) = quantized {
        launches.insert(0, form.launch("test", &m.x, k as u32, 7, 9));
    }
    let input_bytes = quantized.map_or(16, |form| form.bytes(rows));
    let state = [0u32, rows as u32, 0, 0, 0, 0, 0, 0];
    let poison = vec![f32::NAN; rows * n];
    let buffers = [
        bytes(&x),
        bytes(&packed.planes[0]),
        bytes(&packed.planes[1]),
        bytes(&poison),
        bytes(&bias),
        bytes(&residual),
        bytes(&gain),
        bytes(&state),
        vec![0xa5; parts.max(16) as usize],
        vec![0xa5; input_bytes as usize],
    ];
    let found = floats(&run_all(gpu, &launches, rows as u32, &buffers)[3]);

    let dense: Vec<f32> = x
        .chunks_exact(stride)
        .flat_map(|r| r[..k].to_vec())
        .collect();
    let input = if case.norm {
        reference::rms_norm(&dense, &gain[..k], 1.0, 1e-5)
    } else {
        dense
    };
    let input = if case.round {
        round_to_int8(&input, k)
    } else {
        input
    };
    let input = match case {
        Case { packed: true, .. } => round_groups_to_int8(&input, k, x_group as usize),
        Case { batch: true, .. } => round_groups_to_int8(&input, k, 32),
        _ => input,
    };
    let matmul = reference::matmul(&input, &w, rows, total, k);
    let mut expected = Vec::new();
    for r in 0..rows {
        for c in 0..n {
            let at = |c: usize| matmul[r * total + c] + if case.bias { bias[c] } else { 0.0 };
            let y = if case.gated {
                reference::activate(1, at(c)) * at(c + n)
            } else {
                at(c)
            };
            let y = if case.softcap > 0.0 {
                case.softcap * (y / case.softcap).tanh()
            } else {
                y
            };
            let other = residual[r * n + c];
            expected.push(match (case.residual, case.times) {
                (true, true) => y * other,
                (true, false) => y + other,
                _ => y,
            });
        }
    }
    nmse(&found[..rows * n], &expected)
}

const PLAIN: Case = Case {
    gated: false,
    norm: false,
    round: false,
    bias: false,
    residual: false,
    times: false,
    gemm: false,
    packed: false,
    batch: false,
    softcap: 0.0,
    tiles: None,
};

#[test]
fn gemv_matches_reference_in_every_layout() {
    for layout in layouts() {
        for (rows, n, k) in [(1, 5, 33), (3, 37, 172), (1, 9, 1030)] {
            let error = check(gpu(), layout, rows, n, k, &PLAIN);
            assert!(error < 1e-10, "{layout} {rows}x{n}x{k}: {error:e}");
        }
    }
}

#[test]
fn gemv_fuses_norm_bias_gate_and_residual() {
    for layout in [WeightLayout::Dense(Float::BF16), affine()] {
        for bits in 0..24 {
            let case = Case {
                gated: bits & 1 > 0,
                norm: bits & 2 > 0,
                bias: bits & 4 > 0,
                residual: bits & 24 > 0,
                times: bits & 16 > 0,
                ..PLAIN
            };
            let error = check(gpu(), layout, 2, 21, 76, &case);
            assert!(error < 1e-10, "{layout} {bits:#b}: {error:e}");
        }
    }
}

#[test]
fn gemv_without_subgroups_matches_reference() {
    let gpu = open(&DeviceOptions {
        subgroups: false,
        ..Default::default()
    });
    for layout in layouts() {
        let case = Case {
            norm: true,
            residual: true,
            ..PLAIN
        };
        let error = check(&gpu, layout, 2, 19, 200, &case);
        assert!(error < 1e-10, "{layout}: {error:e}");
    }
}

#[test]
fn gemv_handles_several_rows_at_once() {
    let plain = open(&DeviceOptions {
        subgroups: false,
        ..Default::default()
    });
    for gpu in [gpu(), &plain] {
        for rows in 1..10 {
            for case in [
                Case {
                    norm: true,
                    residual: true,
                    ..PLAIN
                },
                Case {
                    gated: true,
                    norm: true,
                    ..PLAIN
                },
            ] {
                let error = check(gpu, affine(), rows, 37, 296, &case);
                assert!(error < 1e-10, "{rows} rows: {error:e}");
            }
        }
    }
}

/// Whole blocks of weights: every layout and every arithmetic, K in one pass and in several, with
/// every epilogue. Packed int8 activations cost as much as f16, codes in the mantissa slightly
/// less.
#[test]
fn gemv_blocks_matches_reference() {
    let layouts = [
        affine_of(4, 32, AffineForm::Bias, Float::F16),
        affine_of(4, 64, AffineForm::Zero, Float::BF16),
        affine_of(4, 128, AffineForm::Bias, Float::F32),
        affine_of(8, 32, AffineForm::Bias, Float::F16),
        affine_of(8, 64, AffineForm::Zero, Float::F32),
        WeightLayout::Q4K,
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
    ];
    // The other layouts differ only in their arithmetic.
    let kinds = [layouts[0], layouts[3], WeightLayout::Q4K];
    let mut bits = 0usize;
    for layout in layouts {
        // RUNS reads the KV splits of attention, which this graph does not have.
        let own = |name: &str| name == "DOT" || (name != "KV_SPLITS" && kinds.contains(&layout));
        for (name, values) in tunable_constants(Kernel::GemvBlocks).filter(|(name, _)| own(name)) {
            for (value, max_invocations) in values.iter().zip([1024, 64, 1024]) {
                let force = Some(VariantOverride {
                    kernel: Kernel::GemvBlocks,
                    name,
                    value: *value,
                });
                let caps = Caps {
                    force,
                    max_invocations,
                    ..gpu().caps().clone()
                };
                for several in [false, true] {
                    bits += 1;
                    let (n, k) =
                        [(5, 33), (75, 1030), (2100, 172), (40, 4356)][(bits + bits / 4) % 4];
                    let rows = if several { 2 + bits % 5 } else { 1 };
                    let case = Case {
                        gated: bits & 2 > 0,
                        norm: bits & 4 > 0,
                        bias: bits & 8 > 0,
                        residual: bits & 16 > 0,
                        times: bits.is_multiple_of(3),
                        softcap: if bits & 32 > 0 { 30.0 } else { 0.0 },
                        ..PLAIN
                    };
                    let error = check_as(gpu(), &caps, layout, [rows, n, k], &case);
                    let packed = caps.constant_or_forced(
                        Kernel::GemvBlocks,
                        "DOT",
                        caps.uses_packed_dot(layout).into(),
                    ) == 1;
                    let limit = if packed { 1e-7 } else { 1e-8 };
                    assert!(
                        error < limit,
                        "{name} = {value}, {layout} {rows}x{n}x{k} {bits:#b}: {error:e}"
                    );
                }
            }
        }
    }
}

/// Rows of x, or their norms, rounded to 8 bits: the limit allows for a few values halfway between
/// two steps.
#[test]
fn gemv_blocks_rounds_activations() {
    let affine = WeightLayout::Affine {
        bits: 8,
        group: 64,
        form: AffineForm::Zero,
        scale: Float::F32,
    };
    for (index, layout) in [WeightLayout::Ternary, affine].into_iter().enumerate() {
        for (value, rows, n, k) in [
            (0, 1, 37, 1030),
            (1, 1, 2100, 172),
            (1, 3, 75, 2560),
            (1, 1, 5, 33),
        ] {
            let force = Some(VariantOverride {
                kernel: Kernel::GemvBlocks,
                name: "DOT",
                value,
            });
            let caps = Caps {
                force,
                max_invocations: 1024,
                ..gpu().caps().clone()
            };
            let norm = rows + index != 1;
            let case = Case {
                gated: n == 75,
                norm,
                round: true,
                residual: n > 37,
                bias: index == 0,
                ..PLAIN
            };
            let error = check_as(gpu(), &caps, layout, [rows, n, k], &case);
            assert!(
                error < 1e-6,
                "{layout} {rows}x{n}x{k}, DOT = {value}: {error:e}"
            );
        }
    }
}

/// Rows of a batch in 8 bits: every layout, two to nine rows, K in one pass and in several, with every
/// epilogue, with much workgroup memory and with little.
#[test]
fn gemv_blocks_quantizes_the_rows_of_a_batch() {
    let layouts = [
        affine_of(4, 32, AffineForm::Bias, Float::F16),
        affine_of(4, 64, AffineForm::Zero, Float::BF16),
        affine_of(8, 32, AffineForm::Bias, Float::F16),
        WeightLayout::Q4K,
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
    ];
    let shapes = [(5, 33), (75, 1030), (2100, 172), (40, 4356)];
    for (bits, rows) in (0..16).zip([8, 3, 2, 5, 9, 4, 7].into_iter().cycle()) {
        let layout = layouts[bits % layouts.len()];
        let (n, k) = shapes[(bits + bits / 4) % shapes.len()];
        let caps = Caps {
            force: Some(VariantOverride {
                kernel: Kernel::GemvBlocks,
                name: "DOT",
                value: 1,
            }),
            max_invocations: [1024, 64][bits / 2 % 2],
            max_workgroup_storage: [64 << 10, 16 << 10][bits / 3 % 2],
            ..gpu().caps().clone()
        };
        let case = Case {
            batch: true,
            gated: bits & 1 > 0,
            norm: bits & 2 > 0,
            bias: bits & 4 > 0,
            residual: bits & 8 > 0,
            times: bits.is_multiple_of(3),
            softcap: if bits & 12 == 12 { 30.0 } else { 0.0 },
            ..PLAIN
        };
        let error = check_as(gpu(), &caps, layout, [rows, n, k], &case);
        assert!(error < 1e-6, "{layout} {rows}x{n}x{k} {bits:#b}: {error:e}");
    }
}

/// The result is the same for every tuning choice: wide and narrow weights, one row of x and
/// several.
#[test]
fn every_tiling_gives_the_same_result() {
    for kernel in [Kernel::Gemv, Kernel::Gemm] {
        for (name, values) in tunable_constants(kernel) {
            for value in values {
                let force = Some(VariantOverride {
                    kernel,
                    name,
                    value: *value,
                });
                let caps = Caps {
                    force,
                    matrix: None,
                    ..gpu().caps().clone()
                };
                for (layout, rows) in [(WeightLayout::Dense(Float::F16), 1), (affine(), 3)] {
                    let case = Case {
                        norm: kernel == Kernel::Gemv,
                        residual: true,
                        gemm: kernel == Kernel::Gemm,
                        ..PLAIN
                    };
                    let error = check_as(gpu(), &caps, layout, [rows, 75, 300], &case);
                    assert!(
                        error < 1e-10,
                        "{} {name} = {value}, {layout}: {error:e}",
                        kernel.name()
                    );
                }
            }
        }
    }
}

#[test]
fn gemm_matches_reference_in_every_layout() {
    for layout in layouts() {
        for (rows, n, k) in [(1, 5, 33), (65, 70, 100)] {
            let error = check(
                gpu(),
                layout,
                rows,
                n,
                k,
                &Case {
                    gemm: true,
                    ..PLAIN
                },
            );
            assert!(error < 1e-10, "{layout} {rows}x{n}x{k}: {error:e}");
        }
    }
}

/// Every tile size, in one workgroup and split over K.
#[test]
fn gemm_tiles_of_every_size_match_reference() {
    let tiles = [
        (32, 64),
        (64, 64),
        (32, 128),
        (64, 128),
        (128, 64),
        (128, 128),
        (32, 64),
        (32, 128),
    ];
    for (bits, (bm, bn)) in (0..8).zip(tiles) {
        for target in [1, 7, 64] {
            let case = Case {
                gated: bits & 1 > 0,
                bias: bits & 2 > 0,
                residual: bits & 4 > 0,
                times: target == 7,
                gemm: true,
                tiles: Some((bm, bn, target)),
                ..PLAIN
            };
            let error = check(gpu(), affine(), 66, 45, 300, &case);
            assert!(
                error < 1e-10,
                "{bm}x{bn} for {target} groups, {bits:#b}: {error:e}"
            );
        }
    }
    for layout in layouts() {
        let case = Case {
            gemm: true,
            tiles: Some((64, 64, 16)),
            ..PLAIN
        };
        let error = check(gpu(), layout, 70, 130, 1000, &case);
        assert!(error < 1e-10, "{layout}: {error:e}");
    }
}

/// Subgroup matrices, emulated on devices without them (slow to compile): every layout with real
/// ones, else one of each kind; every tile height, f16 and f32, matrices of 16x16 and 8x8, with
/// every epilogue, in one workgroup and split over K.
#[test]
fn subgroup_matrices_match_reference() {
    let device = gpu().caps();
    let emulated_units = |side, half| SubgroupMatrix {
        side,
        half: half && device.f16,
        lanes: 32,
        words: MatrixDialect::Emulated,
    };
    let forced = |units, value| {
        let force = Some(VariantOverride {
            kernel: Kernel::GemmMatrix,
            name: "BM",
            value,
        });
        Caps {
            matrix: device.matrix.or(Some(units)),
            force,
            max_invocations: 256,
            ..device.clone()
        }
    };
    let kinds = [WeightLayout::Dense(Float::F16), WeightLayout::Q6K, affine()];
    for layout in layouts()
        .into_iter()
        .filter(|layout| device.matrix.is_some() || kinds.contains(layout))
    {
        let caps = forced(emulated_units(16, true), 32);
        let error = check_as(
            gpu(),
            &caps,
            layout,
            [33, 70, 172],
            &Case {
                gemm: true,
                ..PLAIN
            },
        );
        assert!(error < 1e-6, "{layout}: {error:e}");
    }
    // Small tiles read a longer part of K at a time, if K allows.
    let error = check_as(
        gpu(),
        &forced(emulated_units(16, true), 32),
        affine(),
        [33, 70, 192],
        &Case {
            gemm: true,
            ..PLAIN
        },
    );
    assert!(error < 1e-6, "K of 192: {error:e}");
    for (bits, (bm, side)) in [(64, 16), (32, 8), (128, 16), (64, 8), (256, 16)]
        .into_iter()
        .enumerate()
    {
        let units = emulated_units(side, bits % 2 == 0);
        let caps = Caps {
            vendor: if bits % 2 == 0 {
                "nvidia".into()
            } else {
                String::new()
            },
            ..forced(units, bm)
        };
        let case = Case {
            gated: bits & 1 > 0,
            bias: bits & 2 > 0,
            residual: bits & 4 > 0,
            softcap: if bits == 3 { 500.0 } else { 0.0 },
            gemm: true,
            ..PLAIN
        };
        let error = check_as(gpu(), &caps, affine(), [130, 75, 1000], &case);
        let limit = if caps.subgroup_matrix().is_some_and(|units| units.half) {
            1e-6
        } else {
            1e-10
        };
        assert!(error < limit, "{bm} rows, {units:?}, {bits:#b}: {error:e}");
    }
}

/// Rows in groups of elements, each a multiple of its group's largest magnitude over 127.
fn round_groups_to_int8(x: &[f32], k: usize, size: usize) -> Vec<f32> {
    let round = |group: &[f32]| {
        let scale = group.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 127.0;
        let inverse = 1.0 / scale.max(1e-35);
        group
            .iter()
            .map(|v| (v * inverse).round_ties_even() * scale)
            .collect::<Vec<_>>()
    };
    x.chunks(k)
        .flat_map(|row| row.chunks(size).flat_map(round).collect::<Vec<_>>())
        .collect()
}

/// The GEMM on packed 8-bit dot products in every layout that it reads and every tile height, with
/// every epilogue, in one workgroup and split over K, also for an odd number of blocks.
#[test]
fn packed_gemm_matches_reference() {
    let forced = |value| Caps {
        force: Some(VariantOverride {
            kernel: Kernel::GemmPacked,
            name: "BM",
            value,
        }),
        matrix: None,
        ..gpu().caps().clone()
    };
    let reads = |layout: &WeightLayout| {
        matches!(
            layout,
            WeightLayout::Affine {
                bits: 4 | 8,
                group: 32..,
                ..
            } | WeightLayout::Q4K
                | WeightLayout::Mxfp4
        )
    };
    let layouts: Vec<_> = layouts().into_iter().filter(reads).collect();
    assert!(layouts.len() > 5, "{}", layouts.len());
    let case = Case {
        gemm: true,
        packed: true,
        ..PLAIN
    };
    for layout in layouts {
        for (bm, shape) in [(32, [1, 5, 33]), (64, [65, 70, 100]), (64, [70, 130, 1000])] {
            let error = check_as(gpu(), &forced(bm), layout, shape, &case);
            assert!(error < 1e-7, "{layout} {shape:?}: {error:e}");
        }
    }
    for (bits, bm) in (0..8).zip([32, 64].into_iter().cycle()) {
        for target in [1, 7, 64] {
            let case = Case {
                gated: bits & 1 > 0,
                bias: bits & 2 > 0,
                residual: bits & 4 > 0,
                times: target == 7,
                softcap: if target == 64 { 3.0 } else { 0.0 },
                gemm: true,
                packed: true,
                tiles: Some((bm, 64, target)),
                ..PLAIN
            };
            let error = check_as(gpu(), &forced(bm), affine(), [66, 45, 672], &case);
            assert!(
                error < 1e-7,
                "{bm} rows for {target} groups, {bits:#b}: {error:e}"
            );
        }
    }
}

#[test]
fn softcaps() {
    for gemm in [false, true] {
        let case = Case {
            gemm,
            softcap: 3.0,
            residual: true,
            tiles: Some((64, 64, 4)),
            ..PLAIN
        };
        let error = check(gpu(), affine(), 3, 45, 300, &case);
        assert!(error < 1e-10, "gemm {gemm}: {error:e}");
    }
}

/// More rows than a grid's maximum per dimension, in every layout.
#[test]
fn more_rows_than_a_grid_dimension() {
    for layout in layouts() {
        for gemm in [false, true] {
            let error = check(gpu(), layout, 1, 66_001, 36, &Case { gemm, ..PLAIN });
            assert!(error < 1e-10, "{layout} gemm {gemm}: {error:e}");
        }
    }
}

/// Weight layouts of all formats: every type with every group size.
#[test]
fn matmuls_in_the_layouts_of_the_formats() {
    let zero = |bits, group, scale| WeightLayout::Affine {
        bits,
        group,
        form: AffineForm::Zero,
        scale,
    };
    let mut all: Vec<WeightLayout> = GgmlType::all().filter_map(GgmlType::layout).collect();
    // GPTQ, AWQ, compressed-tensors, signed bytes; nvfp4 uses IQ1_M's layout.
    all.extend([
        zero(4, 128, Float::F16),
        zero(3, 32, Float::F16),
        zero(6, 64, Float::BF16),
        zero(8, 128, Float::F32),
    ]);
    all.sort_by_key(|layout| layout.name());
    all.dedup();
    assert!(all.len() > 20, "{}", all.len());
    for layout in all {
        for gemm in [false, true] {
            let error = check(gpu(), layout, 3, 37, 172, &Case { gemm, ..PLAIN });
            assert!(error < 1e-10, "{layout} gemm {gemm}: {error:e}");
        }
    }
}
