//! Expert prefetch: predicts the next layer's experts, so that they can be fetched before use.
//! Source: "Fast Inference of Mixture-of-Experts Language Models with Offloading" (arXiv
//! 2312.17238), which applies the next layer's router to this layer's input.

use crate::ir::{Graph, Node, Op, Value, ValueId};

/// Adds a prediction after each router but the last: the next layer's router applied to the same
/// input. No node reads the predictions; they directly follow the selection.
pub fn add_prefetch_routers(mut graph: Graph) -> Graph {
    let routes: Vec<usize> = (0..graph.nodes.len())
        .filter(|i| matches!(graph.nodes[*i].op, Op::TopKRouter(_)))
        .collect();
    for pair in routes.windows(2).rev() {
        let here = pair[0];
        let next = pair[1];

        let (Some(own), Some(other)) = (router_matmul(&graph, here), router_matmul(&graph, next))
        else {
            continue;
        };
        let input = own.inputs[0];
        if graph.value(input).cols != graph.value(other.inputs[0]).cols {
            continue;
        }
        let logits = add_value_like(&mut graph, other.output);
        let mut guess = graph.nodes[next].clone();
        if let Op::TopKRouter(router) = &mut guess.op {
            router.prefetch = true;
        }
        let selected = add_value_like(&mut graph, guess.output);
        graph.nodes.insert(
            here + 1,
            Node {
                op: guess.op,
                inputs: vec![logits],
                output: selected,
            },
        );
        graph.nodes.insert(
            here + 1,
            Node {
                op: other.op,
                inputs: vec![input],
                output: logits,
            },
        );
    }
    graph
}

/// Returns the plain matmul that computes a router's logits.
fn router_matmul(graph: &Graph, route: usize) -> Option<Node> {
    let logits = graph.nodes[route].inputs[0];
    let node = graph.nodes.iter().find(|n| n.output == logits)?;
    (matches!(node.op, Op::Linear(_)) && node.inputs.len() == 1).then(|| node.clone())
}

/// Adds a value of the same shape as another, for a prediction.
fn add_value_like(graph: &mut Graph, like: ValueId) -> ValueId {
    let Value {
        name, rows, cols, ..
    } = graph.value(like).clone();
    graph.values.push(Value {
        name: format!("{name}, guessed"),
        rows,
        cols,
        view: None,
    });
    ValueId(graph.values.len() - 1)
}
