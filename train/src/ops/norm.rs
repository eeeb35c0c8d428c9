//! Norms of rows and of column groups.

use super::Differentiate;
use crate::kernels::norm::{NormShape, column_sums};
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Node, Norm, NormPerGroup};

/// The norm of groups of `cols` columns, which writes or reads `stats`.
pub(super) fn shape_of(
    norm: &Norm,
    [rows, groups, cols]: [usize; 3],
    stats: TrainBuffer,
) -> NormShape<TrainBuffer> {
    NormShape {
        rows,
        groups,
        cols,
        layer: norm.layer,
        gain: norm.gain.map(|gain| (TrainBuffer::Vector(gain), 0)),
        bias: norm.bias.map(TrainBuffer::Vector),
        offset: norm.offset,
        eps: norm.eps,
        stats,
    }
}

fn forward(norm: &Norm, groups: usize, tape: &mut Tape<'_>, node: &Node) {
    let cols = tape.cols_of(node.output) / groups;
    let stats = tape.keep("stats", 2 * groups).buffer;
    let shape = shape_of(norm, [tape.rows, groups, cols], stats);
    let launch = shape.forward(&tape.view(node.inputs[0]), &tape.view(node.output));
    tape.push(launch);
}

fn backward(norm: &Norm, groups: usize, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
    let size = [tape.rows, groups, tape.cols_of(node.output) / groups];
    let shape = shape_of(norm, size, tape.kept("stats")?.buffer);
    let x = tape.view(node.inputs[0]);
    let dy = tape.gradient(node.output)?;
    if let Some(gain) = norm.gain.and_then(|gain| tape.weight_gradient(gain)) {
        tape.push(shape.gain(&x, &dy, gain.buffer, 0));
    }
    if let Some(bias) = norm.bias.and_then(|bias| tape.weight_gradient(bias)) {
        tape.push(column_sums(size, &dy, bias.buffer, 0));
    }
    if let Some((dx, add)) = tape.target(node.inputs[0]) {
        tape.push(shape.input(&x, &dy, &dx, add));
    }
    Ok(())
}

impl Differentiate for Norm {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        forward(self, 1, tape, node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        backward(self, 1, tape, node)
    }
}

impl Differentiate for NormPerGroup {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let groups = tape.cols_of(node.output) / self.group;
        forward(&self.norm, groups, tape, node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let groups = tape.cols_of(node.output) / self.group;
        backward(&self.norm, groups, tape, node)
    }
}
