//! Elementwise operations on rows.

use super::{Activation, CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId};

/// `a + b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Add;

impl OpDef for Add {
    fn input_count(&self, _given: usize) -> usize {
        2
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.is_elementwise())
    }

    fn describe(&self, _graph: &Graph) -> String {
        "add".into()
    }
}

/// `a * b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mul;

impl OpDef for Mul {
    fn input_count(&self, _given: usize) -> usize {
        2
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.is_elementwise())
    }

    fn describe(&self, _graph: &Graph) -> String {
        "mul".into()
    }
}

/// `act(a) * b`; a single column of `a` broadcasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gated(pub Activation);

impl OpDef for Gated {
    fn input_count(&self, _given: usize) -> usize {
        2
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let gate = [1, node.out()].contains(&node.cols(0));
        node.require(gate && node.cols(1) == node.out() && node.same_rows())
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!("gated {:?}", self.0)
    }
}

/// `act(a)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unary(pub Activation);

impl OpDef for Unary {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.is_elementwise())
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!("{:?}", self.0)
    }
}

/// `a * factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(pub f32);

impl OpDef for Scale {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require(node.is_elementwise())
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!("scale {}", self.0)
    }
}

/// `a * w`, where w is a vector of as many columns or a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulVector(pub WeightId);

impl OpDef for MulVector {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.0]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let scalar = node.graph.weight(self.0).rows() == 1;
        node.require_vector(self.0, if scalar { 1 } else { node.out() })?;
        node.require(node.is_elementwise())
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("times {}", graph.weight_name(self.0))
    }
}

/// Clamps `a` between the two values of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clip(pub WeightId);

impl OpDef for Clip {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.0]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_vector(self.0, 2)?;
        node.require(node.is_elementwise())
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("clip[{}]", graph.weight_name(self.0))
    }
}

/// `asinh(a * exp(k))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asinh {
    /// Scalar.
    pub k: WeightId,
}

impl OpDef for Asinh {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.k]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_vector(self.k, 1)?;
        node.require(node.is_elementwise())
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("asinh[{}]", graph.weight_name(self.k))
    }
}
