//! What sound needs beside products: windows of convolutions, upsampling, snakes, norms over time, log-mel features. A dense
//! convolution is a product with its windows, whatever the encoding of its weights.

use super::matmul::View;
use super::registry::{Kernel, Variant};
use super::{GridSpec, Launch};

/// Slabs of rows that a norm over time is summed in.
pub const SLABS: u32 = 32;

/// The windows of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfold {
    /// Columns of the input.
    pub cols: u32,
    /// Rows of a window.
    pub taps: u32,
    /// Rows from a window to the next.
    pub stride: u32,
    /// Rows from one row of a window to the next.
    pub dilation: u32,
    /// Rows of zeros before the input.
    pub left: u32,
    /// Rows of zeros after it.
    pub right: u32,
    /// Columns of a window row by row; else channel by channel, as convolutions' weights have them.
    pub by_tap: bool,
}

impl Unfold {
    /// Windows of so many rows.
    pub fn windows(&self, rows: u32) -> u32 {
        (rows + self.left + self.right)
            .checked_sub((self.taps - 1) * self.dilation + 1)
            .map_or(0, |n| n / self.stride + 1)
    }

    /// One launch; its grid counts windows, `state` counts rows of the input.
    pub fn launch<B: Clone>(&self, label: &str, x: &View<B>, state: B, out: &View<B>) -> Launch<B> {
        let margin = (self.left + self.right) as i32 - ((self.taps - 1) * self.dilation + 1) as i32;
        let variant = Variant::new(Kernel::Unfold).flag_if("BY_TAP", self.by_tap);
        Launch::new(label, variant, elements(self.cols * self.taps))
            .bind("state", state)
            .bind("x", x.buffer.clone())
            .bind("out", out.buffer.clone())
            .set("cols", self.cols)
            .set("taps", self.taps)
            .set("step", self.stride)
            .set("dilation", self.dilation)
            .set("left", self.left)
            .set("margin", margin as u32)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("out_stride", out.stride)
    }
}

/// A causal transposed convolution in groups.
#[derive(Debug, Clone)]
pub struct Upsample<B> {
    /// Columns of the output.
    pub cols: u32,
    /// Input columns of a group.
    pub inputs: u32,
    /// Output columns of a group.
    pub outputs: u32,
    /// Width of the kernel.
    pub taps: u32,
    /// Rows that each row becomes.
    pub rate: u32,
    /// `[input][outputs of a group][taps]`, f32.
    pub weight: B,
    /// `[cols]`.
    pub bias: Option<B>,
}

impl<B: Clone> Upsample<B> {
    /// One launch; its grid counts rows of the output, `state` those of the input.
    pub fn launch(&self, label: &str, x: &View<B>, state: B, out: &View<B>) -> Launch<B> {
        let variant = Variant::new(Kernel::Upsample).flag_if("BIAS", self.bias.is_some());
        Launch::new(label, variant, elements(self.cols))
            .bind("state", state)
            .bind("x", x.buffer.clone())
            .bind("weight", self.weight.clone())
            .bind_opt("bias", self.bias.clone())
            .bind("out", out.buffer.clone())
            .set("cols", self.cols)
            .set("inputs", self.inputs)
            .set("outputs", self.outputs)
            .set("taps", self.taps)
            .set("rate", self.rate)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("out_stride", out.stride)
    }
}

/// Snake of the first `snakes` columns, leaky ReLU of the others; `alpha` has one number for each snake.
pub fn snake<B: Clone>(
    label: &str,
    cols: u32,
    snakes: u32,
    x: &View<B>,
    alpha: B,
    state: B,
    out: &View<B>,
) -> Launch<B> {
    Launch::new(label, Variant::new(Kernel::Snake), elements(cols))
        .bind("state", state)
        .bind("x", x.buffer.clone())
        .bind("alpha", alpha)
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("snakes", snakes)
        .set_f32("slope", 0.01)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
}

/// A norm over all rows of groups of columns.
#[derive(Debug, Clone)]
pub struct GroupNorm<B> {
    /// Columns.
    pub cols: u32,
    /// Groups of them.
    pub groups: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// `[cols]`.
    pub gain: B,
    /// `[cols]`.
    pub bias: B,
}

impl<B: Clone> GroupNorm<B> {
    /// Bytes of `sums`.
    pub fn bytes(&self) -> u64 {
        u64::from(self.groups * SLABS) * 8
    }

    /// Two launches: sums of slabs, then the norm.
    pub fn launches(&self, label: &str, x: &View<B>, state: &B, sums: &B, out: &View<B>) -> [Launch<B>; 2] {
        let both = |kernel: Kernel, grid: GridSpec| {
            Launch::new(label, Variant::new(kernel), grid)
                .bind("state", state.clone())
                .bind("x", x.buffer.clone())
                .bind("sums", sums.clone())
                .set("cols", self.cols)
                .set("groups", self.groups)
                .set("slabs", SLABS)
                .set("x_offset", x.offset)
                .set("x_stride", x.stride)
        };
        // 1024 elements of a group for each workgroup.
        let apply = GridSpec::Rows { units: self.groups * (self.cols / self.groups), per: 1024 };
        [
            both(Kernel::GroupSums, GridSpec::Exact([SLABS, self.groups, 1])),
            both(Kernel::GroupNorm, apply)
                .bind("gain", self.gain.clone())
                .bind("bias", self.bias.clone())
                .bind("out", out.buffer.clone())
                .set("out_stride", out.stride)
                .set_f32("eps", self.eps),
        ]
    }
}

/// What log-mel features are made with.
#[derive(Debug, Clone)]
pub struct Mel<B> {
    /// Bands.
    pub mels: u32,
    /// Frames, of 160 samples each, zeros after the sound included.
    pub frames: u32,
    /// Of `audio::mel::table`.
    pub table: B,
    /// Of `audio::mel::filters`.
    pub filters: B,
    /// `[frames]`.
    pub peaks: B,
}

impl<B: Clone> Mel<B> {
    /// Two launches: logarithms, then their norm. `x` has rows of 160 samples, which `state` counts; zeros follow them.
    pub fn launches(&self, label: &str, x: &View<B>, state: B, out: &View<B>) -> [Launch<B>; 2] {
        let grid = GridSpec::Fixed { units: self.frames };
        [
            Launch::new(label, Variant::new(Kernel::Mel), grid)
                .bind("state", state)
                .bind("x", x.buffer.clone())
                .bind("table", self.table.clone())
                .bind("filters", self.filters.clone())
                .bind("out", out.buffer.clone())
                .bind("peaks", self.peaks.clone())
                .set("mels", self.mels)
                .set("total", self.frames * 160)
                .set("x_stride", x.stride)
                .set("out_stride", out.stride),
            Launch::new(label, Variant::new(Kernel::MelNorm), grid)
                .bind("peaks", self.peaks.clone())
                .bind("out", out.buffer.clone())
                .set("mels", self.mels)
                .set("frames", self.frames)
                .set("out_stride", out.stride),
        ]
    }
}

/// Adds to each row that of a table at its position in the sequence.
pub fn add_positions<B: Clone>(
    label: &str,
    cols: u32,
    x: &View<B>,
    table: &View<B>,
    state: B,
    out: &View<B>,
) -> Launch<B> {
    Launch::new(label, Variant::new(Kernel::AddPositions), elements(cols))
        .bind("state", state)
        .bind("x", x.buffer.clone())
        .bind("table", table.buffer.clone())
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
}

/// Copies heads of `x_cols / count` columns as heads of `cols / count`, zeros in what is new.
pub fn heads<B: Clone>(
    label: &str,
    count: u32,
    x: &View<B>,
    x_cols: u32,
    out: &View<B>,
    cols: u32,
    state: B,
) -> Launch<B> {
    Launch::new(label, Variant::new(Kernel::Heads), elements(cols))
        .bind("state", state)
        .bind("x", x.buffer.clone())
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("wide", cols / count)
        .set("narrow", x_cols / count)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
}

/// A thread for each element of rows of so many columns.
fn elements(cols: u32) -> GridSpec {
    GridSpec::Rows { units: cols, per: 256 }
}
