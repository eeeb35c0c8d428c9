//! Convolutions over rows: im2col windows for a matmul, and transposed convolution.

use super::{Dim, WeightId};

/// Im2col windows of a convolution over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Kernel size in rows.
    pub taps: usize,
    /// Stride between windows in rows.
    pub stride: usize,
    /// Dilation in rows.
    pub dilation: usize,
    /// Zero rows before and after the input.
    pub padding: [usize; 2],
    /// Whether window columns are ordered by tap; otherwise by channel, as convolution weights are.
    pub by_tap: bool,
}

impl Windows {
    /// Creates windows without padding or dilation.
    pub fn new(taps: usize, stride: usize) -> Self {
        Self { taps, stride, dilation: 1, padding: [0, 0], by_tap: false }
    }

    /// Creates causal windows, which end with each row.
    pub fn causal(taps: usize, stride: usize, dilation: usize) -> Self {
        Self { taps, stride, dilation, padding: [(taps - 1) * dilation, 0], by_tap: false }
    }

    /// Returns the number of windows over `rows`.
    pub fn of(&self, rows: Dim) -> Dim {
        rows.windowed((self.taps - 1) * self.dilation + 1, self.stride, self.padding[0] + self.padding[1])
    }
}

/// A causal grouped transposed convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upsample {
    /// `[inputs][outputs per group][taps]`, stored as f32.
    pub weight: WeightId,
    /// One value per output column.
    pub bias: Option<WeightId>,
    /// Column groups.
    pub groups: usize,
    /// Kernel size.
    pub taps: usize,
    /// Output rows per input row.
    pub rate: usize,
}
