//! Short causal convolutions with a state.

use super::{Activation, CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, StateId, StateSpec, WeightId};
use std::ops::RangeInclusive;

/// A causal depthwise convolution over rows. Inputs: x; if gated, also the input gate and the
/// output gate.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// `[channels][taps]`, oldest row first.
    pub weight: WeightId,
    /// `[channels]`.
    pub bias: Option<WeightId>,
    /// Kernel size, current row included.
    pub kernel_size: usize,
    /// Activation of the sums.
    pub act: Activation,
    /// Input scales by first column; the last entry at or before a column applies.
    pub scales: [(usize, f32); 3],
    /// Inputs before the step ([`StateSpec::Conv`]).
    pub state: StateId,
}

impl ShortConv {
    /// Kernel sizes that the kernels support.
    pub const KERNEL_SIZES: RangeInclusive<usize> = 2..=8;
}

impl OpDef for ShortConv {
    fn input_count(&self, given: usize) -> usize {
        if given == 1 { 1 } else { 3 }
    }

    fn weights(&self) -> Vec<WeightId> {
        [Some(self.weight), self.bias]
            .into_iter()
            .flatten()
            .collect()
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let out = node.out();
        if !Self::KERNEL_SIZES.contains(&self.kernel_size) {
            return Err(format!("no kernel has {} taps", self.kernel_size));
        }
        node.require_vector(self.weight, out * self.kernel_size)?;
        node.require_vector(self.bias, out)?;
        let state = StateSpec::Conv {
            channels: out,
            kernel_size: self.kernel_size,
        };
        node.require(node.is_elementwise() && node.graph.states[self.state.0] == state)
    }

    fn describe(&self, graph: &Graph) -> String {
        let act = match self.act {
            Activation::None => String::new(),
            act => format!(", {act:?}"),
        };
        format!(
            "short conv[{}, {} taps{act}, state {}]",
            graph.weight_name(self.weight),
            self.kernel_size,
            self.state.0
        )
    }
}
