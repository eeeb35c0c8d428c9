//! Convolutions and their gradients.

use crate::kernels::convolution::Convolution;

/// Calls `visit` with the indices of x, w and y of each product.
fn products(layer: &Convolution, mut visit: impl FnMut(usize, usize, usize)) {
    let [inner, outer] = [layer.inputs, layer.out_sizes()];
    let volume = |sizes: [usize; 3]| sizes.iter().product::<usize>();
    let split = |at: usize, sizes: [usize; 3]| {
        [
            at / (sizes[1] * sizes[2]),
            at / sizes[2] % sizes[1],
            at % sizes[2],
        ]
    };
    let per_group = layer.channels / layer.groups;
    let outputs_per_group = layer.outputs / layer.groups;
    let taps = volume(layer.kernel);
    for n in 0..layer.batch {
        for o in 0..layer.outputs {
            for to in 0..volume(outer) {
                for c in 0..per_group {
                    for tap in 0..taps {
                        let place = split(to, outer);
                        let part = split(tap, layer.kernel);
                        let at = [0, 1, 2].map(|d: usize| {
                            let moved = place[d] * layer.stride[d] + part[d] * layer.dilation[d];
                            moved
                                .checked_sub(layer.padding[d])
                                .filter(|at| *at < inner[d])
                        });
                        let [Some(z), Some(y), Some(x)] = at else {
                            continue;
                        };
                        let channel = o / outputs_per_group * per_group + c;
                        let from = (z * inner[1] + y) * inner[2] + x;
                        visit(
                            (n * layer.channels + channel) * volume(inner) + from,
                            (o * per_group + c) * taps + tap,
                            (n * layer.outputs + o) * volume(outer) + to,
                        );
                    }
                }
            }
        }
    }
}

/// Returns the output without a bias.
pub fn forward(layer: &Convolution, x: &[f64], w: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; layer.out_count()];
    products(layer, |from, weight, to| y[to] += x[from] * w[weight]);
    y
}

/// Returns the gradients of x and w.
pub fn gradients(layer: &Convolution, x: &[f64], w: &[f64], dy: &[f64]) -> [Vec<f64>; 2] {
    let mut dx = vec![0.0; x.len()];
    let mut dw = vec![0.0; w.len()];
    products(layer, |from, weight, to| {
        dx[from] += dy[to] * w[weight];
        dw[weight] += dy[to] * x[from];
    });
    [dx, dw]
}

/// Returns the gradient of the bias: sums of dy per output channel.
pub fn bias(layer: &Convolution, dy: &[f64]) -> Vec<f64> {
    let volume = dy.len() / (layer.batch * layer.outputs);
    let mut sums = vec![0.0; layer.outputs];
    for (index, row) in dy.chunks_exact(volume).enumerate() {
        sums[index % layer.outputs] += row.iter().sum::<f64>();
    }
    sums
}
