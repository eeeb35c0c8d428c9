//! Convolutions over rows: im2col windows for a matmul, and transposed convolution.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Dim, Graph, WeightId};

/// Im2col windows of a convolution over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Im2Col {
    /// Kernel size in rows.
    pub kernel_size: usize,
    /// Stride between windows in rows.
    pub stride: usize,
    /// Dilation in rows.
    pub dilation: usize,
    /// Zero rows before and after the input.
    pub padding: [usize; 2],
    /// Whether window columns are ordered by tap; otherwise by channel, as convolution weights are.
    pub by_tap: bool,
}

impl Im2Col {
    /// Creates windows without padding or dilation.
    pub fn new(kernel_size: usize, stride: usize) -> Self {
        Self {
            kernel_size,
            stride,
            dilation: 1,
            padding: [0, 0],
            by_tap: false,
        }
    }

    /// Creates causal windows, which end with each row.
    pub fn causal(kernel_size: usize, stride: usize, dilation: usize) -> Self {
        Self {
            kernel_size,
            stride,
            dilation,
            padding: [(kernel_size - 1) * dilation, 0],
            by_tap: false,
        }
    }
}

impl OpDef for Im2Col {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn output_rows(&self, input: Option<Dim>) -> Dim {
        let span = (self.kernel_size - 1) * self.dilation + 1;
        let padding = self.padding[0] + self.padding[1];
        input.map_or(Dim::TOKENS, |rows| {
            rows.windowed(span, self.stride, padding)
        })
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let sizes = self.kernel_size > 0 && self.stride > 0;
        node.require(sizes && node.cols(0) * self.kernel_size == node.out())
    }

    fn describe(&self, _graph: &Graph) -> String {
        format!(
            "windows[{} by {}, dilation {}, padding {:?}]",
            self.kernel_size, self.stride, self.dilation, self.padding
        )
    }
}

/// A causal grouped transposed convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvTranspose1d {
    /// `[inputs][outputs per group][taps]`, stored as f32.
    pub weight: WeightId,
    /// One value per output column.
    pub bias: Option<WeightId>,
    /// Column groups.
    pub groups: usize,
    /// Kernel size.
    pub kernel_size: usize,
    /// Output rows per input row.
    pub rate: usize,
}

impl OpDef for ConvTranspose1d {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        [Some(self.weight), self.bias]
            .into_iter()
            .flatten()
            .collect()
    }

    fn output_rows(&self, input: Option<Dim>) -> Dim {
        input.map_or(Dim::TOKENS, |rows| rows.conv_transposed(self.rate, 0))
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let own = node.out() / self.groups.max(1);
        node.require_vector(self.weight, node.cols(0) * own * self.kernel_size)?;
        node.require_vector(self.bias, node.out())?;
        let whole = [node.cols(0), node.out()].map(|cols| cols.is_multiple_of(self.groups));
        node.require(self.groups > 0 && self.rate > 0 && whole == [true, true])
    }

    fn describe(&self, graph: &Graph) -> String {
        let weight = graph.weight_name(self.weight);
        format!(
            "upsample[{weight}, {} groups, by {}]",
            self.groups, self.rate
        )
    }
}
