//! Convolutions of one to three dimensions and their gradients.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;

/// A convolution of `[batch, channels, inputs]` with weights `[outputs, channels / groups, kernel]`.
/// Fewer than three dimensions have inputs and kernels of 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Examples.
    pub batch: usize,
    /// Input channels.
    pub channels: usize,
    /// Output channels.
    pub outputs: usize,
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Depth, height and width of the input.
    pub inputs: [usize; 3],
    /// Taps per dimension.
    pub kernel: [usize; 3],
    /// Distance of outputs.
    pub stride: [usize; 3],
    /// Zeros before and after the input.
    pub padding: [usize; 3],
    /// Distance of taps.
    pub dilation: [usize; 3],
}

impl Convolution {
    /// Depth, height and width of the output.
    pub fn out_sizes(&self) -> [usize; 3] {
        [0, 1, 2].map(|d: usize| {
            let span = self.dilation[d] * (self.kernel[d] - 1) + 1;
            (self.inputs[d] + 2 * self.padding[d] - span) / self.stride[d] + 1
        })
    }

    /// Elements of the input.
    pub fn in_count(&self) -> usize {
        self.batch * self.channels * self.inputs.iter().product::<usize>()
    }

    /// Elements of the output.
    pub fn out_count(&self) -> usize {
        self.batch * self.outputs * self.out_sizes().iter().product::<usize>()
    }

    /// Elements of the weights.
    pub fn weight_count(&self) -> usize {
        self.outputs * self.channels / self.groups * self.kernel.iter().product::<usize>()
    }

    fn launch<B: Clone>(&self, flag: &'static str, count: usize, a: B, out: B) -> TrainLaunch<B> {
        let variant = Variant::new(TrainKernel("convolution")).flag(flag);
        let mut launch = TrainLaunch::threads(variant, count, 64)
            .bind("a", a)
            .bind("out", out)
            .set("count", count)
            .set("batch", self.batch)
            .set("channels", self.channels)
            .set("outputs", self.outputs)
            .set("conv_groups", self.groups);
        for (names, sizes) in [
            (["in_d", "in_h", "in_w"], self.inputs),
            (["out_d", "out_h", "out_w"], self.out_sizes()),
            (["kernel_d", "kernel_h", "kernel_w"], self.kernel),
            (["stride_d", "stride_h", "stride_w"], self.stride),
            (["pad_d", "pad_h", "pad_w"], self.padding),
            (["dilate_d", "dilate_h", "dilate_w"], self.dilation),
        ] {
            for (name, size) in names.into_iter().zip(sizes) {
                launch = launch.set(name, size);
            }
        }
        launch
    }

    /// Returns the output of x.
    pub fn forward<B: Clone>(&self, x: B, weight: B, bias: Option<B>, y: B) -> TrainLaunch<B> {
        let mut launch = self.launch("FORWARD", self.out_count(), x, y);
        launch.variant = launch.variant.flag_if("WITH_BIAS", bias.is_some());
        launch.bind("b", weight).bind_opt("bias", bias)
    }

    /// Returns the gradient of x.
    pub fn input<B: Clone>(&self, dy: B, weight: B, dx: B) -> TrainLaunch<B> {
        self.launch("INPUT", self.in_count(), dy, dx)
            .bind("b", weight)
    }

    /// Adds the gradient of the weights.
    pub fn weight<B: Clone>(&self, x: B, dy: B, dw: B) -> TrainLaunch<B> {
        let mut launch = self.launch("WEIGHT", self.weight_count(), x, dw);
        launch.variant = launch.variant.flag("ADD");
        launch.bind("b", dy)
    }

    /// Adds the gradient of the bias.
    pub fn bias<B: Clone>(&self, dy: B, db: B) -> TrainLaunch<B> {
        let mut launch = self.launch("BIAS", self.outputs, dy, db);
        launch.variant = launch.variant.flag("ADD");
        launch
    }
}
