//! Pooling of packed sequences to one row each, and its gradient.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::ir::Pooling;
use jerboa::kernels::view::View;

/// Pooling of rows `[tokens, cols]` to `[sequences, cols]`.
#[derive(Debug, Clone)]
pub struct PoolShape<B> {
    /// Sequences.
    pub sequences: usize,
    /// Columns.
    pub cols: usize,
    /// How rows become one.
    pub pooling: Pooling,
    /// First and end row of each sequence, as `[sequences, 2]` of u32. Spans are not empty and do not
    /// overlap.
    pub spans: B,
}

impl<B: Clone> PoolShape<B> {
    fn launch(&self) -> TrainLaunch<B> {
        let grid = [self.cols.div_ceil(64) as u32, self.sequences as u32, 1];
        TrainLaunch::new(Variant::new(TrainKernel("pool")), grid)
            .bind("spans", self.spans.clone())
            .set("cols", self.cols)
            .set("mode", self.pooling as usize)
    }

    /// Returns the pooled rows of x.
    pub fn forward(&self, x: &View<B>, out: &View<B>) -> TrainLaunch<B> {
        self.launch()
            .view(["x", "x_offset", "x_stride"], x)
            .view(["out", "out_offset", "out_stride"], out)
    }

    /// Adds the gradient of x to the rows of `dx` in the spans. x decides which row was the maximum:
    /// the first of equal ones.
    pub fn input(&self, x: &View<B>, dy: &View<B>, dx: &View<B>) -> TrainLaunch<B> {
        let mut launch = self.launch();
        launch.variant = launch.variant.flag("GRADIENT");
        launch
            .view(["x", "x_offset", "x_stride"], x)
            .view(["dy", "dy_offset", "dy_stride"], dy)
            .view(["out", "out_offset", "out_stride"], dx)
    }
}
