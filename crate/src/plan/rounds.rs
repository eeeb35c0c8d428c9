//! Rounding to 8 bits behind a norm that the products of few rows make themselves, where all that read it can. Knows what a product's
//! kernel takes along on a device; how it rounds is the kernel's business.

use super::{PlanOptions, RowsMode, Slot};
use crate::ir::{Graph, Node, Op};
use crate::kernels::matmul::{Matmul, View, Weight};
use std::borrow::Cow;

/// The graph without the steps that only round for such products.
pub(super) fn join<'a>(graph: &'a Graph, options: &PlanOptions<'_>) -> Cow<'a, Graph> {
    let mut graph = Cow::Borrowed(graph);
    if !matches!(options.rows, RowsMode::Few(_)) {
        return graph;
    }
    let mut index = 0;
    while let Some(Node { op, inputs, output: made }) = graph.nodes.get(index) {
        let reads = |n: &&Node| n.inputs.contains(made);
        let can = |n: &Node| !n.inputs[1..].contains(made) && rounds(&graph, n, options);
        let norm = match op {
            Op::Round(Some(norm)) if norm.gain.is_some() && norm.bias.is_none() && !norm.layer => Some(norm.clone()),
            _ => None,
        };
        let mut readers = graph.nodes.iter().filter(reads).peekable();
        let Some(norm) = norm.filter(|_| readers.peek().is_some() && readers.all(can)) else {
            index += 1;
            continue;
        };
        let (from, made) = (inputs[0], *made);
        let graph = graph.to_mut();
        graph.nodes.remove(index);
        for reader in graph.nodes.iter_mut().filter(|n| n.inputs.first() == Some(&made)) {
            reader.inputs[0] = from;
            if let Op::Linear(linear) = &mut reader.op {
                (linear.norm, linear.round) = (Some(norm.clone()), true);
            }
        }
    }
    graph
}

/// Whether a node is a product whose kernel rounds.
fn rounds(graph: &Graph, node: &Node, options: &PlanOptions<'_>) -> bool {
    let Op::Linear(linear) = &node.op else { return false };
    let Some(plan) = options.weights.get(&linear.weight).filter(|plan| plan.runs.len() == 1) else { return false };
    let (layout, rows, cols) = (plan.layout, plan.rows as u32, plan.cols as u32);
    let view = View { buffer: Slot::Output, offset: 0, stride: 0 };
    let mut product = Matmul::plain("", Weight { layout, rows, cols, q: Slot::Output, s: None }, view.clone(), view);
    let output = graph.value(node.output);
    product.n = output.cols as u32;
    product.gated = linear.gated.then_some(product.n);
    linear.norm.is_none() && product.rounds(options.caps, options.rows.of(output.rows))
}
