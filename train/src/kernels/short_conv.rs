//! Causal depthwise convolution of rows within their sequences, and its gradients.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// A convolution of `[rows, cols]`, each column by itself.
#[derive(Debug, Clone)]
pub struct ShortConvShape<B> {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Kernel size, current row included.
    pub taps: usize,
    /// `[cols][taps]`, oldest row first.
    pub weight: B,
    /// First and end row of each row's sequence.
    pub spans: B,
}

impl<B: Clone> ShortConvShape<B> {
    fn sized(&self, launch: TrainLaunch<B>, x: &View<B>) -> TrainLaunch<B> {
        launch
            .set("rows", self.rows)
            .set("cols", self.cols)
            .set("taps", self.taps)
            .bind("spans", self.spans.clone())
            .view(["x", "x_offset", "x_stride"], x)
    }

    fn convolution(
        &self,
        flag: Option<&'static str>,
        x: &View<B>,
        out: &View<B>,
    ) -> TrainLaunch<B> {
        let mut variant = Variant::new(TrainKernel("short_conv"));
        if let Some(flag) = flag {
            variant = variant.flag(flag);
        }
        self.sized(TrainLaunch::threads(variant, self.rows * self.cols, 256), x)
            .bind("w", self.weight.clone())
            .view(["out", "out_offset", "out_stride"], out)
    }

    /// Returns the output of x.
    pub fn forward(&self, x: &View<B>, bias: Option<B>, out: &View<B>) -> TrainLaunch<B> {
        let flag = bias.is_some().then_some("BIAS");
        self.convolution(flag, x, out).bind_opt("bias", bias)
    }

    /// Returns the gradient of x; adds to dx if `add`.
    pub fn input(&self, dy: &View<B>, dx: &View<B>, add: bool) -> TrainLaunch<B> {
        let mut launch = self.convolution(Some("INPUT"), dy, dx);
        launch.variant = launch.variant.flag_if("ADD", add);
        launch
    }

    /// Adds the gradient of the weight to `out`.
    pub fn weight(&self, x: &View<B>, dy: &View<B>, out: B) -> TrainLaunch<B> {
        let grid = [self.cols.div_ceil(64) as u32, self.taps as u32, 1];
        let variant = Variant::new(TrainKernel("short_conv_weight"));
        self.sized(TrainLaunch::new(variant, grid), x)
            .view(["dy", "dy_offset", "dy_stride"], dy)
            .bind("out", out)
    }
}
