//! Fusion passes over a graph. Each can be switched off, and none changes the result.

use crate::format::layout::WeightLayout;
use crate::ir::{
    Dim, Graph, Linear, Node, NormResidual, Op, Value, ValueId, Weight, WeightId, WeightKind,
};
use std::sync::Arc;

/// Enabled fusions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fusions {
    /// Merges matmuls of the same input (q, k, v; gate and up).
    pub siblings: bool,
    /// Fuses gate, up and activation.
    pub gated: bool,
    /// Fuses the residual into the preceding matmul or norm.
    pub residual: bool,
    /// Fuses RMSNorm into the following matmuls (decode only), and norms into the following
    /// quantization.
    pub norm: bool,
    /// Fuses head norm, RoPE and the cache write into attention (decode only), and norms of values
    /// into their cache write.
    pub heads: bool,
}

impl Fusions {
    /// All fusions.
    pub const ALL: Self = Self {
        siblings: true,
        gated: true,
        residual: true,
        norm: true,
        heads: true,
    };
    /// No fusions.
    pub const NONE: Self = Self {
        siblings: false,
        gated: false,
        residual: false,
        norm: false,
        heads: false,
    };
}

/// Applies the fusions shared by prefill and decode, including those that decide weight storage.
pub fn common(
    mut graph: Graph,
    fusions: Fusions,
    layout_of: &dyn Fn(&str) -> WeightLayout,
) -> Graph {
    if fusions.siblings {
        merge_siblings(&mut graph, layout_of);
    }
    if fusions.gated {
        merge_gated(&mut graph);
    }
    if fusions.residual {
        merge_residuals(&mut graph);
        merge_norm_residuals(&mut graph);
    }
    if fusions.norm {
        merge_quantized_norms(&mut graph);
    }
    if fusions.heads {
        merge_values(&mut graph);
    }
    graph
}

/// Applies the fusions for few rows, all of which are outputs; a single row needs no last-row copy.
/// `hidden` is not an output if its norm is fused.
pub fn few_rows(graph: Graph, fusions: Fusions) -> Graph {
    let mut graph = all_rows(graph);
    // External rows occur in prompts only.
    let (soft, kept) = graph
        .nodes
        .drain(..)
        .partition(|n| matches!(n.op, Op::AddSoftTokens { .. }));
    graph.nodes = kept;
    let soft: Vec<Node> = soft;
    for node in soft {
        graph.values[node.output.0].view = Some((node.inputs[0], 0));
    }
    if fusions.norm {
        merge_norms(&mut graph);
    }
    graph
}

/// Removes the last-row selection: computes logits or hidden states for every token.
pub fn all_rows(mut graph: Graph) -> Graph {
    let (last, kept): (Vec<Node>, Vec<Node>) =
        graph.nodes.drain(..).partition(|n| n.op == Op::LastRow);
    graph.nodes = kept;
    for node in last {
        graph.values[node.output.0].view = Some((node.inputs[0], 0));
    }
    graph
        .values
        .iter_mut()
        .filter(|v| v.rows == Dim::Last)
        .for_each(|v| v.rows = Dim::TOKENS);
    graph
}

/// Gathers matmul inputs into the column order of their weights (act-order). Matmuls of one input
/// with the same order share a gather and can be merged afterwards.
pub fn gather_inputs(mut graph: Graph, order_of: &dyn Fn(&str) -> Option<Arc<[u32]>>) -> Graph {
    let mut made: Vec<(ValueId, Arc<[u32]>, ValueId)> = Vec::new();
    let mut index = 0;
    while index < graph.nodes.len() {
        let Op::Linear(linear) = &graph.nodes[index].op else {
            index += 1;
            continue;
        };
        let name = graph.weight(linear.weight).parts[0].0.clone();
        if let Some(order) = order_of(&name) {
            let input = graph.nodes[index].inputs[0];
            let found = made
                .iter()
                .find(|(of, with, _)| *of == input && *with == order)
                .map(|m| m.2);
            let gathered = found.unwrap_or_else(|| {
                let cols = graph.value(input).cols;
                let rows = graph.value(input).rows;

                graph.weights.push(Weight {
                    parts: vec![(name, cols)],
                    cols: 1,
                    kind: WeightKind::Order,
                });
                let order_id = WeightId(graph.weights.len() - 1);
                let name = format!("{}, gathered", graph.value(input).name);
                graph.values.push(Value {
                    name,
                    rows,
                    cols,
                    view: None,
                });
                let output = ValueId(graph.values.len() - 1);
                graph.nodes.insert(
                    index,
                    Node {
                        op: Op::Gather { order: order_id },
                        inputs: vec![input],
                        output,
                    },
                );
                made.push((input, order, output));
                index += 1;
                output
            });
            graph.nodes[index].inputs[0] = gathered;
        }
        index += 1;
    }
    graph
}

/// Returns a matmul without any fused operation.
fn plain(node: &Node) -> Option<&Linear> {
    match &node.op {
        Op::Linear(l) if l.norm.is_none() && !l.gated && !l.residual && l.softcap == 0.0 => Some(l),
        _ => None,
    }
}

fn merge_siblings(graph: &mut Graph, layout_of: &dyn Fn(&str) -> WeightLayout) {
    let mut index = 0;
    while index < graph.nodes.len() {
        let group = siblings(graph, index, layout_of);
        if group.len() > 1 {
            merge(graph, &group);
        }
        index += 1;
    }
}

/// Returns the nodes that can merge with matmul `first`, itself included.
fn siblings(graph: &Graph, first: usize, layout_of: &dyn Fn(&str) -> WeightLayout) -> Vec<usize> {
    let node = &graph.nodes[first];
    let Some(linear) = plain(node) else {
        return vec![];
    };
    let layout = |w: &Weight| w.parts.iter().map(|p| layout_of(&p.0)).collect::<Vec<_>>();
    let weight = graph.weight(linear.weight);
    // Views start at multiples of four columns, for reads of four.
    let fits = |n: &Node| graph.value(n.output).cols.is_multiple_of(4);
    if weight.kind != WeightKind::Matrix || !fits(node) {
        return vec![];
    }
    let kind = layout(weight)[0];
    let alike = |i: &usize| {
        let other = &graph.nodes[*i];
        other.inputs == node.inputs
            && fits(other)
            && plain(other).is_some_and(|l| {
                let w = graph.weight(l.weight);
                l.bias.is_some() == linear.bias.is_some()
                    && l.act == linear.act
                    && l.scale == linear.scale
                    && w.kind == WeightKind::Matrix
                    && layout(w).iter().all(|l| *l == kind)
            })
    };
    (first..graph.nodes.len()).filter(alike).collect()
}

fn merge(graph: &mut Graph, group: &[usize]) {
    let linears: Vec<Linear> = group
        .iter()
        .filter_map(|i| plain(&graph.nodes[*i]).cloned())
        .collect();
    let outputs: Vec<ValueId> = group.iter().map(|i| graph.nodes[*i].output).collect();
    let join = |graph: &mut Graph, ids: Vec<WeightId>| {
        let parts = ids
            .iter()
            .flat_map(|id| graph.weight(*id).parts.clone())
            .collect();
        let cols = graph.weight(ids[0]).cols;
        let kind = graph.weight(ids[0]).kind;

        graph.weights.push(Weight { parts, cols, kind });
        WeightId(graph.weights.len() - 1)
    };
    let weight = join(graph, linears.iter().map(|l| l.weight).collect());
    let biases: Option<Vec<WeightId>> = linears.iter().map(|l| l.bias).collect();
    let bias = biases.map(|b| join(graph, b));
    let names: Vec<String> = outputs
        .iter()
        .map(|o| graph.value(*o).name.clone())
        .collect();
    let cols = outputs.iter().map(|o| graph.value(*o).cols).sum();
    let rows = graph.value(outputs[0]).rows;
    graph.values.push(Value {
        name: names.join("+"),
        rows,
        cols,
        view: None,
    });
    let output = ValueId(graph.values.len() - 1);
    let mut first = 0;
    for id in &outputs {
        graph.values[id.0].view = Some((output, first));
        first += graph.value(*id).cols;
    }
    let inputs = graph.nodes[group[0]].inputs.clone();
    let op = Op::Linear(Linear {
        weight,
        bias,
        ..linears[0].clone()
    });
    graph.nodes[group[0]] = Node { op, inputs, output };
    for index in group[1..].iter().rev() {
        graph.nodes.remove(*index);
    }
}

fn merge_gated(graph: &mut Graph) {
    let uses = graph.uses();
    let mut index = 0;
    while index < graph.nodes.len() {
        if let Some((producer, act)) = gated_matmul(graph, index, &uses) {
            let output = graph.nodes[index].output;
            if let Op::Linear(linear) = &mut graph.nodes[producer].op {
                (linear.gated, linear.act) = (true, act);
                graph.nodes[producer].output = output;
                graph.nodes.remove(index);
                continue;
            }
        }
        if let Some((producer, act, other)) = multiplied_matmul(graph, index, &uses) {
            let output = graph.nodes[index].output;
            if let Op::Linear(linear) = &mut graph.nodes[producer].op {
                (linear.act, linear.residual, linear.multiply) = (act, true, true);
                graph.nodes[producer].inputs.push(other);
                graph.nodes[producer].output = output;
                graph.nodes.remove(index);
                continue;
            }
        }
        index += 1;
    }
}

/// Returns the matmul that node `index` multiplies by other rows, if it has no other reader and the
/// rows were computed before it.
fn multiplied_matmul(
    graph: &Graph,
    index: usize,
    uses: &[usize],
) -> Option<(usize, crate::ir::Activation, ValueId)> {
    let node = &graph.nodes[index];
    let (Op::Gated(act), [gate, other]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    let producer = graph
        .nodes
        .iter()
        .position(|n| n.output == *gate && uses[gate.0] == 1)?;
    let made = graph
        .nodes
        .iter()
        .position(|n| n.output == graph.root(*other).0)?;
    let size = |id: ValueId| (graph.value(id).rows, graph.value(id).cols);
    let alike = size(*gate) == size(*other) && size(*gate) == size(node.output);
    let none = plain(&graph.nodes[producer])?.act == crate::ir::Activation::None;
    (alike && none && made < producer).then_some((producer, *act, *other))
}

/// Returns the matmul whose two halves node `index` gates, if it has no other reader.
fn gated_matmul(
    graph: &Graph,
    index: usize,
    uses: &[usize],
) -> Option<(usize, crate::ir::Activation)> {
    let node = &graph.nodes[index];
    let Op::Gated(act) = node.op else { return None };
    let (gate, first) = graph.root(node.inputs[0]);
    let (up, second) = graph.root(node.inputs[1]);

    let cols = graph.value(node.output).cols;
    let halves = gate == up && first == 0 && second == cols && graph.value(gate).cols == 2 * cols;
    let producer = graph.nodes.iter().position(|n| n.output == gate)?;
    let linear = plain(&graph.nodes[producer])?;
    (halves && uses[gate.0] == 2 && linear.act == crate::ir::Activation::None)
        .then_some((producer, act))
}

fn merge_residuals(graph: &mut Graph) {
    let uses = graph.uses();
    let mut index = 0;
    while index < graph.nodes.len() {
        let node = graph.nodes[index].clone();
        let made = |id: ValueId| {
            graph
                .nodes
                .iter()
                .position(|n| n.output == graph.root(id).0)
                .unwrap_or(0)
        };
        let takes = |product: ValueId, other: ValueId| {
            let producer = made(product);
            let open = match &graph.nodes[producer].op {
                Op::Linear(l) => !l.residual && l.softcap == 0.0,
                Op::ExpertDown(e) => !e.residual,
                _ => false,
            };
            let own = graph.nodes[producer].output == product && uses[product.0] == 1;
            (open && own && made(other) < producer).then_some((producer, other))
        };
        let found = match node.op {
            Op::Add => takes(node.inputs[1], node.inputs[0])
                .or_else(|| takes(node.inputs[0], node.inputs[1])),
            _ => None,
        };
        if let Some((producer, residual)) = found {
            match &mut graph.nodes[producer].op {
                Op::Linear(linear) => linear.residual = true,
                Op::ExpertDown(mix) => mix.residual = true,
                _ => {}
            }
            graph.nodes[producer].inputs.push(residual);
            graph.nodes[producer].output = node.output;
            graph.nodes.remove(index);
        } else {
            index += 1;
        }
    }
}

/// Fuses a norm that is only added to other rows with the sum and its scale.
fn merge_norm_residuals(graph: &mut Graph) {
    let uses = graph.uses();
    let mut index = 0;
    while index < graph.nodes.len() {
        let node = graph.nodes[index].clone();
        let found = norm_residual_of(graph, &node, node.inputs.first(), &uses).or_else(|| {
            // The other operand of the sum.
            let second = node.inputs.get(1).filter(|_| node.op == Op::Add);
            norm_residual_of(graph, &node, second, &uses)
        });
        if let Some((producer, op, rest)) = found {
            graph.nodes[producer].op = Op::NormResidual(op);
            graph.nodes[producer].inputs.extend(rest);
            graph.nodes[producer].output = node.output;
            graph.nodes.remove(index);
        } else {
            index += 1;
        }
    }
}

/// Returns the norm that computes `part` for `node` only, the fused operation, and its additional
/// inputs.
fn norm_residual_of(
    graph: &Graph,
    node: &Node,
    part: Option<&ValueId>,
    uses: &[usize],
) -> Option<(usize, NormResidual, Option<ValueId>)> {
    let made = |id: ValueId| {
        graph
            .nodes
            .iter()
            .position(|n| n.output == graph.root(id).0)
            .unwrap_or(0)
    };
    let part = *part?;
    let producer = graph
        .nodes
        .iter()
        .position(|n| n.output == part && uses[part.0] == 1)?;
    let mut sum = match &graph.nodes[producer].op {
        Op::Norm(norm) => NormResidual {
            norm: norm.clone(),
            scale: 1.0,
            scale_weight: None,
        },
        Op::NormResidual(sum) => sum.clone(),
        _ => return None,
    };
    let inputs = graph.nodes[producer].inputs.len();
    let open = sum.scale == 1.0 && sum.scale_weight.is_none();

    match node.op {
        Op::Add if open && inputs < 3 => {
            let rest = *node.inputs.iter().find(|i| **i != part)?;
            return (made(rest) < producer).then_some((producer, sum, Some(rest)));
        }
        Op::Scale(factor) if open && inputs > 1 => sum.scale = factor,
        Op::MulVector(by) if open && inputs > 1 && graph.weight(by).rows() == 1 => {
            sum.scale_weight = Some(by);
        }
        _ => return None,
    }
    Some((producer, sum, None))
}

/// Fuses a gainless norm of v heads with those of q and k, if attention writes a cache.
fn merge_values(graph: &mut Graph) {
    let uses = graph.uses();
    for index in (0..graph.nodes.len()).rev() {
        let (Op::NormPerGroup(norm, group), made) =
            (&graph.nodes[index].op, graph.nodes[index].output)
        else {
            continue;
        };
        let eps = norm.eps;
        let group = *group;
        let from = graph.nodes[index].inputs[0];

        let bare = norm.gain.is_none() && norm.bias.is_none() && !norm.layer && uses[made.0] == 1;
        let reader = graph
            .nodes
            .iter_mut()
            .find(|n| n.inputs.get(2) == Some(&made));
        let Some(Node {
            op: Op::Attention(a),
            inputs,
            ..
        }) = reader.filter(|_| bare)
        else {
            continue;
        };
        let width = a.head_dim;
        let kept = a.state.is_some();

        if let Some(heads) = a
            .head_norm
            .as_mut()
            .filter(|h| kept && width == group && h.eps == eps)
        {
            heads.values = true;
            inputs[2] = from;
            graph.nodes.remove(index);
        }
    }
}

/// Fuses a norm with the quantization that is its only reader.
fn merge_quantized_norms(graph: &mut Graph) {
    let uses = graph.uses();
    let mut index = 0;
    while index < graph.nodes.len() {
        let made = |n: &Node| n.output == graph.nodes[index].inputs[0] && uses[n.output.0] == 1;
        let norm = |n: &Node| {
            if let Op::Norm(norm) = &n.op {
                Some(norm.clone())
            } else {
                None
            }
        };
        let before = match graph.nodes[index].op {
            Op::QuantizeActivations(None) => graph.nodes.iter().position(made),
            _ => None,
        };
        if let Some((at, norm)) = before.and_then(|at| Some((at, norm(&graph.nodes[at])?))) {
            graph.nodes[index].op = Op::QuantizeActivations(Some(norm));
            graph.nodes[index].inputs = graph.nodes[at].inputs.clone();
            graph.nodes.remove(at);
        } else {
            index += 1;
        }
    }
}

fn merge_norms(graph: &mut Graph) {
    let mut index = 0;
    while index < graph.nodes.len() {
        let node = graph.nodes[index].clone();
        if let Op::Norm(norm) = &node.op {
            let reads = |n: &Node| n.inputs.first() == Some(&node.output);
            let open = |n: &Node| {
                let free = match &n.op {
                    Op::Linear(l) => l.norm.is_none(),
                    Op::ExpertUp(e) => e.norm.is_none(),
                    _ => false,
                };
                free && n.inputs[1..].iter().all(|i| *i != node.output)
            };
            let readers = || {
                graph
                    .nodes
                    .iter()
                    .filter(|n| n.inputs.contains(&node.output))
            };
            let simple = !norm.layer && norm.gain.is_some() && norm.bias.is_none();
            if simple && readers().count() > 0 && readers().all(|n| reads(n) && open(n)) {
                for reader in graph.nodes.iter_mut().filter(|n| reads(n)) {
                    let taken = match &mut reader.op {
                        Op::Linear(linear) => &mut linear.norm,
                        Op::ExpertUp(experts) => &mut experts.norm,
                        _ => continue,
                    };
                    *taken = Some(norm.clone());
                    reader.inputs[0] = node.inputs[0];
                }
                graph.nodes.remove(index);
                continue;
            }
        }
        index += 1;
    }
}
