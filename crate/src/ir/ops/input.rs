//! External inputs as values.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, InputId};

/// External rows. No inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadInput(pub InputId);

impl OpDef for ReadInput {
    fn input_count(&self, _given: usize) -> usize {
        0
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let input = node.graph.inputs.get(self.0.0);
        node.require(input.is_some_and(|input| input.cols == node.out()))
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("input {}", graph.inputs[self.0.0].name)
    }
}
