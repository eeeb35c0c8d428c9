//! Weighted sums of table rows.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId, WeightKind};

/// Weighted sums of table rows. The input has `2 * taps` columns: pairs of a row index (its bits)
/// and a weight. With `taps` 0, the columns weight all table rows: a matmul with a matrix stored
/// `[in, out]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingBag {
    /// The table.
    pub table: WeightId,
    /// Pairs per row, or 0.
    pub taps: usize,
}

impl OpDef for EmbeddingBag {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.table]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_kind(self.table, &[WeightKind::Table])?;
        let table = node.graph.weight(self.table);
        let expected = match self.taps {
            0 => table.rows(),
            taps => 2 * taps,
        };
        node.require(table.cols == node.out() && expected == node.cols(0))
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("blend[{} of {}]", self.taps, graph.weight_name(self.table))
    }
}
