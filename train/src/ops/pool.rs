//! Pooling of packed sequences to one row each.

use super::Differentiate;
use crate::kernels::fill;
use crate::kernels::pool::PoolShape;
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Node, Pool};

fn shape(op: &Pool, tape: &Tape<'_>, node: &Node) -> PoolShape<TrainBuffer> {
    PoolShape {
        sequences: tape.rows_of(node.output),
        cols: tape.cols_of(node.output),
        pooling: op.0,
        spans: TrainBuffer::PoolSpans,
    }
}

impl Differentiate for Pool {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let shape = shape(self, tape, node);
        let launch = shape.forward(&tape.view(node.inputs[0]), &tape.view(node.output));
        tape.push(launch);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let shape = shape(self, tape, node);
        let input = node.inputs[0];
        let dy = tape.gradient(node.output)?;
        let x = tape.view(input);
        let Some((dx, add)) = tape.target(input) else {
            return Ok(());
        };
        // Rows that no sequence pools have no gradient: those of a prompt, and padding.
        if !add {
            let count = tape.rows_of(input) * tape.cols_of(input);
            tape.push(fill(count, dx.buffer));
        }
        tape.push(shape.input(&x, &dy, &dx));
        Ok(())
    }
}
