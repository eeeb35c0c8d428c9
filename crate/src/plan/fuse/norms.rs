//! Fuses norms into the operations that read them: matmuls, attention and quantization.

use super::rewriter::Rewriter;
use crate::ir::{Graph, Norm, NormLastRow, Op, Prologue, QuantizeActivations, ValueId};
use crate::plan::{PlanOptions, StepKind};
use std::borrow::Cow;

/// Fuses RMSNorms into all matmuls that read them, for few rows.
pub fn merge_norms(graph: &mut Rewriter) {
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        let Op::Norm(norm) = &node.op else { continue };
        if norm.is_rms_with_gain() {
            let norm = norm.clone();
            fuse_into_readers(graph, index, |graph, reader| {
                with_norm(&graph.node(reader)?.op, &norm)
            });
        }
    }
}

/// Returns the graph of a prompt whose norm of the last row selects that row itself.
pub fn fuse_last_row<'a>(graph: Cow<'a, Graph>, options: &PlanOptions<'_>) -> Cow<'a, Graph> {
    let selects = |op: &Op| matches!(op, Op::LastRow(_));
    let is_prompt = matches!(options.rows, StepKind::Prefill(_));
    if !is_prompt || !graph.nodes.iter().any(|node| selects(&node.op)) {
        return graph;
    }
    let mut graph = Rewriter::new(graph.into_owned());
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        let Op::Norm(norm) = &node.op else { continue };
        let last = graph.sole_producer(node.inputs[0]);
        let last = last.filter(|(_, node)| selects(&node.op));
        let Some((last, rows)) = last.map(|(last, node)| (last, node.inputs[0])) else {
            continue;
        };
        let norm = NormLastRow(norm.clone());
        graph.set_input(index, 0, rows);
        graph.remove(last);
        if let Some(op) = graph.op_mut(index) {
            *op = norm.into();
        }
    }
    Cow::Owned(graph.finish())
}

/// Returns the operation with a norm of its first input.
fn with_norm(op: &Op, norm: &Norm) -> Option<Op> {
    let mut op = op.clone();
    match &mut op {
        Op::Linear(linear) if linear.prologue == Prologue::None => {
            linear.prologue = Prologue::Norm(norm.clone());
        }
        Op::ExpertUp(experts) if experts.norm.is_none() => experts.norm = Some(norm.clone()),
        _ => return None,
    }
    Some(op)
}

/// Fuses a node with one input into all of its readers, if `fused` returns what each becomes. They
/// must read it as the first input only. A hidden state of the graph is given up.
pub fn fuse_into_readers(
    graph: &mut Rewriter,
    index: usize,
    fused: impl Fn(&Rewriter, usize) -> Option<Op>,
) {
    let Some(node) = graph.node(index) else {
        return;
    };
    let [input, output] = [node.inputs[0], node.output];
    let readers = graph.readers(output);
    let first_only = |reader: &usize| {
        let inputs = graph.node(*reader).map(|node| &node.inputs[..]);
        inputs.is_some_and(|inputs| inputs[0] == output && !inputs[1..].contains(&output))
    };
    let hidden = usize::from(graph.graph().hidden == output);
    let viewed = graph.uses(output) > readers.len() + hidden;
    if readers.is_empty() || viewed || !readers.iter().all(first_only) {
        return;
    }
    let ops: Option<Vec<Op>> = readers.iter().map(|reader| fused(graph, *reader)).collect();
    let Some(ops) = ops else { return };
    for (reader, op) in readers.into_iter().zip(ops) {
        if let Some(old) = graph.op_mut(reader) {
            *old = op;
        }
        graph.set_input(reader, 0, input);
    }
    graph.remove(index);
}

/// Fuses a norm with the quantization that is its only reader.
pub fn merge_quantized_norms(graph: &mut Rewriter) {
    for index in 0..graph.len() {
        let Some((producer, norm, input)) = quantized_norm(graph, index) else {
            continue;
        };
        graph.set_input(index, 0, input);
        graph.remove(producer);
        if let Some(op) = graph.op_mut(index) {
            *op = QuantizeActivations(Some(norm)).into();
        }
    }
}

/// Returns the norm before a quantization, and its input.
fn quantized_norm(graph: &Rewriter, index: usize) -> Option<(usize, Norm, ValueId)> {
    let node = graph.node(index)?;
    let Op::QuantizeActivations(QuantizeActivations(None)) = &node.op else {
        return None;
    };
    let (producer, before) = graph.sole_producer(node.inputs[0])?;
    match &before.op {
        Op::Norm(norm) => Some((producer, norm.clone(), before.inputs[0])),
        _ => None,
    }
}

/// Fuses a gainless norm of v heads with those of q and k, if attention writes a cache.
pub fn merge_value_norms(graph: &mut Rewriter) {
    for index in (0..graph.len()).rev() {
        let Some((reader, input)) = value_norm(graph, index) else {
            continue;
        };
        if let Some(Op::Attention(attention)) = graph.op_mut(reader)
            && let Some(heads) = &mut attention.head_norm
        {
            heads.values = true;
        }
        graph.set_input(reader, 2, input);
        graph.remove(index);
    }
}

/// Returns the attention that alone reads a norm of v heads and can compute it, and the norm's input.
fn value_norm(graph: &Rewriter, index: usize) -> Option<(usize, ValueId)> {
    let node = graph.node(index)?;
    let Op::NormPerGroup(per_group) = &node.op else {
        return None;
    };
    let norm = &per_group.norm;
    let gainless = norm.gain.is_none() && norm.bias.is_none() && !norm.layer;
    if !gainless || graph.uses(node.output) != 1 {
        return None;
    }
    let reader = *graph.readers(node.output).first()?;
    let attention = graph.node(reader)?;
    let Op::Attention(op) = &attention.op else {
        return None;
    };
    let heads = op.head_norm.as_ref()?;
    let alike = op.state.is_some() && op.head_dim == per_group.group && heads.eps == norm.eps;
    (alike && attention.inputs.get(2) == Some(&node.output)).then_some((reader, node.inputs[0]))
}
