//! Fuses 8-bit activation quantization into the decode GEMVs, if every consumer supports it.

use super::{PlanOptions, StepKind};
use crate::ir::{Graph, Node, Op};
use std::borrow::Cow;

/// Returns the graph without separate quantization steps for such GEMVs.
pub(super) fn fuse_quantize<'a>(graph: &'a Graph, options: &PlanOptions<'_>) -> Cow<'a, Graph> {
    let mut graph = Cow::Borrowed(graph);
    if !matches!(options.rows, StepKind::Decode(_)) {
        return graph;
    }
    let mut index = 0;
    while let Some(Node {
        op,
        inputs,
        output: made,
    }) = graph.nodes.get(index)
    {
        let reads = |n: &&Node| n.inputs.contains(made);
        let can = |n: &Node| !n.inputs[1..].contains(made) && can_quantize(&graph, n, options);
        let norm = match op {
            Op::QuantizeActivations(Some(norm))
                if norm.gain.is_some() && norm.bias.is_none() && !norm.layer =>
            {
                Some(norm.clone())
            }
            _ => None,
        };
        let mut readers = graph.nodes.iter().filter(reads).peekable();
        let Some(norm) = norm.filter(|_| readers.peek().is_some() && readers.all(can)) else {
            index += 1;
            continue;
        };
        let from = inputs[0];
        let made = *made;

        let graph = graph.to_mut();
        graph.nodes.remove(index);
        for reader in graph
            .nodes
            .iter_mut()
            .filter(|n| n.inputs.first() == Some(&made))
        {
            reader.inputs[0] = from;
            if let Op::Linear(linear) = &mut reader.op {
                (linear.norm, linear.quantize) = (Some(norm.clone()), true);
            }
        }
    }
    graph
}

/// Whether a node is a matmul whose kernel can quantize its input.
fn can_quantize(graph: &Graph, node: &Node, options: &PlanOptions<'_>) -> bool {
    let Op::Linear(linear) = &node.op else {
        return false;
    };
    let rows = options.rows.of(graph.value(node.output).rows);
    linear.norm.is_none()
        && options
            .matmul_of(graph, node)
            .is_some_and(|product| product.quantizes_input(options.caps, rows))
}
