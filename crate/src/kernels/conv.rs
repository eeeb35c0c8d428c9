//! Causal depthwise convolution with a state buffer of the inputs before a step, which the step
//! updates. Sources: LFM2 (arXiv 2511.23404), Mamba-2 (arXiv 2405.21060).

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Rows per thread in prefill.
const TILE: u32 = 16;

/// One convolution.
#[derive(Debug, Clone)]
pub struct ShortConvKernel<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Columns per row, each with its own filter.
    pub channels: u32,
    /// Kernel size, current row included: one of [`ShortConv::KERNEL_SIZES`](crate::ir::ShortConv::KERNEL_SIZES).
    pub kernel_size: u32,
    /// `[channels][taps]`, oldest row first.
    pub weight: B,
    /// `[channels]`.
    pub bias: Option<B>,
    /// Activation of the sums; a code of shaders/common/activation.wgsl.
    pub act: u32,
    /// Input scales by first column, in ascending order.
    pub scales: [(u32, f32); 3],
    /// Input gate and output gate.
    pub gates: Option<[View<B>; 2]>,
    /// `[taps - 1][channels]`: inputs before this step, oldest first. Read as zeros at position 0.
    pub memory: B,
    /// Step state.
    pub state: B,
    /// Whether each row belongs to another sequence, with a memory of its own.
    pub batch: bool,
}

impl<B: Clone> ShortConvKernel<B> {
    /// Returns the decode launch: rows in sequence, then the memory update.
    pub fn decode(&self, x: &View<B>, out: &View<B>) -> Launch<B> {
        self.compute_launch("FEW", x, out)
    }

    /// Returns the launch of a verification, which leaves the memory as it was, and the one that
    /// updates the memory with the accepted rows.
    pub fn verify(&self, x: &View<B>, out: &View<B>) -> [Launch<B>; 2] {
        let advance = self.launch(format!("{} memory", self.label), "ACCEPTED", x, out);
        let mut launches = [self.decode(x, out), advance];
        launches[0].variant = launches[0].variant.clone().flag("VERIFY");
        launches
    }

    /// Returns the prefill launches: row tiles, then the memory update.
    pub fn prefill(&self, x: &View<B>, out: &View<B>) -> [Launch<B>; 2] {
        let many = self.compute_launch("MANY", x, out);
        let mut advance = many.clone().set("advance", 1);
        advance.label += " memory";
        advance.grid = self.grid("ACCEPTED");
        [many.set("advance", 0), advance]
    }

    fn compute_launch(&self, form: &'static str, x: &View<B>, out: &View<B>) -> Launch<B> {
        let mut launch = self.launch(self.label.clone(), form, x, out);
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

    fn grid(&self, form: &str) -> GridSpec {
        let units = self.channels.div_ceil(64);
        let tiled = |per| GridSpec::Tiled {
            x: units,
            per,
            z: 1,
        };
        match form {
            "MANY" => tiled(TILE),
            _ if self.batch => tiled(1),
            _ => GridSpec::Fixed { units },
        }
    }

    fn launch(&self, label: String, form: &'static str, x: &View<B>, out: &View<B>) -> Launch<B> {
        let variant = Variant::new(Kernel::Conv)
            .flag(form)
            .flag_if("BATCH", self.batch)
            .flag_if("GATED", self.gates.is_some())
            .set("TAPS", self.kernel_size);
        let gate = |i: usize| {
            self.gates
                .as_ref()
                .map_or((0, 0), |g| (g[i].offset, g[i].stride))
        };
        Launch::new(label, variant, self.grid(form))
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
