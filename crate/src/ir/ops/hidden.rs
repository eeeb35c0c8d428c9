//! Hidden states that a model hands to its multi-token-prediction head.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::Graph;

/// Stores hidden states, `[rows, cols]`, outside of the graph. The output is never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreHidden {
    /// All rows, by their position in the sequence.
    ByPosition,
    /// The last row.
    Last,
}

impl StoreHidden {
    /// Columns of the output.
    pub const OUTPUT_COLS: usize = 1;
}

impl OpDef for StoreHidden {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.out() == Self::OUTPUT_COLS)
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!("store hidden {self:?}")
    }
}

/// The sequence's hidden states at the positions of the step. No inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadHidden;

impl OpDef for LoadHidden {
    fn input_count(&self, _given: usize) -> usize {
        0
    }

    fn check(&self, _node: &NodeShape<'_>) -> CheckResult {
        Ok(())
    }

    fn describe(&self, _graph: &Graph) -> String {
        "load hidden".into()
    }
}
