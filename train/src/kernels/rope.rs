//! RoPE of rows at given positions, and its gradient.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// RoPE of `[rows, heads * head_dim]`.
#[derive(Debug, Clone)]
pub struct RopeShape<B> {
    /// Rows.
    pub rows: usize,
    /// Heads.
    pub heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Rotated columns per head.
    pub dim: usize,
    /// Whether pairs are adjacent rather than half apart.
    pub interleaved: bool,
    /// (cos, sin) of each pair and position.
    pub table: B,
    /// Position of each row.
    pub positions: B,
}

impl<B: Clone> RopeShape<B> {
    /// Returns the rotation of x, or with `inverse` the transposed rotation: the gradient.
    pub fn rotate(&self, x: &View<B>, out: &View<B>, inverse: bool, add: bool) -> TrainLaunch<B> {
        let variant = Variant::new(TrainKernel("rope"))
            .flag_if("INVERSE", inverse)
            .flag_if("ADD", add);
        TrainLaunch::threads(variant, self.rows * self.heads * self.head_dim, 256)
            .set("rows", self.rows)
            .set("heads", self.heads)
            .set("head_dim", self.head_dim)
            .set("dim", self.dim)
            .set("interleaved", usize::from(self.interleaved))
            .bind("table", self.table.clone())
            .bind("positions", self.positions.clone())
            .view(["x", "x_offset", "x_stride"], x)
            .view(["out", "out_offset", "out_stride"], out)
    }
}
