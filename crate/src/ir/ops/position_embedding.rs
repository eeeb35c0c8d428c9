//! Learned position embeddings, added to existing rows.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId, WeightKind};

/// Adds to each row the table row of its position in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddPositionEmbedding {
    /// `[positions * cols]`, stored as f32.
    pub table: WeightId,
}

impl OpDef for AddPositionEmbedding {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.table]
    }

    fn max_positions(&self, node: &NodeShape<'_>) -> Option<usize> {
        Some(node.graph.weight(self.table).rows() / node.out())
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_kind(self.table, &[WeightKind::Vector])?;
        let rows = node.graph.weight(self.table).rows();
        node.require(node.cols(0) == node.out() && rows.is_multiple_of(node.out()))
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("add positions[{}]", graph.weight_name(self.table))
    }
}
