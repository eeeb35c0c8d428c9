//! Merges matmuls of the same input into one with stacked weights: q, k and v; gate and up.

use super::rewriter::Rewriter;
use crate::ir::{Linear, Node, Op, Value, Weight, WeightId, WeightKind};

/// Merges all matmuls that read the same input and whose tensors `share_storage`.
pub fn merge_siblings(graph: &mut Rewriter, share_storage: &dyn Fn(&str, &str) -> bool) {
    for index in 0..graph.len() {
        let group = siblings(graph, index, share_storage);
        if group.len() > 1 {
            merge(graph, &group);
        }
    }
}

/// Returns a matmul without any fused operation.
fn plain(node: &Node) -> Option<&Linear> {
    match &node.op {
        Op::Linear(linear) if linear.is_plain() => Some(linear),
        _ => None,
    }
}

/// Returns the nodes that can merge with matmul `first`, itself included.
fn siblings(
    graph: &Rewriter,
    first: usize,
    share_storage: &dyn Fn(&str, &str) -> bool,
) -> Vec<usize> {
    let Some(node) = graph.node(first) else {
        return vec![];
    };
    let Some(linear) = plain(node) else {
        return vec![];
    };
    let values = graph.graph();
    let weight = values.weight(linear.weight);
    // Views start at multiples of four columns, for reads of four.
    let fits = |n: &Node| values.value(n.output).cols.is_multiple_of(4);
    if weight.kind != WeightKind::Matrix || !fits(node) {
        return vec![];
    }
    let name = &weight.parts[0].0;
    let alike = |other: &Node| {
        other.inputs == node.inputs
            && fits(other)
            && plain(other).is_some_and(|l| {
                let w = values.weight(l.weight);
                l.bias().is_some() == linear.bias().is_some()
                    && l.epilogue == linear.epilogue
                    && l.scale == linear.scale
                    && w.kind == WeightKind::Matrix
                    && w.parts.iter().all(|part| share_storage(name, &part.0))
            })
    };
    let mut group = graph.readers(node.inputs[0]);
    group.retain(|index| *index >= first && graph.node(*index).is_some_and(&alike));
    group
}

fn merge(graph: &mut Rewriter, group: &[usize]) {
    let nodes: Vec<Node> = group
        .iter()
        .filter_map(|index| graph.node(*index).cloned())
        .collect();
    let linears: Vec<&Linear> = nodes.iter().filter_map(plain).collect();
    let weight = stack(graph, linears.iter().map(|l| l.weight));
    let biases: Option<Vec<WeightId>> = linears.iter().map(|l| l.bias()).collect();
    let bias = biases.map(|biases| stack(graph, biases.into_iter()));

    let values = nodes.iter().map(|node| graph.graph().value(node.output));
    let names: Vec<&str> = values.clone().map(|value| value.name.as_str()).collect();
    let merged = Value {
        name: names.join("+"),
        rows: graph.graph().value(nodes[0].output).rows,
        cols: values.map(|value| value.cols).sum(),
        view: None,
    };
    let merged = graph.add_value(merged);
    let op = Linear {
        weight,
        addend: bias.into(),
        ..linears[0].clone()
    };
    graph.set_output(group[0], op.into(), merged);
    for index in &group[1..] {
        graph.remove(*index);
    }
    let mut first = 0;
    for node in &nodes {
        graph.set_view(node.output, merged, first);
        first += graph.graph().value(node.output).cols;
    }
}

/// Adds a weight that stacks the rows of others.
fn stack(graph: &mut Rewriter, ids: impl Iterator<Item = WeightId>) -> WeightId {
    let weights: Vec<&Weight> = ids.map(|id| graph.graph().weight(id)).collect();
    let stacked = Weight {
        parts: weights.iter().flat_map(|w| w.parts.clone()).collect(),
        cols: weights[0].cols,
        kind: weights[0].kind,
    };
    graph.add_weight(stacked)
}
