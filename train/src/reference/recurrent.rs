//! LSTM and tanh RNN over whole sequences, and their gradients through time.

use super::matmul::{linear, linear_input, linear_weight};

/// A recurrent layer whose state starts with zeros; x is `[steps, rows, inputs]`.
#[derive(Debug, Clone)]
pub struct RecurrentLayer {
    /// Whether it is an LSTM; else a tanh RNN.
    pub lstm: bool,
    /// Steps, sequences, columns of x, columns of the output.
    pub sizes: [usize; 4],
    /// `[gates, inputs]`.
    pub input_weight: Vec<f64>,
    /// `[gates, hidden]`.
    pub state_weight: Vec<f64>,
    /// `[gates]`.
    pub bias: Vec<f64>,
}

/// Gradients of x, both weights and the bias.
pub type RecurrentGradients = [Vec<f64>; 4];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl RecurrentLayer {
    fn gate_cols(&self) -> usize {
        self.sizes[3] * if self.lstm { 4 } else { 1 }
    }

    /// Outputs, cells and gates of all steps. An RNN's gates are its outputs.
    fn run(&self, x: &[f64]) -> [Vec<f64>; 3] {
        let [steps, rows, inputs, hidden] = self.sizes;
        let cols = self.gate_cols();
        let from_input = linear(x, &self.input_weight, [steps * rows, cols, inputs]);
        let mut state = vec![0.0; rows * hidden];
        let mut cell = state.clone();
        let [mut out, mut cells, mut gates] = [const { Vec::new() }; 3];
        for step in 0..steps {
            let mut sums = linear(&state, &self.state_weight, [rows, cols, hidden]);
            for (at, sum) in sums.iter_mut().enumerate() {
                *sum += from_input[step * rows * cols + at] + self.bias[at % cols];
            }
            for row in 0..rows {
                for c in 0..hidden {
                    let at = row * hidden + c;
                    if !self.lstm {
                        state[at] = sums[at].tanh();
                        continue;
                    }
                    let place = |gate: usize| row * cols + gate * hidden + c;
                    for (gate, f) in [sigmoid, sigmoid, f64::tanh, sigmoid]
                        .into_iter()
                        .enumerate()
                    {
                        sums[place(gate)] = f(sums[place(gate)]);
                    }
                    let [i, f, g, o] = [0, 1, 2, 3].map(|gate: usize| sums[place(gate)]);
                    cell[at] = f * cell[at] + i * g;
                    state[at] = o * cell[at].tanh();
                }
            }
            out.extend(&state);
            cells.extend(&cell);
            gates.extend(if self.lstm { &sums } else { &state });
        }
        [out, cells, gates]
    }

    /// Returns the outputs of all steps.
    pub fn forward(&self, x: &[f64]) -> Vec<f64> {
        let [out, _, _] = self.run(x);
        out
    }

    /// Returns the gradients from that of the outputs.
    pub fn gradients(&self, x: &[f64], dy: &[f64]) -> RecurrentGradients {
        let [steps, rows, inputs, hidden] = self.sizes;
        let cols = self.gate_cols();
        let per_step = rows * hidden;
        let [out, cells, gates] = self.run(x);
        let mut dgates = vec![0.0; gates.len()];
        let mut dstate = vec![0.0; per_step];
        let mut dcell = vec![0.0; per_step];
        for step in (0..steps).rev() {
            for row in 0..rows {
                for c in 0..hidden {
                    let at = row * hidden + c;
                    let d = dy[step * per_step + at] + dstate[at];
                    if !self.lstm {
                        dgates[step * per_step + at] =
                            d * (1.0 - out[step * per_step + at].powi(2));
                        continue;
                    }
                    let place = |gate: usize| (step * rows + row) * cols + gate * hidden + c;
                    let [i, f, g, o] = [0, 1, 2, 3].map(|gate: usize| gates[place(gate)]);
                    let t = cells[step * per_step + at].tanh();
                    let own = dcell[at] + d * o * (1.0 - t * t);
                    let before = match step {
                        0 => 0.0,
                        _ => cells[(step - 1) * per_step + at],
                    };
                    let slopes = [
                        own * g * i * (1.0 - i),
                        own * before * f * (1.0 - f),
                        own * i * (1.0 - g * g),
                        d * t * o * (1.0 - o),
                    ];
                    for (gate, slope) in slopes.into_iter().enumerate() {
                        dgates[place(gate)] = slope;
                    }
                    dcell[at] = own * f;
                }
            }
            let own = &dgates[step * rows * cols..][..rows * cols];
            dstate = linear_input(own, &self.state_weight, [rows, cols, hidden]);
        }
        let all = steps * rows;
        let mut bias = vec![0.0; cols];
        for (at, d) in dgates.iter().enumerate() {
            bias[at % cols] += d;
        }
        let later = &dgates[rows * cols..];
        [
            linear_input(&dgates, &self.input_weight, [all, cols, inputs]),
            linear_weight(&dgates, x, [all, cols, inputs]),
            linear_weight(later, &out, [all - rows, cols, hidden]),
            bias,
        ]
    }
}
