//! Matmul kernels against the CPU reference. Each kernel has a file of its own; tests that run
//! several kernels are here.

mod gemm;
mod gemm_matrix;
mod gemm_packed;
mod gemv;
mod gemv_blocks;
mod gemv_packed;
mod random_weights;

use super::op::{tested_caps, worst};
use jerboa::format::ggml::GgmlType;
use jerboa::format::layout::{AffineForm, Float, WeightLayout};
use jerboa::gpu::{Backend, Caps, Gpu, VariantOverride};
use jerboa::kernels::matmul::{
    GemmTiling, Matmul, NormPrologue, QuantizeInputs, View, WeightPlanes,
};
use jerboa::kernels::registry::{Kernel, tunable_constants};
use jerboa::reference::matmul as reference;
use jerboa::reference::matmul::round_groups_to_int8;
use jerboa::reference::norm::round_to_int8;
use jerboa_tests::{bytes, floats, gpu, nmse, random, run_all};
use random_weights::affine;
pub(super) use random_weights::{affine_of, layouts, weights};

/// Options of one matmul.
struct Case {
    gated: bool,
    norm: bool,
    round: bool,
    bias: bool,
    residual: bool,
    /// Whether the matmul's result is multiplied elementwise.
    times: bool,
    gemm: bool,
    /// Whether the input is quantized to 8 bits first.
    packed: bool,
    /// Whether the GEMV does, for several rows.
    batch: bool,
    softcap: f32,
    /// Rows and columns of a tile and the number of workgroups; `None` leaves the choice to the
    /// engine.
    tiles: Option<(u32, u32, u32)>,
}

/// The layouts that products of quantized rows read.
fn packed_layouts() -> Vec<WeightLayout> {
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
    let found: Vec<_> = layouts().into_iter().filter(reads).collect();
    assert!(found.len() > 5, "{}", found.len());
    found
}

/// Runs one matmul and its CPU reference; returns the normalized mean square error. GEMVs run with
/// the tilings of this device and with those of a GPU, which may differ, GEMMs with and without
/// subgroups; the error is the larger.
/// Subgroup matrices, which may multiply f16, have their own tests.
fn check(gpu: &Gpu, layout: WeightLayout, rows: usize, n: usize, k: usize, case: &Case) -> f64 {
    let error = |caps| {
        check_as(
            gpu,
            &Caps {
                matrix: None,
                ..caps
            },
            layout,
            [rows, n, k],
            case,
        )
    };
    if case.gemm {
        let own = gpu.caps().clone();
        // Given tiles are those of a kernel that uses no subgroups.
        if case.tiles.is_some() {
            return error(own);
        }
        let apart = Caps {
            subgroups: false,
            ..own.clone()
        };
        return worst([own, apart].into_iter().map(error));
    }
    worst(tested_caps(gpu).into_iter().map(error))
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
            kernel: Kernel::Gemm,
            bm,
            bn,
            target,
            max_per_tile: 8,
            ..choice
        };
    }
    let wide = matches!(layout, WeightLayout::Affine { group: 64.., .. });
    let x_group = if wide && case.gemm { 64 } else { 32 };
    let quantized = case.packed.then(|| {
        m.quantized_rows(caps, rows, QuantizeInputs::Always)
            .expect("weights of 4 or 8 bits")
            .with_group(x_group)
    });
    let mut launches = Vec::new();
    if let Some(form) = quantized {
        launches.push(form.launch(&m, 7, 9));
        m.norm = None;
    }
    let (parts, product) = match case.gemm {
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
                m.gemm_packed(7, (9, quantized.expect("its form")), 8, choice)
                    .into(),
            )
        }
        true if caps.subgroup_matrix().is_some() => m.prefill(caps, rows, 7, 8, None),
        true => (m.parts_bytes(rows as u32, choice), m.gemm(7, 8, choice)),
        false => match quantized {
            Some(_) => (0, vec![m.gemv_packed(caps, rows, 7, 9)]),
            None => (0, vec![m.gemv(caps, rows, 7)]),
        },
    };
    launches.extend(product);
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
