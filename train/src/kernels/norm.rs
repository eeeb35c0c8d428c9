//! RMSNorm and LayerNorm of rows or column groups, and their gradients.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::fold;
use jerboa::kernels::view::View;

/// A norm of `groups` groups of `cols` columns in each of `rows` rows.
#[derive(Debug, Clone)]
pub struct NormShape<B> {
    /// Rows.
    pub rows: usize,
    /// Column groups per row, which share the gain.
    pub groups: usize,
    /// Columns of a group.
    pub cols: usize,
    /// Whether the mean is subtracted (LayerNorm).
    pub layer: bool,
    /// Gain, and the place of its first value in the buffer.
    pub gain: Option<(B, usize)>,
    /// Bias.
    pub bias: Option<B>,
    /// Added to the gain.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// Mean and factor of each group, written by the forward and read by the gradients.
    pub stats: B,
}

impl<B: Clone> NormShape<B> {
    fn parts(&self) -> usize {
        self.rows * self.groups
    }

    fn launch(&self, name: &'static str) -> TrainLaunch<B> {
        let variant = Variant::new(TrainKernel(name))
            .flag_if("LAYER", self.layer)
            .flag_if("GAIN", self.gain.is_some());
        let gain = self.gain.as_ref();
        TrainLaunch::new(variant, fold(self.parts() as u64))
            .set("cols", self.cols)
            .set("groups", self.groups)
            .set("parts", self.parts())
            .set("gain_offset", gain.map_or(0, |gain| gain.1))
            .set_f32("offset", self.offset)
            .bind_opt("gain", gain.map(|gain| gain.0.clone()))
            .bind("stats", self.stats.clone())
    }

    /// Returns `out = norm(x)`.
    pub fn forward(&self, x: &View<B>, out: &View<B>) -> TrainLaunch<B> {
        let mut launch = self.launch("norm");
        launch.variant = launch.variant.flag_if("BIAS", self.bias.is_some());
        launch
            .bind_opt("bias", self.bias.clone())
            .set_f32("eps", self.eps)
            .view(["x", "x_offset", "x_stride"], x)
            .view(["out", "out_offset", "out_stride"], out)
    }

    /// Returns the gradient of x; adds to dx if `add`.
    pub fn input(&self, x: &View<B>, dy: &View<B>, dx: &View<B>, add: bool) -> TrainLaunch<B> {
        let mut launch = self.launch("norm_input");
        launch.variant = launch.variant.flag_if("ADD", add);
        launch
            .view(["x", "x_offset", "x_stride"], x)
            .view(["dy", "dy_offset", "dy_stride"], dy)
            .view(["out", "out_offset", "out_stride"], dx)
    }

    /// Adds the gradient of the gain to `out` from place `first` on.
    pub fn gain(&self, x: &View<B>, dy: &View<B>, out: B, first: usize) -> TrainLaunch<B> {
        let mut launch = column_sums([self.rows, self.groups, self.cols], dy, out, first);
        launch.variant = launch.variant.flag("GAIN");
        launch
            .view(["x", "x_offset", "x_stride"], x)
            .bind("stats", self.stats.clone())
    }
}

/// Adds the sums of dy over rows and column groups to `out` from place `first` on: the gradient of
/// a bias.
pub fn column_sums<B: Clone>(
    [rows, groups, cols]: [usize; 3],
    dy: &View<B>,
    out: B,
    first: usize,
) -> TrainLaunch<B> {
    let grid = [cols.div_ceil(64) as u32, 1, 1];
    TrainLaunch::new(Variant::new(TrainKernel("column_sums")), grid)
        .set("cols", cols)
        .set("groups", groups)
        .set("parts", rows * groups)
        .view(["dy", "dy_offset", "dy_stride"], dy)
        .bind("out", out)
        .set("out_offset", first)
}
