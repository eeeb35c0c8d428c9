//! Convolutions over rows: im2col windows for a matmul, and transposed convolution.

use super::{Dim, WeightId};

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

    /// Returns the number of windows over `rows`.
    pub fn output_rows(&self, rows: Dim) -> Dim {
        rows.windowed(
            (self.kernel_size - 1) * self.dilation + 1,
            self.stride,
            self.padding[0] + self.padding[1],
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
