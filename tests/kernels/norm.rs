//! Norms of rows against their CPU reference.

use super::op::{Case, Setting, few, many};
use jerboa::ir::{LastRow, Norm, NormPerGroup, NormResidual, QuantizeActivations};
use jerboa::reference::norm as reference;
use jerboa_tests::{gpu, nmse, random};

#[test]
fn rms_and_layer_norm_with_and_without_gain_and_bias() {
    for cols in [1, 5, 64, 257, 1030] {
        for bits in 0..8 {
            let layer = bits & 1 > 0;
            let has_gain = bits & 2 > 0;
            let has_bias = bits & 4 > 0;

            // The mean is far from zero: subtracting it must be exact.
            let x: Vec<f32> = random(7, 6 * cols)
                .iter()
                .map(|v| v + if layer { 20.0 } else { 0.3 })
                .collect();
            let gain = random(8, cols);
            let bias = random(9, cols);

            let offset = if has_gain { 1.0 } else { 0.0 };
            let found = Setting::default().for_devices(gpu()).map(|setting| {
                let mut case = Case::new();
                let input = case.input(&x, cols);
                let norm = Norm {
                    gain: has_gain.then(|| case.vector(&gain)),
                    bias: has_bias.then(|| case.vector(&bias)),
                    layer,
                    offset,
                    eps: 1e-5,
                };
                let out = case.b.node("norm", norm, &[input], cols);
                case.run(gpu(), out, &setting, &[many(3), few(1), few(2)])
            });
            let expected = reference::NormReference {
                cols,
                layer,
                gain: has_gain.then_some(&gain[..]),
                bias: has_bias.then_some(&bias[..]),
                offset,
                eps: 1e-5,
            }
            .of(&x);
            let limit = if layer { 2e-4 } else { 1e-5 };
            for found in found {
                let error: f64 = found
                    .iter()
                    .zip(&expected)
                    .map(|(f, e)| f64::from(f - e).abs())
                    .fold(0.0, f64::max);
                assert!(
                    error < limit && nmse(&found, &expected).is_finite(),
                    "{cols} columns, {bits:#b}: {error:e}"
                );
            }
        }
    }
}

/// The row after the last token's, and a view of some columns.
#[test]
fn a_norm_reads_views_and_single_rows() {
    let cols = 76;
    let rows = 5;

    let x = random(3, rows * (cols + 8));
    let gain = random(4, cols);
    let mut case = Case::new();
    let input = case.input(&x, cols + 8);
    let view = case.b.view("view", input, 4, cols);
    let last = case.b.node("last", LastRow, &[view], cols);
    let norm = Norm {
        gain: Some(case.vector(&gain)),
        bias: None,
        layer: false,
        offset: 0.0,
        eps: 1e-6,
    };
    let out = case.b.node("norm", norm, &[last], cols);
    let found = case.run(gpu(), out, &Setting::default(), &[many(rows)]);
    let start = (rows - 1) * (cols + 8) + 4;
    let expected = reference::rms_norm(&x[start..start + cols], &gain, 0.0, 1e-6);
    assert!(nmse(&found, &expected) < 1e-11);
}

/// Rounding to 8 bits, alone and fused with a norm.
#[test]
fn rows_in_8_bits() {
    for (cols, rows) in [(5, 3), (300, 4), (2559, 2), (4096, 2), (6912, 2), (7169, 2)] {
        let x: Vec<f32> = random(3, rows * cols)
            .iter()
            .enumerate()
            .map(|(i, v)| v * (i % 7) as f32)
            .collect();
        let gain = random(4, cols);
        for has_norm in [false, true] {
            let mut case = Case::new();
            let input = case.input(&x, cols);
            let gains = case.vector(&gain);
            let norm = Norm {
                gain: Some(gains),
                bias: None,
                layer: false,
                offset: 0.0,
                eps: 1e-6,
            };
            let out = case.b.node(
                "rounded",
                QuantizeActivations(has_norm.then_some(norm)),
                &[input],
                cols,
            );
            let found = case.run(gpu(), out, &Setting::default(), &[many(rows - 1), few(1)]);
            let normed = if has_norm {
                reference::rms_norm(&x, &gain, 0.0, 1e-6)
            } else {
                x.clone()
            };
            // A difference in the last bit may change a rounding step, a 127th.
            let error = nmse(&found, &reference::round_to_int8(&normed, cols));
            assert!(
                error < if has_norm { 1e-6 } else { 1e-12 },
                "{cols} columns, norm {has_norm}: {error:e}"
            );
        }
    }
}

/// Groups of columns normalized separately, with one shared gain.
#[test]
fn groups_of_columns() {
    for (group, groups, has_gain) in [(5, 3, true), (24, 4, false), (300, 2, true)] {
        let cols = group * groups;
        let rows = 4;

        let x = random(3, rows * (cols + 4));
        let gain = random(4, group);

        let mut case = Case::new();
        let input = case.input(&x, cols + 4);
        let view = case.b.view("view", input, 4, cols);
        let gain = has_gain.then_some(gain);
        let norm = Norm {
            gain: gain.as_ref().map(|g| case.vector(g)),
            bias: None,
            layer: false,
            offset: 0.0,
            eps: 1e-6,
        };
        let out = case
            .b
            .node("norm", NormPerGroup { norm, group }, &[view], cols);
        let found = case.run(gpu(), out, &Setting::default(), &[many(rows - 1), few(1)]);
        let given: Vec<f32> = x
            .chunks_exact(cols + 4)
            .flat_map(|row| row[4..].to_vec())
            .collect();
        let reference = reference::NormReference {
            cols: group,
            layer: false,
            gain: gain.as_deref(),
            bias: None,
            offset: 0.0,
            eps: 1e-6,
        };
        let error = nmse(&found, &reference.of(&given));
        assert!(error < 1e-11, "{groups} groups of {group}: {error:e}");
    }
}

/// A norm whose result is added to one or two rows, in views, and multiplied; only the last row
/// where the step keeps one.
#[test]
fn a_norm_is_added_to_other_rows() {
    for (cols, layer, more, by) in [
        (5, false, false, false),
        (300, true, true, false),
        (76, false, true, true),
        (2560, false, false, true),
    ] {
        let rows = 4;
        let x = random(3, rows * cols);
        let wide = random(4, rows * (2 * cols + 4));

        let gain = random(5, cols);
        let number = [0.7f32];

        let mut case = Case::new();
        let (input, both) = (case.input(&x, cols), case.input(&wide, 2 * cols + 4));
        let norm = Norm {
            gain: Some(case.vector(&gain)),
            bias: None,
            layer,
            offset: 1.0,
            eps: 1e-6,
        };
        let by = by.then(|| case.vector(&number));
        let rest = case.b.view("rest", both, 4, cols);
        let second = case.b.view("more", both, 4 + cols, cols);
        let inputs = [input, rest, second];
        let op = NormResidual {
            norm,
            scale: 0.5,
            scale_weight: by,
        };
        let out = case
            .b
            .node("sum", op, &inputs[..if more { 3 } else { 2 }], cols);
        let found = case.run(gpu(), out, &Setting::default(), &[many(rows - 1), few(1)]);
        let columns = |first: usize| -> Vec<f32> {
            wide.chunks_exact(2 * cols + 4)
                .flat_map(|row| row[first..first + cols].to_vec())
                .collect()
        };
        let normed = reference::NormReference {
            cols,
            layer,
            gain: Some(&gain),
            bias: None,
            offset: 1.0,
            eps: 1e-6,
        }
        .of(&x);
        let more = if more { columns(4 + cols) } else { Vec::new() };
        let scale = if by.is_some() { 0.5 * number[0] } else { 0.5 };
        let error = nmse(
            &found,
            &reference::norm_residual(&normed, &columns(4), &more, scale),
        );
        assert!(error < 1e-11, "{cols} columns: {error:e}");
    }
}
