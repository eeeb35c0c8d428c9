//! Operations that reduce rows: the last row, and pooling of packed sequences.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Dim, Graph};

/// Row of the step's last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRow;

impl OpDef for LastRow {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn output_rows(&self, _input: Option<Dim>) -> Dim {
        Dim::Last
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.cols(0) == node.out())
    }

    fn describe(&self, _graph: &Graph) -> String {
        "last row".into()
    }
}

/// Pooling of a sequence to one row. Codes match shaders/pool/pool.wgsl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all tokens.
    Mean = 0,
    /// First token.
    First = 1,
    /// Last token.
    Last = 2,
    /// Maximum per column.
    Max = 3,
    /// Sum divided by the square root of the token count.
    MeanSqrt = 4,
    /// Mean weighted by position, counted from 1.
    Weighted = 5,
}

impl Pooling {
    /// Whether it selects one token unchanged. Row-wise operations may then follow the pooling.
    pub fn selects_token(self) -> bool {
        matches!(self, Self::First | Self::Last)
    }
}

/// Pools each sequence of a packed step to one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool(pub Pooling);

impl OpDef for Pool {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn output_rows(&self, _input: Option<Dim>) -> Dim {
        Dim::Sequences
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.cols(0) == node.out())
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!("pool {:?}", self.0)
    }
}
