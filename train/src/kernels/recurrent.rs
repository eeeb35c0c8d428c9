//! Recurrent layers over whole sequences (LSTM, tanh RNN), and their gradients through time.

use super::contiguous;
use super::matmul::{WeightRows, linear, linear_input, linear_weight};
use super::norm::column_sums;
use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// A recurrent layer whose state starts with zeros. All rows of a step come before those of the
/// next: x is `[steps * rows, inputs]`.
#[derive(Debug, Clone)]
pub struct Recurrence<B> {
    /// Whether it is an LSTM; else a tanh RNN.
    pub lstm: bool,
    /// Steps.
    pub steps: usize,
    /// Sequences.
    pub rows: usize,
    /// Columns of x.
    pub inputs: usize,
    /// Columns of the output.
    pub hidden: usize,
    /// `[gates, inputs]`.
    pub input_weight: WeightRows<B>,
    /// `[gates, hidden]`.
    pub state_weight: WeightRows<B>,
    /// `[gates]`: the sum of PyTorch's two biases.
    pub bias: Option<B>,
    /// Outputs of all steps, `[steps * rows, hidden]`.
    pub out: B,
    /// Cells of all steps, as out; unused by an RNN.
    pub cells: B,
    /// Gates of all steps, `[steps * rows, gates]`; unused by an RNN.
    pub gates: B,
    /// Sums of gates of all steps by the input, as gates.
    pub sums: B,
    /// Sums of gates of a step by the state, `[rows, gates]`.
    pub state_sums: B,
}

/// Buffers of the gradients of a recurrent layer.
#[derive(Debug, Clone)]
pub struct RecurrenceGradients<B> {
    /// The gradient of out, which is overwritten.
    pub dy: B,
    /// The gradient of x.
    pub dx: B,
    /// The gradient of the sums of gates, `[steps * rows, gates]`.
    pub gates: B,
    /// Scratch, `[rows, hidden]`; unused by an RNN.
    pub cells: B,
    /// The gradient of the input's weights is added here.
    pub input_weight: View<B>,
    /// The gradient of the state's weights is added here.
    pub state_weight: View<B>,
    /// The gradient of the bias is added to each of these: a sum of biases has the gradient of its
    /// terms.
    pub biases: Vec<B>,
}

impl<B: Clone> Recurrence<B> {
    /// Rows of the weights: four gates of an LSTM, one of an RNN.
    pub fn gate_cols(&self) -> usize {
        if self.lstm {
            4 * self.hidden
        } else {
            self.hidden
        }
    }

    fn rows_of(&self, buffer: &B, cols: usize, step: usize) -> View<B> {
        View {
            buffer: buffer.clone(),
            offset: (step * self.rows * cols) as u32,
            stride: cols as u32,
        }
    }

    fn cell(&self, name: &'static str, step: usize) -> TrainLaunch<B> {
        let variant = Variant::new(TrainKernel(name))
            .flag_if("RNN", !self.lstm)
            .flag_if("FIRST", step == 0);
        let per_step = self.rows * self.hidden;
        TrainLaunch::threads(variant, per_step, 64)
            .set("rows", self.rows)
            .set("hidden", self.hidden)
            .set("gates_offset", step * self.rows * self.gate_cols())
            .set("before_offset", step.saturating_sub(1) * per_step)
            .set("now_offset", step * per_step)
    }

    /// Returns the launches of all steps.
    pub fn forward(&self, x: &B) -> Vec<TrainLaunch<B>> {
        let gates = self.gate_cols();
        let all = self.steps * self.rows;
        let x = contiguous(x.clone(), self.inputs);
        let sums = contiguous(self.sums.clone(), gates);
        let mut launches = vec![linear(
            &self.input_weight,
            all,
            1.0,
            &x,
            self.bias.clone(),
            &sums,
        )];
        for step in 0..self.steps {
            if step > 0 {
                let before = self.rows_of(&self.out, self.hidden, step - 1);
                let sums = contiguous(self.state_sums.clone(), gates);
                launches.push(linear(
                    &self.state_weight,
                    self.rows,
                    1.0,
                    &before,
                    None,
                    &sums,
                ));
            }
            let state_sums = (step > 0).then(|| self.state_sums.clone());
            let mut launch = self
                .cell("recurrent_cell", step)
                .set("input_offset", step * self.rows * gates)
                .bind("from_input", self.sums.clone())
                .bind_opt("from_state", state_sums)
                .bind("out", self.out.clone());
            if self.lstm {
                launch = launch
                    .bind("cells", self.cells.clone())
                    .bind("gates", self.gates.clone());
            }
            launches.push(launch);
        }
        launches
    }

    /// Returns the launches of the gradients, last step first.
    pub fn backward(&self, x: &B, to: &RecurrenceGradients<B>) -> Vec<TrainLaunch<B>> {
        let gates = self.gate_cols();
        let mut launches = Vec::new();
        for step in (0..self.steps).rev() {
            let mut launch = self
                .cell("recurrent_gradient", step)
                .bind("dy", to.dy.clone())
                .bind("dgates", to.gates.clone());
            launch.variant = launch.variant.flag_if("LAST", step + 1 == self.steps);
            launches.push(if self.lstm {
                launch
                    .bind("cells", self.cells.clone())
                    .bind("gates", self.gates.clone())
                    .bind("dcells", to.cells.clone())
            } else {
                launch.bind("out", self.out.clone())
            });
            if step > 0 {
                let above = self.rows_of(&to.gates, gates, step);
                let before = self.rows_of(&to.dy, self.hidden, step - 1);
                let weight = &self.state_weight;
                launches.push(linear_input(weight, self.rows, 1.0, &above, &before, true));
            }
        }
        let all = self.steps * self.rows;
        let above = contiguous(to.gates.clone(), gates);
        let x = contiguous(x.clone(), self.inputs);
        let dx = contiguous(to.dx.clone(), self.inputs);
        launches.push(linear_input(
            &self.input_weight,
            all,
            1.0,
            &above,
            &dx,
            false,
        ));
        let size = [all, gates, self.inputs];
        launches.push(linear_weight(size, 1.0, &above, &x, &to.input_weight));
        if self.steps > 1 {
            let later = self.rows_of(&to.gates, gates, 1);
            let out = contiguous(self.out.clone(), self.hidden);
            let size = [all - self.rows, gates, self.hidden];
            launches.push(linear_weight(size, 1.0, &later, &out, &to.state_weight));
        }
        for bias in &to.biases {
            launches.push(column_sums([all, 1, gates], &above, bias.clone(), 0));
        }
        launches
    }
}
