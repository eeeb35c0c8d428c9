//! Elementwise operations.

use super::Differentiate;
use crate::kernels::contiguous;
use crate::kernels::elementwise::{Function, elementwise};
use crate::kernels::norm::column_sums;
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Add, Gated, Mul, MulVector, Node, Scale, Unary, ValueId};
use jerboa::kernels::view::View;

/// Appends `out = function(inputs)` over the rows of a node.
fn compute(tape: &mut Tape<'_>, function: Function, inputs: &[&View<TrainBuffer>], node: &Node) {
    let size = [tape.rows, tape.cols_of(node.output)];
    let out = tape.view(node.output);
    tape.push(elementwise(function, size, inputs, &out, false));
}

/// Adds `function(inputs)` to the gradient of a node's input.
pub(super) fn add(
    tape: &mut Tape<'_>,
    function: Function,
    inputs: &[&View<TrainBuffer>],
    input: ValueId,
) {
    let size = [tape.rows, tape.cols_of(input)];
    if let Some((dx, add)) = tape.target(input) {
        tape.push(elementwise(function, size, inputs, &dx, add));
    }
}

impl Differentiate for Add {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let [a, b] = [tape.view(node.inputs[0]), tape.view(node.inputs[1])];
        compute(tape, Function::Sum, &[&a, &b], node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let dy = tape.gradient(node.output)?;
        tape.copy(&dy, node.inputs[1]);
        tape.pass_on(node.output, node.inputs[0])
    }
}

impl Differentiate for Mul {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let [a, b] = [tape.view(node.inputs[0]), tape.view(node.inputs[1])];
        compute(tape, Function::Product, &[&a, &b], node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let [a, b] = [tape.view(node.inputs[0]), tape.view(node.inputs[1])];
        let dy = tape.gradient(node.output)?;
        add(tape, Function::Product, &[&dy, &b], node.inputs[0]);
        add(tape, Function::Product, &[&dy, &a], node.inputs[1]);
        Ok(())
    }
}

impl Differentiate for Gated {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        if tape.cols_of(node.inputs[0]) != tape.cols_of(node.output) {
            return Err(tape.refuse(node));
        }
        let [a, b] = [tape.view(node.inputs[0]), tape.view(node.inputs[1])];
        compute(tape, Function::Gate(self.0), &[&a, &b], node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let [a, b] = [tape.view(node.inputs[0]), tape.view(node.inputs[1])];
        let dy = tape.gradient(node.output)?;
        add(
            tape,
            Function::GateGradient(self.0),
            &[&a, &b, &dy],
            node.inputs[0],
        );
        add(tape, Function::Gate(self.0), &[&a, &dy], node.inputs[1]);
        Ok(())
    }
}

impl Differentiate for Unary {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let a = tape.view(node.inputs[0]);
        compute(tape, Function::Activation(self.0), &[&a], node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let a = tape.view(node.inputs[0]);
        let dy = tape.gradient(node.output)?;
        add(
            tape,
            Function::ActivationGradient(self.0),
            &[&a, &dy],
            node.inputs[0],
        );
        Ok(())
    }
}

impl Differentiate for Scale {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let a = tape.view(node.inputs[0]);
        compute(tape, Function::Scale(self.0), &[&a], node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let dy = tape.gradient(node.output)?;
        add(tape, Function::Scale(self.0), &[&dy], node.inputs[0]);
        Ok(())
    }
}

/// The function of a product with a vector or a scalar, and the view of the vector.
fn scaling(op: &MulVector, tape: &Tape<'_>) -> (Function, View<TrainBuffer>) {
    let function = if tape.graph.weight(op.0).rows() == 1 {
        Function::ScalarScale
    } else {
        Function::ColumnScale
    };
    (function, contiguous(TrainBuffer::Vector(op.0), 0))
}

impl Differentiate for MulVector {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let a = tape.view(node.inputs[0]);
        let (function, vector) = scaling(self, tape);
        if function == Function::ScalarScale && tape.is_trained(self.0) {
            return Err(tape.refuse(node));
        }
        compute(tape, function, &[&a, &vector], node);
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let dy = tape.gradient(node.output)?;
        let (function, vector) = scaling(self, tape);
        add(tape, function, &[&dy, &vector], node.inputs[0]);
        if let Some(gradient) = tape.weight_gradient(self.0) {
            let cols = tape.cols_of(node.output);
            let a = tape.view(node.inputs[0]);
            let products = tape.temporary(cols);
            let size = [tape.rows, cols];
            tape.push(elementwise(
                Function::Product,
                size,
                &[&a, &dy],
                &products,
                false,
            ));
            tape.push(column_sums(
                [tape.rows, 1, cols],
                &products,
                gradient.buffer,
                0,
            ));
        }
        Ok(())
    }
}
