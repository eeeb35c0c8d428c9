//! Matmuls of a layer in batched steps, planned together.

use super::matmul::{affine_of, weights};
use super::op::{Case, Cut, Setting, many};
use jerboa::device::registry::Kernel;
use jerboa::device::{Caps, VariantOverride};
use jerboa::format::layout::{AffineForm, Float};
use jerboa::gpu::Backend;
use jerboa::ir::{Activation, Combine, Epilogue, GraphBuilder, Linear, Norm, Prologue};
use jerboa::plan::StepKind;
use jerboa_tests::{gpu, nmse, random};

const COLS: usize = 512;
const INNER: usize = 576;

/// Runs what follows the attention of a layer, and the first matmul of the next one.
fn layer(rows: usize, cut: Cut, setting: &Setting) -> Vec<f32> {
    let layout = affine_of(4, 64, AffineForm::Bias, Float::F16);
    let mut case = Case::new();
    let [attended, x] = [1, 2].map(|seed| random(seed, rows * COLS));
    let [attended, x] = [attended, x].map(|values| case.input(&values, COLS));
    let shapes = [(COLS, COLS), (2 * INNER, COLS), (COLS, INNER), (192, COLS)];
    let [o, up, down, next] = [0, 1, 2, 3].map(|index| {
        let (n, k) = shapes[index];
        Linear::new(case.table(weights(layout, n, k, 11 + index as u64).0), None)
    });
    let mut norm = |seed| Norm {
        gain: Some(case.vector(&random(seed, COLS))),
        bias: None,
        layer: false,
        offset: 1.0,
        eps: 1e-5,
    };
    let norms = [norm(4), norm(5)];
    let added = |linear: Linear| Linear {
        combine: Combine::Add,
        ..linear
    };
    let gated = |linear: Linear| Linear {
        epilogue: Epilogue::Gate(Activation::Silu),
        ..linear
    };
    // Prompts have norms of their own.
    let after_norm =
        |b: &mut GraphBuilder, name: &str, norm: &Norm, linear: Linear, input, cols| {
            if cut.mode.is_batch() {
                let prologue = Prologue::Norm(norm.clone());
                return b.node(name, Linear { prologue, ..linear }, &[input], cols);
            }
            let normed = b.node(&format!("{name} norm"), norm.clone(), &[input], COLS);
            b.node(name, linear, &[normed], cols)
        };
    let b = &mut case.b;
    let hidden = b.node("o", added(o), &[attended, x], COLS);
    let gate = after_norm(b, "up", &norms[0], gated(up), hidden, INNER);
    let out = b.node("down", added(down), &[gate, hidden], COLS);
    let next = after_norm(b, "next", &norms[1], next, out, 192);
    case.run(gpu(), next, setting, &[cut])
}

/// The reductions of a batch's matmuls quantize the gate and both norms. The result is that of a
/// prompt, whose norms and quantization have launches of their own, also for fewer rows than the
/// plan has.
#[test]
fn reductions_quantize_as_prompts_do() {
    let caps = Caps {
        force: Some(VariantOverride {
            kernel: Kernel::GemmPacked,
            name: "BM",
            value: 32,
        }),
        matrix: None,
        software: false,
        ..gpu().caps().clone()
    };
    let setting = Setting {
        caps: Some(caps),
        batch_flags: &["QUANTIZED", "NORM", "DIVIDED"],
        ..Setting::default()
    };
    for (rows, planned) in [(9, 16), (16, 16), (11, 32), (32, 32)] {
        let expected = layer(
            rows,
            many(rows),
            &Setting {
                batch_flags: &[],
                ..setting.clone()
            },
        );
        let batch = Cut {
            rows,
            mode: StepKind::DecodeBatch(planned),
        };
        let error = nmse(&layer(rows, batch, &setting), &expected);
        assert!(error < 1e-6, "{rows} rows of {planned}: {error:e}");
    }
}
