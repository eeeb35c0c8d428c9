//! Low-rank adapters (LoRA, arXiv 2106.09685) as a graph transformation.

use super::{
    Activation, Add, Epilogue, Graph, Linear, Node, Op, Prologue, Unary, Value, ValueId, Weight,
    WeightId, WeightKind,
};

/// The update of one matrix: `y += scale * B (A x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRankUpdate {
    /// Checkpoint name of the matrix.
    pub matrix: String,
    /// Name of A, `[rank, in]`.
    pub a: String,
    /// Name of B, `[out, rank]`.
    pub b: String,
    /// Rank.
    pub rank: usize,
    /// Multiplies the update.
    pub scale: f32,
    /// Name of the rows' norms, `[out]`, of DoRA. [`add_low_rank_updates`] has no use for them.
    pub magnitude: Option<String>,
}

impl LowRankUpdate {
    /// Whether it updates the matrix of this checkpoint name. An adapter may name an outer module that
    /// the checkpoint leaves out, or leave out one that the checkpoint names.
    pub fn names(&self, matrix: &str) -> bool {
        let is_inside = |long: &str, short: &str| {
            let outer = long.strip_suffix(short);
            outer.is_some_and(|outer| outer.is_empty() || outer.ends_with('.'))
        };
        is_inside(&self.matrix, matrix) || is_inside(matrix, &self.matrix)
    }
}

/// Adds updates after the matmuls whose matrix they name. Apply it before any fusion. Returns the
/// graph and the number of updates that a matmul took.
pub fn add_low_rank_updates(mut graph: Graph, updates: &[LowRankUpdate]) -> (Graph, usize) {
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    let mut taken = 0;
    for mut node in std::mem::take(&mut graph.nodes) {
        let update = match &node.op {
            Op::Linear(linear) => update_of(&graph, linear, updates),
            _ => None,
        };
        let (Some(update), Op::Linear(linear)) = (update, &mut node.op) else {
            nodes.push(node);
            continue;
        };
        taken += 1;
        let rows = graph.weight(linear.weight).parts.iter().map(|part| part.1);
        let rows = rows.sum();
        // An activation follows the sum.
        let none = Epilogue::Activation(Activation::None);
        let epilogue = std::mem::replace(&mut linear.epilogue, none);
        let row0 = linear.row0;
        let scale = linear.scale;
        let output = node.output;
        let input = node.inputs[0];
        let own = add_value(&mut graph, output, None);
        node.output = own;
        nodes.push(node);
        let down = add_value(&mut graph, output, Some(update.rank));
        let up = add_value(&mut graph, output, None);
        let a = add_matrix(&mut graph, &update.a, update.rank, input);
        let b = add_matrix(&mut graph, &update.b, rows, down);
        let scaled = Linear {
            scale: update.scale * scale,
            row0,
            ..Linear::new(b, None)
        };
        let sum = match epilogue {
            Epilogue::Activation(Activation::None) => output,
            _ => add_value(&mut graph, output, None),
        };
        for (op, inputs, output) in [
            (Op::Linear(Linear::new(a, None)), vec![input], down),
            (Op::Linear(scaled), vec![down], up),
            (Op::Add(Add), vec![own, up], sum),
        ] {
            nodes.push(Node { op, inputs, output });
        }
        if let Epilogue::Activation(act) = epilogue
            && act != Activation::None
        {
            nodes.push(Node {
                op: Op::Unary(Unary(act)),
                inputs: vec![sum],
                output,
            });
        }
    }
    graph.nodes = nodes;
    (graph, taken)
}

fn update_of<'a>(
    graph: &Graph,
    linear: &Linear,
    updates: &'a [LowRankUpdate],
) -> Option<&'a LowRankUpdate> {
    let [(name, _)] = &graph.weight(linear.weight).parts[..] else {
        return None;
    };
    // What comes between the matmul and its sum with the update is not supported.
    let is_plain = linear.prologue == Prologue::None
        && linear.softcap == 0.0
        && matches!(linear.epilogue, Epilogue::Activation(_));
    if !is_plain {
        return None;
    }
    updates.iter().find(|update| update.names(name))
}

/// Adds a value with the rows of `like`, and its columns unless given.
fn add_value(graph: &mut Graph, like: ValueId, cols: Option<usize>) -> ValueId {
    let Value {
        name,
        rows,
        cols: all,
        ..
    } = graph.value(like).clone();
    graph.values.push(Value {
        name: format!("{name}, adapter"),
        rows,
        cols: cols.unwrap_or(all),
        view: None,
    });
    ValueId(graph.values.len() - 1)
}

/// Adds a matrix that reads `input`. It is declared as a router: a small matrix that is neither
/// quantized while loading nor merged with the matmuls of the same input, whose merged weights the
/// model has on the device.
fn add_matrix(graph: &mut Graph, name: &str, rows: usize, input: ValueId) -> WeightId {
    graph.weights.push(Weight {
        parts: vec![(name.into(), rows)],
        cols: graph.value(input).cols,
        kind: WeightKind::Router,
    });
    WeightId(graph.weights.len() - 1)
}
