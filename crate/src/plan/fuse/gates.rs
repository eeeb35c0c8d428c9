//! Fuses activations that gate a matmul, or that multiply it with other rows, into the matmul.

use super::rewriter::Rewriter;
use crate::ir::{Activation, Combine, Epilogue, Linear, Node, Op, ValueId};

/// Fuses gates into the matmuls that compute them.
pub fn merge_gates(graph: &mut Rewriter) {
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        let fused = gated_matmul(graph, node).or_else(|| multiplied_matmul(graph, node));
        if let Some((producer, linear, other)) = fused {
            graph.fuse_into_producer(producer, index, linear.into(), other);
        }
    }
}

/// A matmul's index, what it becomes, and the value that it reads in addition.
type FusedMatmul = (usize, Linear, Option<ValueId>);

/// Returns a matmul without fused operations and activation.
fn bare(node: &Node) -> Option<&Linear> {
    match &node.op {
        Op::Linear(linear) => Some(linear)
            .filter(|linear| linear.is_plain() && linear.activation() == Activation::None),
        _ => None,
    }
}

/// Returns the matmul whose two halves a node gates, if it has no other reader.
fn gated_matmul(graph: &Rewriter, node: &Node) -> Option<FusedMatmul> {
    let Op::Gated(gated) = node.op else {
        return None;
    };
    let values = graph.graph();
    let (gate, first) = values.root(node.inputs[0]);
    let (up, second) = values.root(node.inputs[1]);
    let cols = values.value(node.output).cols;
    let adjacent =
        gate == up && first == 0 && second == cols && values.value(gate).cols == 2 * cols;
    let producer = graph
        .producer(gate)
        .filter(|_| adjacent && graph.uses(gate) == 2)?;
    let linear = Linear {
        epilogue: Epilogue::Gate(gated.0),
        ..bare(graph.node(producer)?)?.clone()
    };
    Some((producer, linear, None))
}

/// Returns the matmul that a node multiplies by other rows, if it has no other reader and the rows
/// are computed before it.
fn multiplied_matmul(graph: &Rewriter, node: &Node) -> Option<FusedMatmul> {
    let Op::Gated(gated) = node.op else {
        return None;
    };
    let [gate, other] = [node.inputs[0], node.inputs[1]];
    let (producer, matmul) = graph.sole_producer(gate)?;
    let values = graph.graph();
    let size = |id: ValueId| (values.value(id).rows, values.value(id).cols);
    let alike = size(gate) == size(other) && size(gate) == size(node.output);
    if !alike || !graph.is_before(other, producer) {
        return None;
    }
    let linear = Linear {
        epilogue: Epilogue::Activation(gated.0),
        combine: Combine::Mul,
        ..bare(matmul)?.clone()
    };
    Some((producer, linear, Some(other)))
}
