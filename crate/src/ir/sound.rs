//! Convolutions over rows as graphs have them: windows for a product, and upsampling.

use super::{Dim, WeightId};

/// The windows of a convolution over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Rows of a window.
    pub taps: usize,
    /// Rows from a window to the next.
    pub stride: usize,
    /// Rows from one row of a window to the next.
    pub dilation: usize,
    /// Rows of zeros before and after all.
    pub padding: [usize; 2],
    /// Columns row by row; else channel by channel, as weights of convolutions have them.
    pub by_tap: bool,
}

impl Windows {
    /// Windows of so many rows, one after another, that see nothing before or after.
    pub fn new(taps: usize, stride: usize) -> Self {
        Self { taps, stride, dilation: 1, padding: [0, 0], by_tap: false }
    }

    /// Windows that end with each row.
    pub fn causal(taps: usize, stride: usize, dilation: usize) -> Self {
        Self { taps, stride, dilation, padding: [(taps - 1) * dilation, 0], by_tap: false }
    }

    /// How many there are of so many rows.
    pub fn of(&self, rows: Dim) -> Dim {
        rows.windowed((self.taps - 1) * self.dilation + 1, self.stride, self.padding[0] + self.padding[1])
    }
}

/// A causal transposed convolution in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upsample {
    /// `[inputs][outputs of a group][taps]`, kept as f32.
    pub weight: WeightId,
    /// One for each output column.
    pub bias: Option<WeightId>,
    /// Groups of columns.
    pub groups: usize,
    /// Width of the kernel.
    pub taps: usize,
    /// Rows that each row becomes.
    pub rate: usize,
}
