//! f16 activations for matmuls on subgroup matrices: the attention, norm and gated matmul that
//! write them, and the matmuls that read them, against the CPU references.

use super::matmul::weights;
use super::op::{Case, Setting, few, many};
use half::f16;
use jerboa::device::registry::Kernel;
use jerboa::device::{Caps, MatrixDialect, SubgroupMatrix, VariantOverride};
use jerboa::format::layout::{AffineForm, Float, WeightLayout};
use jerboa::gpu::Backend;
use jerboa::ir::{Activation, Attention, Combine, Epilogue, Linear, Mask, Norm, StateSpec};
use jerboa::kernels::attention::Kv;
use jerboa::reference::attention as reference;
use jerboa::reference::matmul::{activate, matmul, rms_norm};
use jerboa_tests::{gpu, nmse, random, skip};

const HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const INNER: usize = 96;
const COLS: usize = HEADS * HEAD_DIM;

/// Rows of f32, rounded as in the cache.
fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| f16::from_f32(*v).to_f32()).collect()
}

/// A layer without its first norm: attention, matmul, norm, gated matmul, matmul. Steps of many
/// rows store three values as f16, read by as many matmuls; single rows store none.
#[test]
fn a_layer_stores_matmul_inputs_as_f16() {
    let device = gpu().caps();
    if !device.f16 {
        return skip("needs f16");
    }
    let emulated = SubgroupMatrix {
        side: 16,
        half: true,
        lanes: 32,
        words: MatrixDialect::Emulated,
    };
    let force = Some(VariantOverride {
        kernel: Kernel::GemmMatrix,
        name: "BM",
        value: 32,
    });
    let caps = Caps {
        matrix: device.matrix.or(Some(emulated)),
        force,
        ..device.clone()
    };
    // Both layouts of gated pairs, computed in f16, and an f32 intermediate.
    let four = |form| WeightLayout::Affine {
        bits: 4,
        group: 32,
        form,
        scale: Float::F16,
    };
    for layout in [
        four(AffineForm::Bias),
        four(AffineForm::Zero),
        WeightLayout::Dense(Float::BF16),
    ] {
        let cuts = [many(45), few(1), many(20)];
        let rows = 66;
        let [q, k, v] = [1, 2, 3].map(|seed| random(seed, rows * COLS));
        let gain = random(4, COLS);
        let [o, up, down] = [(COLS, COLS, 11), (2 * INNER, COLS, 12), (COLS, INNER, 13)];
        let [(o, wo), (up, wu), (down, wd)] =
            [o, up, down].map(|(n, k, seed)| weights(layout, n, k, seed));

        let mut case = Case::new();
        let inputs = [&q, &k, &v].map(|values| case.input(values, COLS));
        let scale = (HEAD_DIM as f32).powf(-0.5);
        let state = Some(case.b.state(StateSpec::Kv {
            kv_heads: HEADS,
            head_dim: HEAD_DIM,
            window: 0,
        }));
        let attention = Attention {
            heads: HEADS,
            kv_heads: HEADS,
            head_dim: HEAD_DIM,
            scale,
            mask: Mask::Causal { window: 0 },
            softcap: 0.0,
            sinks: None,
            relative: None,
            head_norm: None,
            rope: None,
            state,
        };
        let attended = case.b.node("attention", attention, &inputs, COLS);
        let residual = |linear: Linear| Linear {
            combine: Combine::Add,
            ..linear
        };
        let o = Linear::new(case.table(o), None);
        let hidden = case.b.node("o", residual(o), &[attended, inputs[0]], COLS);
        let norm = Norm {
            gain: Some(case.vector(&gain)),
            bias: None,
            layer: false,
            offset: 0.0,
            eps: 1e-5,
        };
        let normed = case.b.node("norm", norm, &[hidden], COLS);
        let up = Linear {
            epilogue: Epilogue::Gate(Activation::Silu),
            ..Linear::new(case.table(up), None)
        };
        let inner = case.b.node("up", up, &[normed], INNER);
        let down = Linear::new(case.table(down), None);
        let out = case.b.node("down", residual(down), &[inner, hidden], COLS);
        let setting = Setting {
            kv: Kv::F16,
            caps: Some(caps.clone()),
            halves: Some(6),
            ..Setting::default()
        };
        let found = case.run(gpu(), out, &setting, &cuts);

        let spec = reference::AttentionReference {
            heads: HEADS,
            kv_heads: HEADS,
            head_dim: HEAD_DIM,
            scale,
            softcap: 0.0,
            sinks: None,
            relative: None,
        };
        let attended = spec.of(&q, &rounded(&k), &rounded(&v), &|row| 0..row + 1);
        let sum =
            |a: Vec<f32>, b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        let hidden = sum(matmul(&attended, &wo, rows, COLS, COLS), &q);
        let both = matmul(
            &rms_norm(&hidden, &gain, 0.0, 1e-5),
            &wu,
            rows,
            2 * INNER,
            COLS,
        );

        let inner: Vec<f32> = both
            .chunks_exact(2 * INNER)
            .flat_map(|row: &[f32]| {
                (0..INNER)
                    .map(|i| activate(1, row[i]) * row[INNER + i])
                    .collect::<Vec<_>>()
            })
            .collect();
        let expected = sum(matmul(&inner, &wd, rows, COLS, INNER), &hidden);
        let error = nmse(&found, &expected);
        assert!(error < 1e-6, "{layout}: {error:e}");
    }
}
