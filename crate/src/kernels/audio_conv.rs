//! Audio kernels other than matmuls: im2col, transposed convolution, Snake, group norm over time,
//! log-mel features. Dense convolutions are a matmul over im2col windows, for any weight encoding.

use super::matmul::View;
use super::registry::{Kernel, Variant};
use super::{GridSpec, Launch};

/// Row slabs of the group norm's partial sums.
pub const SLABS: u32 = 32;

/// Im2col windows of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Im2ColKernel {
    /// Columns of the input.
    pub cols: u32,
    /// Kernel size in rows.
    pub kernel_size: u32,
    /// Stride between windows in rows.
    pub stride: u32,
    /// Dilation in rows.
    pub dilation: u32,
    /// Zero rows before the input.
    pub left: u32,
    /// Zero rows after the input.
    pub right: u32,
    /// Whether window columns are ordered by tap; otherwise by channel, as convolution weights are.
    pub by_tap: bool,
}

impl Im2ColKernel {
    /// Returns the number of windows over `rows` input rows.
    pub fn windows(&self, rows: u32) -> u32 {
        (rows + self.left + self.right)
            .checked_sub((self.kernel_size - 1) * self.dilation + 1)
            .map_or(0, |n| n / self.stride + 1)
    }

    /// Returns the launch. Its grid counts windows; `state` counts input rows.
    pub fn launch<B: Clone>(&self, label: &str, x: &View<B>, state: B, out: &View<B>) -> Launch<B> {
        let margin =
            (self.left + self.right) as i32 - ((self.kernel_size - 1) * self.dilation + 1) as i32;
        let variant = Variant::new(Kernel::Im2col).flag_if("BY_TAP", self.by_tap);
        Launch::new(label, variant, elements(self.cols * self.kernel_size))
            .bind("state", state)
            .bind("x", x.buffer.clone())
            .bind("out", out.buffer.clone())
            .set("cols", self.cols)
            .set("taps", self.kernel_size)
            .set("step", self.stride)
            .set("dilation", self.dilation)
            .set("left", self.left)
            .set("margin", margin as u32)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("out_stride", out.stride)
    }
}

/// A causal grouped transposed convolution.
#[derive(Debug, Clone)]
pub struct ConvTransposeKernel<B> {
    /// Columns of the output.
    pub cols: u32,
    /// Input columns per group.
    pub inputs_per_group: u32,
    /// Output columns per group.
    pub outputs_per_group: u32,
    /// Kernel size.
    pub kernel_size: u32,
    /// Output rows per input row.
    pub rate: u32,
    /// `[input][outputs per group][taps]`, f32.
    pub weight: B,
    /// `[cols]`.
    pub bias: Option<B>,
}

impl<B: Clone> ConvTransposeKernel<B> {
    /// Returns the launch. Its grid counts output rows; `state` counts input rows.
    pub fn launch(&self, label: &str, x: &View<B>, state: B, out: &View<B>) -> Launch<B> {
        let variant = Variant::new(Kernel::ConvTranspose).flag_if("BIAS", self.bias.is_some());
        Launch::new(label, variant, elements(self.cols))
            .bind("state", state)
            .bind("x", x.buffer.clone())
            .bind("weight", self.weight.clone())
            .bind_opt("bias", self.bias.clone())
            .bind("out", out.buffer.clone())
            .set("cols", self.cols)
            .set("inputs", self.inputs_per_group)
            .set("outputs", self.outputs_per_group)
            .set("taps", self.kernel_size)
            .set("rate", self.rate)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("out_stride", out.stride)
    }
}

/// Returns Snake of the first `snakes` columns and leaky ReLU of the others. `alpha` has one value
/// per Snake column.
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

/// A norm of column groups over all rows.
#[derive(Debug, Clone)]
pub struct GroupNormKernel<B> {
    /// Columns.
    pub cols: u32,
    /// Column groups.
    pub groups: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// `[cols]`.
    pub gain: B,
    /// `[cols]`.
    pub bias: B,
}

impl<B: Clone> GroupNormKernel<B> {
    /// Bytes of the `sums` buffer.
    pub fn bytes(&self) -> u64 {
        u64::from(self.groups * SLABS) * 8
    }

    /// Returns two launches: partial sums per slab, then the norm.
    pub fn launches(
        &self,
        label: &str,
        x: &View<B>,
        state: &B,
        sums: &B,
        out: &View<B>,
    ) -> [Launch<B>; 2] {
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
        // 1024 elements of a group per workgroup.
        let apply = GridSpec::Rows {
            units: self.groups * (self.cols / self.groups),
            per: 1024,
        };
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

/// Inputs of the log-mel features.
#[derive(Debug, Clone)]
pub struct Mel<B> {
    /// Mel bands.
    pub mels: u32,
    /// Frames of 160 samples, including zero padding after the audio.
    pub frames: u32,
    /// From `audio::mel::table`.
    pub table: B,
    /// From `audio::mel::filters`.
    pub filters: B,
    /// Maximum per frame, `[frames]`.
    pub peaks: B,
}

impl<B: Clone> Mel<B> {
    /// Returns two launches: log-mel, then normalization. `x` has rows of 160 samples, counted by
    /// `state`; zeros follow. The position of `state` is the first frame of `out`; after the last
    /// frame `out` has zeros.
    pub fn launches(&self, label: &str, x: &View<B>, state: B, out: &View<B>) -> [Launch<B>; 2] {
        let grid = GridSpec::Fixed { units: self.frames };
        [
            Launch::new(label, Variant::new(Kernel::Mel), grid)
                .bind("state", state.clone())
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
                .bind("state", state)
                .bind("peaks", self.peaks.clone())
                .bind("out", out.buffer.clone())
                .set("mels", self.mels)
                .set("frames", self.frames)
                .set("out_stride", out.stride),
        ]
    }
}

/// Adds to each row the table row of its position in the sequence; in a `batch`, of the position in
/// the row table.
pub fn add_position_embedding<B: Clone>(
    label: &str,
    cols: u32,
    x: &View<B>,
    table: &View<B>,
    (state, batch): (B, bool),
    out: &View<B>,
) -> Launch<B> {
    let variant = Variant::new(Kernel::AddPositions).flag_if("BATCH", batch);
    Launch::new(label, variant, elements(cols))
        .bind("state", state)
        .bind("x", x.buffer.clone())
        .bind("table", table.buffer.clone())
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
}

/// Copies heads of `x_cols / count` columns to heads of `cols / count`, padded with zeros.
pub fn pad_heads<B: Clone>(
    label: &str,
    count: u32,
    x: &View<B>,
    x_cols: u32,
    out: &View<B>,
    cols: u32,
    state: B,
) -> Launch<B> {
    Launch::new(label, Variant::new(Kernel::PadHeads), elements(cols))
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

/// Returns a grid with one thread per element of rows of `cols` columns.
fn elements(cols: u32) -> GridSpec {
    GridSpec::Rows {
        units: cols,
        per: 256,
    }
}
