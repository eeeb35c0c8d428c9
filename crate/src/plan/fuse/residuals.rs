//! Fuses residuals into the matmul or norm that computes the other operand of the sum.

use super::rewriter::Rewriter;
use crate::ir::{Addend, Combine, Node, NormResidual, Op, ValueId};

/// Fuses residuals into matmuls.
pub fn merge_residuals(graph: &mut Rewriter) {
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        if !matches!(node.op, Op::Add(_)) {
            continue;
        }
        let [a, b] = [node.inputs[0], node.inputs[1]];
        let fused = matmul_plus(graph, b, a).or_else(|| matmul_plus(graph, a, b));
        if let Some((producer, op, residual)) = fused {
            graph.fuse_into_producer(producer, index, op, Some(residual));
        }
    }
}

/// Returns the node that computes `result` for one use and can add `residual`, what it becomes, and
/// the residual.
fn matmul_plus(
    graph: &Rewriter,
    result: ValueId,
    residual: ValueId,
) -> Option<(usize, Op, ValueId)> {
    let (producer, node) = graph.sole_producer(result)?;
    if !graph.is_before(residual, producer) {
        return None;
    }
    let mut op = node.op.clone();
    match &mut op {
        Op::Linear(linear)
            if linear.combine == Combine::None
                && linear.addend != Addend::Rows
                && linear.softcap == 0.0 =>
        {
            linear.combine = Combine::Add;
        }
        Op::ExpertDown(experts) if !experts.residual => experts.residual = true,
        _ => return None,
    }
    Some((producer, op, residual))
}

/// Fuses a norm that is only added to other rows with the sum and its scale.
pub fn merge_norm_residuals(graph: &mut Rewriter) {
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        // Either operand of a sum may be the norm.
        let operands = if matches!(node.op, Op::Add(_)) { 2 } else { 1 };
        let mut operands = node.inputs.iter().take(operands);
        let fused = operands.find_map(|part| norm_residual(graph, node, *part));
        if let Some((producer, sum, rest)) = fused {
            graph.fuse_into_producer(producer, index, sum.into(), rest);
        }
    }
}

/// Returns the norm that computes `part` for `node` only, the fused operation, and its additional
/// input.
fn norm_residual(
    graph: &Rewriter,
    node: &Node,
    part: ValueId,
) -> Option<(usize, NormResidual, Option<ValueId>)> {
    let (producer, norm) = graph.sole_producer(part)?;
    let mut sum = match &norm.op {
        Op::Norm(norm) => NormResidual {
            norm: norm.clone(),
            scale: 1.0,
            scale_weight: None,
        },
        Op::NormResidual(sum) if sum.scale == 1.0 && sum.scale_weight.is_none() => sum.clone(),
        _ => return None,
    };
    let is_sum = norm.inputs.len() > 1;
    match node.op {
        Op::Add(_) if norm.inputs.len() < 3 => {
            let rest = *node.inputs.iter().find(|i| **i != part)?;
            return graph
                .is_before(rest, producer)
                .then_some((producer, sum, Some(rest)));
        }
        Op::Scale(scale) if is_sum => sum.scale = scale.0,
        Op::MulVector(by) if is_sum && graph.graph().weight(by.0).rows() == 1 => {
            sum.scale_weight = Some(by.0);
        }
        _ => return None,
    }
    Some((producer, sum, None))
}
