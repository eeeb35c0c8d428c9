//! Gathers matmul inputs into the column order of their weights (act-order).

use crate::ir::{Gather, Graph, Node, Op, Value, ValueId, Weight, WeightId, WeightKind};
use std::sync::Arc;

/// Gathers matmul inputs into the column order of their weights. Matmuls of one input with the same
/// order share a gather and can be merged afterwards.
pub fn gather_inputs(mut graph: Graph, order_of: &dyn Fn(&str) -> Option<Arc<[u32]>>) -> Graph {
    let mut gathers: Vec<(ValueId, Arc<[u32]>, ValueId)> = Vec::new();
    for mut node in std::mem::take(&mut graph.nodes) {
        if let Op::Linear(linear) = &node.op {
            let name = graph.weight(linear.weight).parts[0].0.clone();
            if let Some(order) = order_of(&name) {
                let input = node.inputs[0];
                let shared = gathers
                    .iter()
                    .find(|(of, with, _)| *of == input && *with == order)
                    .map(|gather| gather.2);
                node.inputs[0] = shared.unwrap_or_else(|| {
                    let gathered = add_gather(&mut graph, name, input);
                    gathers.push((input, order, gathered));
                    gathered
                });
            }
        }
        graph.nodes.push(node);
    }
    graph
}

/// Adds the gather of an input for a matrix; its order is a weight of the same name.
fn add_gather(graph: &mut Graph, matrix: String, input: ValueId) -> ValueId {
    let Value {
        name, rows, cols, ..
    } = graph.value(input).clone();
    graph.weights.push(Weight {
        parts: vec![(matrix, cols)],
        cols: 1,
        kind: WeightKind::Order,
    });
    graph.values.push(Value {
        name: format!("{name}, gathered"),
        rows,
        cols,
        view: None,
    });
    let order = WeightId(graph.weights.len() - 1);
    let output = ValueId(graph.values.len() - 1);
    graph.nodes.push(Node {
        op: Gather { order }.into(),
        inputs: vec![input],
        output,
    });
    output
}
