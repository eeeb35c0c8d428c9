//! Operations that concatenate, pad or reorder columns.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId, WeightKind};

/// Concatenates the inputs' columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concat;

impl OpDef for Concat {
    fn input_count(&self, given: usize) -> usize {
        given.max(1)
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let cols: usize = (0..node.inputs()).map(|input| node.cols(input)).sum();
        node.require(cols == node.out() && node.same_rows())
    }

    fn describe(&self, _graph: &Graph) -> String {
        "beside".into()
    }
}

/// Input columns that become a part of each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSlice {
    /// First column of the first head.
    pub first: usize,
    /// Stride to the next head's columns; 0 if all heads share them.
    pub step: usize,
    /// Columns per head.
    pub cols: usize,
}

/// Builds heads from the columns of one or two inputs, zero-padded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcatHeads {
    /// Columns per head.
    pub head_dim: usize,
    /// Columns to read from each input.
    pub parts: Vec<HeadSlice>,
}

impl OpDef for ConcatHeads {
    fn input_count(&self, _given: usize) -> usize {
        self.parts.len()
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let heads = node.out() / self.head_dim.max(1);
        let end = |p: &HeadSlice| p.first + heads.saturating_sub(1) * p.step + p.cols;
        let mut parts = self.parts.iter().enumerate();
        let inside = parts.all(|(input, part)| end(part) <= node.cols(input));
        let fits = self.parts.iter().map(|p| p.cols).sum::<usize>() <= self.head_dim;
        let whole = heads * self.head_dim == node.out();
        node.require(inside && fits && whole && matches!(self.parts.len(), 1 | 2))
    }

    fn describe(&self, _graph: &Graph) -> String {
        let part = |p: &HeadSlice| format!("{} from {} by {}", p.cols, p.first, p.step);
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        format!("heads of {}[{}]", self.head_dim, parts.join(", "))
    }
}

/// Widens heads with zero columns, or narrows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PadHeads {
    /// Number of heads.
    pub count: usize,
}

impl OpDef for PadHeads {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let whole = [node.cols(0), node.out()].map(|cols| cols.is_multiple_of(self.count));
        node.require(self.count > 0 && whole == [true, true])
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!("{} heads", self.count)
    }
}

/// Reorders columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gather {
    /// Input column of each output column.
    pub order: WeightId,
}

impl OpDef for Gather {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.order]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_kind(self.order, &[WeightKind::Order])?;
        node.require(node.cols(0) == node.out())
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("gather[order of {}]", graph.weight_name(self.order))
    }
}
