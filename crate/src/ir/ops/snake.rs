//! Snake activation of audio codecs.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId, WeightKind};

/// Snake, `x + sin(a x)² / a`, of the first columns; leaky ReLU of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snake {
    /// One `a` per Snake column.
    pub alpha: WeightId,
}

impl OpDef for Snake {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.alpha]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_kind(self.alpha, &[WeightKind::Vector])?;
        let snakes = node.graph.weight(self.alpha).rows();
        node.require(node.cols(0) == node.out() && snakes <= node.out())
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("snake[{}]", graph.weight_name(self.alpha))
    }
}
