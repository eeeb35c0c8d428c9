//! Short causal convolutions, gated as in LFM2 or plain.

use super::Differentiate;
use super::elementwise::add;
use crate::kernels::elementwise::{Function, elementwise};
use crate::kernels::norm::column_sums;
use crate::kernels::short_conv::ShortConvShape;
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Activation, Node, ShortConv};
use jerboa::kernels::view::View;

/// What the forward pass keeps: the product of x and its gate, and the convolution.
const KEPT: [&str; 2] = ["gated input", "convolution"];

/// Appends `out = a · b`.
fn product(
    tape: &mut Tape<'_>,
    [a, b]: [&View<TrainBuffer>; 2],
    out: &View<TrainBuffer>,
    cols: usize,
) {
    let size = [tape.rows, cols];
    tape.push(elementwise(Function::Product, size, &[a, b], out, false));
}

fn shape(op: &ShortConv, tape: &Tape<'_>, node: &Node) -> ShortConvShape<TrainBuffer> {
    ShortConvShape {
        rows: tape.rows,
        cols: tape.cols_of(node.output),
        taps: op.kernel_size,
        weight: TrainBuffer::Vector(op.weight),
        spans: TrainBuffer::Spans,
    }
}

impl Differentiate for ShortConv {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let is_scaled = self.scales.iter().any(|(_, scale)| *scale != 1.0);
        if self.act != Activation::None || is_scaled {
            return Err(tape.refuse(node));
        }
        let shape = shape(self, tape, node);
        let bias = self.bias.map(TrainBuffer::Vector);
        let x = tape.view(node.inputs[0]);
        let out = tape.view(node.output);
        let &[_, before, after] = node.inputs.as_slice() else {
            tape.push(shape.forward(&x, bias, &out));
            return Ok(());
        };
        let [gated, mixed] = KEPT.map(|name| tape.keep(name, shape.cols));
        let before = tape.view(before);
        product(tape, [&x, &before], &gated, shape.cols);
        tape.push(shape.forward(&gated, bias, &mixed));
        let after = tape.view(after);
        product(tape, [&mixed, &after], &out, shape.cols);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let shape = shape(self, tape, node);
        let cols = shape.cols;
        let mut x = tape.view(node.inputs[0]);
        let mut dy = tape.gradient(node.output)?;
        let gates = match node.inputs.as_slice() {
            &[_, before, after] => Some([before, after]),
            _ => None,
        };
        if let Some([_, after]) = gates {
            x = tape.kept(KEPT[0])?;
            let mixed = tape.kept(KEPT[1])?;
            let above = tape.temporary(cols);
            let gate = tape.view(after);
            product(tape, [&dy, &gate], &above, cols);
            add(tape, Function::Product, &[&dy, &mixed], after);
            dy = above;
        }
        if let Some(weight) = tape.weight_gradient(self.weight) {
            tape.push(shape.weight(&x, &dy, weight.buffer));
        }
        if let Some(bias) = self.bias.and_then(|bias| tape.weight_gradient(bias)) {
            tape.push(column_sums([tape.rows, 1, cols], &dy, bias.buffer, 0));
        }
        let Some([before, _]) = gates else {
            if let Some((dx, add)) = tape.target(node.inputs[0]) {
                tape.push(shape.input(&dy, &dx, add));
            }
            return Ok(());
        };
        let dx = tape.temporary(cols);
        tape.push(shape.input(&dy, &dx, false));
        let factors = [node.inputs[0], before];
        for (index, input) in factors.into_iter().enumerate() {
            let other = tape.view(factors[1 - index]);
            add(tape, Function::Product, &[&dx, &other], input);
        }
        Ok(())
    }
}
