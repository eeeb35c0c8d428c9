//! The CPU references' gradients against central differences of their forwards.

use crate::wide;
use jerboa_tests::{ACTIVATIONS, POOLINGS, random};
use jerboa_train::reference::attention::AttentionLayer;
use jerboa_train::reference::norm::NormLayer;
use jerboa_train::reference::pool::PoolLayer;
use jerboa_train::reference::short_conv::ShortConvLayer;
use jerboa_train::reference::{elementwise, loss, matmul, rope};

/// Random numbers in f64.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    wide(&random(seed, count))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Compares a gradient of `dot(f(x), dy)` with central differences.
#[track_caller]
pub(super) fn check(
    what: &str,
    x: &[f64],
    dy: &[f64],
    gradient: &[f64],
    f: impl Fn(&[f64]) -> Vec<f64>,
) {
    const STEP: f64 = 1e-5;
    let mut error = 0.0;
    for i in 0..x.len() {
        let [up, down] = [STEP, -STEP].map(|step| {
            let mut moved = x.to_vec();
            moved[i] += step;
            dot(&f(&moved), dy)
        });
        error += ((up - down) / (2.0 * STEP) - gradient[i]).powi(2);
    }
    let relative = (error / dot(gradient, gradient)).sqrt();
    assert!(relative < 1e-6, "{what}: {relative:e}");
}

#[test]
fn linear_layers() {
    let sizes = [3, 4, 5];
    let [x, w, dy] = [numbers(1, 15), numbers(2, 20), numbers(3, 12)];
    let dx = matmul::linear_input(&dy, &w, sizes);
    check("dx", &x, &dy, &dx, |x| matmul::linear(x, &w, sizes));
    let dw = matmul::linear_weight(&dy, &x, sizes);
    check("dw", &w, &dy, &dw, |w| matmul::linear(&x, w, sizes));
}

#[test]
fn norms() {
    for layer in [false, true] {
        let norm = NormLayer {
            cols: 6,
            layer,
            gain: Some(numbers(1, 6)),
            bias: Some(numbers(2, 6)),
            offset: 1.0,
            eps: 1e-3,
        };
        let [x, dy] = [numbers(3, 18), numbers(4, 18)];
        check("dx", &x, &dy, &norm.input(&x, &dy), |x| norm.forward(x));
        let [dgain, dbias] = norm.weights(&x, &dy);
        let with = |gain: Option<Vec<f64>>, bias: Option<Vec<f64>>| NormLayer {
            gain: gain.or_else(|| norm.gain.clone()),
            bias: bias.or_else(|| norm.bias.clone()),
            ..norm.clone()
        };
        let gain = norm.gain.clone().expect("a gain");
        check("gain", &gain, &dy, &dgain, |gain| {
            with(Some(gain.to_vec()), None).forward(&x)
        });
        let bias = norm.bias.clone().expect("a bias");
        check("bias", &bias, &dy, &dbias, |bias| {
            with(None, Some(bias.to_vec())).forward(&x)
        });
    }
}

#[test]
fn short_convolutions() {
    let layer = ShortConvLayer {
        cols: 3,
        taps: 3,
        spans: vec![[0, 2], [0, 2], [2, 7], [2, 7], [2, 7], [2, 7], [2, 7]],
    };
    let [x, w, dy] = [numbers(1, 21), numbers(2, 9), numbers(3, 21)];
    let dx = layer.input(&dy, &w);
    check("dx", &x, &dy, &dx, |x| layer.forward(x, &w, None));
    let dw = layer.weight(&x, &dy);
    check("dw", &w, &dy, &dw, |w| layer.forward(&x, w, None));
}

#[test]
fn attention() {
    for (before, after, softcap, sinks) in [
        (usize::MAX, 0, 0.0, false),
        (1, 1, 1.5, false),
        (usize::MAX, 0, 0.0, true),
    ] {
        let layer = AttentionLayer {
            heads: 4,
            kv_heads: 2,
            head_dim: 3,
            before,
            after,
            scale: 0.7,
            softcap,
            sinks: sinks.then(|| numbers(9, 4)),
            spans: vec![[0, 2], [0, 2], [2, 5], [2, 5], [2, 5]],
        };
        let [q, k, v, dy] = [
            numbers(1, 60),
            numbers(2, 30),
            numbers(3, 30),
            numbers(4, 60),
        ];
        let [dq, dk, dv] = layer.gradients(&q, &k, &v, &dy);
        check("dq", &q, &dy, &dq, |q| layer.forward(q, &k, &v));
        check("dk", &k, &dy, &dk, |k| layer.forward(&q, k, &v));
        check("dv", &v, &dy, &dv, |v| layer.forward(&q, &k, v));
    }
}

#[test]
fn pooling() {
    for pooling in POOLINGS {
        let layer = PoolLayer {
            cols: 3,
            pooling,
            spans: vec![[0, 1], [2, 6]],
        };
        let [x, dy] = [numbers(1, 21), numbers(2, 6)];
        let dx = layer.input(&x, &dy);
        check(&format!("{pooling:?}"), &x, &dy, &dx, |x| layer.forward(x));
    }
}

#[test]
fn rotary_embeddings() {
    let turns = |row: usize| {
        let angle = |pair: usize| (row + 1) as f64 * 0.4 / (pair + 1) as f64;
        (0..2)
            .map(|pair| [angle(pair).cos(), angle(pair).sin()])
            .collect()
    };
    for interleaved in [false, true] {
        let [x, dy] = [numbers(1, 30), numbers(2, 30)];
        let f = |x: &[f64], inverse| rope::rotate(x, [5, 4], interleaved, &turns, 10, inverse);
        check("rope", &x, &dy, &f(&dy, true), |x| f(x, false));
    }
}

#[test]
fn activations() {
    for act in ACTIVATIONS {
        let x: Vec<f64> = numbers(1, 40).iter().map(|v| v * 5.0).collect();
        let dy = numbers(2, 40);
        let gradient: Vec<f64> = x
            .iter()
            .zip(&dy)
            .map(|(x, dy)| elementwise::derivative(act, *x) * dy)
            .collect();
        check(&format!("{act:?}"), &x, &dy, &gradient, |x| {
            x.iter().map(|x| elementwise::activate(act, *x)).collect()
        });
    }
}

#[test]
fn losses() {
    let labels = [Some(3), None, Some(0)];
    let logits = numbers(1, 15);
    let [_, gradient] = loss::cross_entropy(&logits, &labels, 5, 2.0);
    check("cross-entropy", &logits, &[2.0; 3], &gradient, |x| {
        let [losses, _] = loss::cross_entropy(x, &labels, 5, 1.0);
        losses
    });
    let goals = numbers(2, 15);
    let [_, gradient] = loss::mean_square(&logits, &goals, 5, 0.5);
    check("mean square", &logits, &[0.5; 3], &gradient, |x| {
        let [losses, _] = loss::mean_square(x, &goals, 5, 1.0);
        losses
    });
}
