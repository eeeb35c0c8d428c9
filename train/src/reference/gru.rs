//! GRU over whole sequences, and its gradients through time.

use super::matmul::{linear, linear_input, linear_weight};

/// A GRU whose state starts with zeros; x is `[steps, rows, inputs]`.
#[derive(Debug, Clone)]
pub struct GruLayer {
    /// Steps, sequences, columns of x, columns of the output.
    pub sizes: [usize; 4],
    /// `[3 * hidden, inputs]`: reset, update, new.
    pub input_weight: Vec<f64>,
    /// `[3 * hidden, hidden]`.
    pub state_weight: Vec<f64>,
    /// Biases of both, `[3 * hidden]`.
    pub biases: [Vec<f64>; 2],
}

/// What a run stores by step, sequence and column.
#[derive(Default)]
struct Run {
    out: Vec<f64>,
    reset: Vec<f64>,
    update: Vec<f64>,
    new: Vec<f64>,
    /// The state's sum of the new gate.
    from_before: Vec<f64>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl GruLayer {
    fn run(&self, x: &[f64]) -> Run {
        let [steps, rows, inputs, hidden] = self.sizes;
        let cols = 3 * hidden;
        let from_input = linear(x, &self.input_weight, [steps * rows, cols, inputs]);
        let mut state = vec![0.0; rows * hidden];
        let mut run = Run::default();
        for step in 0..steps {
            let from_state = linear(&state, &self.state_weight, [rows, cols, hidden]);
            for row in 0..rows {
                for c in 0..hidden {
                    let input = |gate: usize| {
                        let col = gate * hidden + c;
                        from_input[(step * rows + row) * cols + col] + self.biases[0][col]
                    };
                    let before = |gate: usize| {
                        let col = gate * hidden + c;
                        from_state[row * cols + col] + self.biases[1][col]
                    };
                    let r = sigmoid(input(0) + before(0));
                    let z = sigmoid(input(1) + before(1));
                    let n = (input(2) + r * before(2)).tanh();
                    let at = row * hidden + c;
                    run.reset.push(r);
                    run.update.push(z);
                    run.new.push(n);
                    run.from_before.push(before(2));
                    state[at] = (1.0 - z) * n + z * state[at];
                }
            }
            run.out.extend(&state);
        }
        run
    }

    /// Returns the outputs of all steps.
    pub fn forward(&self, x: &[f64]) -> Vec<f64> {
        self.run(x).out
    }

    /// Returns the gradients of x, both weights and both biases from that of the outputs.
    pub fn gradients(&self, x: &[f64], dy: &[f64]) -> [Vec<f64>; 5] {
        let [steps, rows, inputs, hidden] = self.sizes;
        let cols = 3 * hidden;
        let per_step = rows * hidden;
        let run = self.run(x);
        let [mut dgates, mut dstate] = [const { Vec::new() }; 2].map(|empty: Vec<f64>| {
            let mut sums = empty;
            sums.resize(steps * rows * cols, 0.0);
            sums
        });
        let mut later = vec![0.0; per_step];
        for step in (0..steps).rev() {
            let mut direct = vec![0.0; per_step];
            for row in 0..rows {
                for c in 0..hidden {
                    let at = row * hidden + c;
                    let now = step * per_step + at;
                    let d = dy[now] + later[at];
                    let before = match step {
                        0 => 0.0,
                        _ => run.out[now - per_step],
                    };
                    let [r, z, n] = [run.reset[now], run.update[now], run.new[now]];
                    let dn = d * (1.0 - z) * (1.0 - n * n);
                    let slopes = [
                        dn * run.from_before[now] * r * (1.0 - r),
                        d * (before - n) * z * (1.0 - z),
                        dn,
                    ];
                    for (gate, slope) in slopes.into_iter().enumerate() {
                        let place = (step * rows + row) * cols + gate * hidden + c;
                        dgates[place] = slope;
                        dstate[place] = if gate == 2 { slope * r } else { slope };
                    }
                    direct[at] = d * z;
                }
            }
            let own = &dstate[step * rows * cols..][..rows * cols];
            later = linear_input(own, &self.state_weight, [rows, cols, hidden]);
            for (sum, direct) in later.iter_mut().zip(direct) {
                *sum += direct;
            }
        }
        let all = steps * rows;
        let bias = |sums: &[f64]| {
            let mut bias = vec![0.0; cols];
            for (at, d) in sums.iter().enumerate() {
                bias[at % cols] += d;
            }
            bias
        };
        let after_first = &dstate[rows * cols..];
        [
            linear_input(&dgates, &self.input_weight, [all, cols, inputs]),
            linear_weight(&dgates, x, [all, cols, inputs]),
            linear_weight(after_first, &run.out, [all - rows, cols, hidden]),
            bias(&dgates),
            bias(&dstate),
        ]
    }
}
