//! Forward and backward pass of recurrent layers.

use super::NetworkBuffer::{Gradient, Weight};
use super::{Buffer, Kept, Recorder, columns};
use crate::kernels::elementwise::{Function, elementwise};
use crate::kernels::gru::{Gru, GruGradients};
use crate::kernels::recurrent::{Recurrence, RecurrenceGradients};
use crate::kernels::{contiguous, fill, swap};
use crate::layers::build::{Cell, Layer, LayerKind, count};

impl Recorder<'_> {
    /// Sizes of a recurrent layer: steps, sequences, inputs, columns of the output, all gates.
    fn recurrent_sizes(&self, layer: &Layer) -> [usize; 5] {
        let (units, gates) = match layer.kind {
            LayerKind::Recurrent { cell, units, .. } => (units, cell.gates() * units),
            _ => (1, 1),
        };
        [layer.input[0], self.batch, layer.input[1], units, gates]
    }

    /// Records a recurrent layer step by step, so all sequences of a step follow each other.
    pub(super) fn recurrent(
        &mut self,
        layer: &Layer,
        x: Buffer,
        buffers: &mut Vec<Buffer>,
    ) -> Buffer {
        let LayerKind::Recurrent {
            cell,
            sequences,
            biases,
            ..
        } = layer.kind
        else {
            return x;
        };
        let [steps, rows, inputs, units, gates] = self.recurrent_sizes(layer);
        let all = steps * rows;
        let by_step = self.temporary(all * inputs);
        self.push(swap([rows, steps, inputs], x, by_step));
        let out = self.temporary(all * units);
        let stored = match cell {
            Cell::Rnn => [1, 1],
            Cell::Lstm => [all * units, all * gates],
            Cell::Gru => [1, all * 4 * units],
        };
        let [cells, stored] = stored.map(|size| self.temporary(size));
        let sums = self.temporary(all * gates);
        let state_sums = self.temporary(rows * gates);
        let bias = match (cell, biases) {
            (Cell::Rnn | Cell::Lstm, Some([a, b])) => Some(self.sum(Weight(a), Weight(b), gates)),
            _ => None,
        };
        buffers.extend([by_step, out, cells, stored, sums, state_sums]);
        let launches = if cell == Cell::Gru {
            self.gru(layer, buffers).forward(&by_step)
        } else {
            let recurrence = self.recurrence(layer, buffers);
            Recurrence { bias, ..recurrence }.forward(&by_step)
        };
        self.launches.extend(launches);
        let y = self.temporary(rows * count(&layer.output));
        if sequences {
            self.push(swap([steps, rows, units], out, y));
        } else {
            let last = columns(out, (steps - 1) * rows * units, units);
            let to = contiguous(y, units);
            let copy = Function::Scale(1.0);
            self.push(elementwise(copy, [rows, units], &[&last], &to, false));
        }
        y
    }

    fn recurrence(&self, layer: &Layer, buffers: &[Buffer]) -> Recurrence<Buffer> {
        let [steps, rows, inputs, hidden, _] = self.recurrent_sizes(layer);
        let (lstm, [input_weight, state_weight]) = match layer.kind {
            LayerKind::Recurrent { cell, weights, .. } => (cell == Cell::Lstm, weights),
            _ => (false, [0; 2]),
        };
        Recurrence {
            lstm,
            steps,
            rows,
            inputs,
            hidden,
            input_weight: self.whole(input_weight),
            state_weight: self.whole(state_weight),
            bias: None,
            out: buffers[1],
            cells: buffers[2],
            gates: buffers[3],
            sums: buffers[4],
            state_sums: buffers[5],
        }
    }

    fn gru(&self, layer: &Layer, buffers: &[Buffer]) -> Gru<Buffer> {
        let [steps, rows, inputs, hidden, _] = self.recurrent_sizes(layer);
        let (biases, [input_weight, state_weight]) = match layer.kind {
            LayerKind::Recurrent {
                biases, weights, ..
            } => (biases, weights),
            _ => (None, [0; 2]),
        };
        Gru {
            steps,
            rows,
            inputs,
            hidden,
            input_weight: self.whole(input_weight),
            state_weight: self.whole(state_weight),
            biases: biases.map(|own| own.map(Weight)),
            out: buffers[1],
            gates: buffers[3],
            sums: buffers[4],
            state_sums: buffers[5],
        }
    }

    pub(super) fn recurrent_backward(&mut self, layer: &Layer, kept: &Kept, dy: Buffer) -> Buffer {
        let LayerKind::Recurrent {
            cell,
            sequences,
            weights: [w, u],
            biases,
            ..
        } = layer.kind
        else {
            return dy;
        };
        let [steps, rows, inputs, units, gates] = self.recurrent_sizes(layer);
        let all = steps * rows;
        let by_step = kept.buffers[0];
        let above = self.temporary(all * units);
        if sequences {
            self.push(swap([rows, steps, units], dy, above));
        } else {
            self.push(fill(all * units, above));
            let last = columns(above, (steps - 1) * rows * units, units);
            let from = contiguous(dy, units);
            let copy = Function::Scale(1.0);
            self.push(elementwise(copy, [rows, units], &[&from], &last, false));
        }
        let dx_by_step = self.temporary(all * inputs);
        let dgates = self.temporary(all * gates);
        let input_weight = self.gradient(w, 0);
        let state_weight = self.gradient(u, 0);
        let launches = if cell == Cell::Gru {
            let to = GruGradients {
                dy: above,
                dx: dx_by_step,
                gates: dgates,
                state_gates: self.temporary(all * gates),
                input_weight,
                state_weight,
                biases: biases.map(|own| own.map(Gradient)),
            };
            self.gru(layer, &kept.buffers).backward(&by_step, &to)
        } else {
            let to = RecurrenceGradients {
                dy: above,
                dx: dx_by_step,
                gates: dgates,
                cells: self.temporary(rows * units),
                input_weight,
                state_weight,
                biases: biases.iter().flatten().map(|own| Gradient(*own)).collect(),
            };
            self.recurrence(layer, &kept.buffers)
                .backward(&by_step, &to)
        };
        self.launches.extend(launches);
        let dx = self.temporary(all * inputs);
        self.push(swap([steps, rows, inputs], dx_by_step, dx));
        dx
    }
}
