//! GRU layers over whole sequences, and their gradients through time.

use super::contiguous;
use super::matmul::{WeightRows, linear, linear_input, linear_weight};
use super::norm::column_sums;
use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// Gates of a cell: reset, update, new.
const GATES: usize = 3;
/// Stored numbers of a cell: the gates, and the state's sum of the new gate.
const STORED: usize = 4;

/// A GRU whose state starts with zeros. All rows of a step come before those of the next: x is
/// `[steps * rows, inputs]`.
#[derive(Debug, Clone)]
pub struct Gru<B> {
    /// Steps.
    pub steps: usize,
    /// Sequences.
    pub rows: usize,
    /// Columns of x.
    pub inputs: usize,
    /// Columns of the output.
    pub hidden: usize,
    /// `[3 * hidden, inputs]`.
    pub input_weight: WeightRows<B>,
    /// `[3 * hidden, hidden]`.
    pub state_weight: WeightRows<B>,
    /// Biases of both, `[3 * hidden]`.
    pub biases: Option<[B; 2]>,
    /// Outputs of all steps, `[steps * rows, hidden]`.
    pub out: B,
    /// Stored numbers of all steps, `[steps * rows, 4 * hidden]`.
    pub gates: B,
    /// Sums of gates of all steps by the input, `[steps * rows, 3 * hidden]`.
    pub sums: B,
    /// Sums of gates of a step by the state, `[rows, 3 * hidden]`.
    pub state_sums: B,
}

/// Buffers of the gradients of a GRU.
#[derive(Debug, Clone)]
pub struct GruGradients<B> {
    /// The gradient of out, which is overwritten.
    pub dy: B,
    /// The gradient of x.
    pub dx: B,
    /// The gradient of the input's sums of gates, `[steps * rows, 3 * hidden]`.
    pub gates: B,
    /// The gradient of the state's sums of gates, as gates.
    pub state_gates: B,
    /// The gradient of the input's weights is added here.
    pub input_weight: View<B>,
    /// The gradient of the state's weights is added here.
    pub state_weight: View<B>,
    /// The gradients of both biases are added here.
    pub biases: Option<[B; 2]>,
}

impl<B: Clone> Gru<B> {
    fn cols(&self) -> usize {
        GATES * self.hidden
    }

    fn rows_of(&self, buffer: &B, cols: usize, step: usize) -> View<B> {
        View {
            buffer: buffer.clone(),
            offset: (step * self.rows * cols) as u32,
            stride: cols as u32,
        }
    }

    fn cell(&self, name: &'static str, step: usize) -> TrainLaunch<B> {
        let per_step = self.rows * self.hidden;
        let variant = Variant::new(TrainKernel(name)).flag_if("FIRST", step == 0);
        TrainLaunch::threads(variant, per_step, 64)
            .set("rows", self.rows)
            .set("hidden", self.hidden)
            .set("gates_offset", step * STORED * per_step)
            .set("before_offset", step.saturating_sub(1) * per_step)
            .set("now_offset", step * per_step)
            .bind("out", self.out.clone())
            .bind("gates", self.gates.clone())
    }

    /// Returns the launches of all steps.
    pub fn forward(&self, x: &B) -> Vec<TrainLaunch<B>> {
        let cols = self.cols();
        let [input_bias, state_bias] = match &self.biases {
            Some(biases) => biases.clone().map(Some),
            None => [None, None],
        };
        let all = self.steps * self.rows;
        let x = contiguous(x.clone(), self.inputs);
        let sums = contiguous(self.sums.clone(), cols);
        let mut launches = vec![linear(&self.input_weight, all, 1.0, &x, input_bias, &sums)];
        for step in 0..self.steps {
            if step > 0 {
                let before = self.rows_of(&self.out, self.hidden, step - 1);
                let sums = contiguous(self.state_sums.clone(), cols);
                let weight = &self.state_weight;
                launches.push(linear(weight, self.rows, 1.0, &before, None, &sums));
            }
            let mut launch = self.cell("gru_cell", step);
            launch.variant = launch.variant.flag_if("BIAS", state_bias.is_some());
            launches.push(
                launch
                    .set("input_offset", step * self.rows * cols)
                    .bind("from_input", self.sums.clone())
                    .bind_opt("from_state", (step > 0).then(|| self.state_sums.clone()))
                    .bind_opt("bias", state_bias.clone()),
            );
        }
        launches
    }

    /// Returns the launches of the gradients, last step first.
    pub fn backward(&self, x: &B, to: &GruGradients<B>) -> Vec<TrainLaunch<B>> {
        let cols = self.cols();
        let mut launches = Vec::new();
        for step in (0..self.steps).rev() {
            launches.push(
                self.cell("gru_gradient", step)
                    .set("sums_offset", step * self.rows * cols)
                    .bind("dy", to.dy.clone())
                    .bind("dgates", to.gates.clone())
                    .bind("dstate", to.state_gates.clone()),
            );
            if step > 0 {
                let above = self.rows_of(&to.state_gates, cols, step);
                let before = self.rows_of(&to.dy, self.hidden, step - 1);
                let weight = &self.state_weight;
                launches.push(linear_input(weight, self.rows, 1.0, &above, &before, true));
            }
        }
        let all = self.steps * self.rows;
        let above = contiguous(to.gates.clone(), cols);
        let state_above = contiguous(to.state_gates.clone(), cols);
        let x = contiguous(x.clone(), self.inputs);
        let dx = contiguous(to.dx.clone(), self.inputs);
        let weight = &self.input_weight;
        launches.push(linear_input(weight, all, 1.0, &above, &dx, false));
        let size = [all, cols, self.inputs];
        launches.push(linear_weight(size, 1.0, &above, &x, &to.input_weight));
        if self.steps > 1 {
            let later = self.rows_of(&to.state_gates, cols, 1);
            let out = contiguous(self.out.clone(), self.hidden);
            let size = [all - self.rows, cols, self.hidden];
            launches.push(linear_weight(size, 1.0, &later, &out, &to.state_weight));
        }
        if let Some([input, state]) = &to.biases {
            launches.push(column_sums([all, 1, cols], &above, input.clone(), 0));
            launches.push(column_sums([all, 1, cols], &state_above, state.clone(), 0));
        }
        launches
    }
}
