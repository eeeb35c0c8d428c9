//! Causal depthwise convolution over a few rows, with the inputs before a step kept in a buffer that the step moves on.
//! Source: LFM2 (arXiv 2511.23404), Mamba-2 (arXiv 2405.21060). It knows neither layers nor where buffers come from.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// The most rows that an output sees.
pub const MAX_TAPS: u32 = 8;
/// Rows that a thread takes where there are many.
const TILE: u32 = 16;

/// One convolution.
#[derive(Debug, Clone)]
pub struct Conv<B> {
    /// For dumps and profiles.
    pub label: String,
    /// Columns of a row, each with its own filter.
    pub channels: u32,
    /// Rows that an output sees, its own included: 2 to [`MAX_TAPS`].
    pub taps: u32,
    /// `[channels][taps]`, the oldest row first.
    pub weight: B,
    /// `[channels]`.
    pub bias: Option<B>,
    /// Applied to the sums; a number of shaders/common/activation.wgsl.
    pub act: u32,
    /// What multiplies the inputs from a column on, by the first column, in order.
    pub scales: [(u32, f32); 3],
    /// What multiplies the inputs, and what multiplies the outputs.
    pub gates: Option<[View<B>; 2]>,
    /// `[taps - 1][channels]`: the inputs before this step, oldest first; zeros at position 0 whatever is in it.
    pub memory: B,
    /// Where the step stands.
    pub state: B,
}

impl<B: Clone> Conv<B> {
    /// Rows of the step one after another; the memory moves on.
    pub fn few(&self, x: &View<B>, out: &View<B>) -> Launch<B> {
        self.computing("FEW", x, out)
    }

    /// Tiles of rows, and the launch that moves the memory on.
    pub fn many(&self, x: &View<B>, out: &View<B>) -> [Launch<B>; 2] {
        let advance = self.launch("ADVANCE", x, out);
        [self.computing("MANY", x, out), advance]
    }

    fn computing(&self, form: &'static str, x: &View<B>, out: &View<B>) -> Launch<B> {
        let mut launch = self.launch(form, x, out);
        launch.variant = launch.variant.flag_if("BIAS", self.bias.is_some());
        launch
            .set("second", self.scales[1].0)
            .set("third", self.scales[2].0)
            .set_f32("first_scale", self.scales[0].1)
            .set_f32("second_scale", self.scales[1].1)
            .set_f32("third_scale", self.scales[2].1)
            .bind("weight", self.weight.clone())
            .bind("out", out.buffer.clone())
            .bind_opt("gate_out", self.gates.as_ref().map(|g| g[1].buffer.clone()))
            .bind_opt("bias", self.bias.clone())
    }

    fn launch(&self, form: &'static str, x: &View<B>, out: &View<B>) -> Launch<B> {
        let units = self.channels.div_ceil(64);
        let grid =
            if form == "MANY" { GridSpec::Tiled { x: units, per: TILE, z: 1 } } else { GridSpec::Fixed { units } };
        let variant =
            Variant::new(Kernel::Conv).flag(form).flag_if("GATED", self.gates.is_some()).set("TAPS", self.taps);
        let gate = |i: usize| self.gates.as_ref().map_or((0, 0), |g| (g[i].offset, g[i].stride));
        let label = if form == "ADVANCE" { format!("{} memory", self.label) } else { self.label.clone() };
        Launch::new(label, variant, grid)
            .bind("x", x.buffer.clone())
            .bind("state", self.state.clone())
            .bind("memory", self.memory.clone())
            .bind_opt("gate_in", self.gates.as_ref().map(|g| g[0].buffer.clone()))
            .set("channels", self.channels)
            .set("tile", TILE)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("in_offset", gate(0).0)
            .set("in_stride", gate(0).1)
            .set("gate_offset", gate(1).0)
            .set("gate_stride", gate(1).1)
            .set("out_offset", out.offset)
            .set("out_stride", out.stride)
            .set("act", self.act)
    }
}
