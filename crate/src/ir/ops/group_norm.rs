//! Norm over groups of columns and all rows, as after convolutions.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId};

/// Norm of column groups over all rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// Number of groups.
    pub groups: usize,
    /// One value per column.
    pub gain: WeightId,
    /// One value per column.
    pub bias: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

impl OpDef for GroupNorm {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.gain, self.bias]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_vector(self.gain, node.out())?;
        node.require_vector(self.bias, node.out())?;
        let whole = self.groups > 0 && node.out().is_multiple_of(self.groups);
        node.require(node.cols(0) == node.out() && whole)
    }

    fn describe(&self, graph: &Graph) -> String {
        let gain = graph.weight_name(self.gain);
        format!("group norm[{gain}, {} groups]", self.groups)
    }
}
