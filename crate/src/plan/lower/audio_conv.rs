//! Lowers convolutions and audio operations: im2col windows, transposed convolution, norms, Snake.

use super::{Lowering, Slot};
use crate::ir::{Node, Op};
use crate::kernels::audio_conv::{self, Im2ColKernel};
use crate::kernels::elementwise::{Elementwise, elementwise};
use crate::kernels::matmul::View;

impl Lowering<'_> {
    /// Lowers a convolution or audio node.
    pub(super) fn audio_conv(&mut self, name: &str, node: &Node) {
        let x = self.view(node.inputs[0]);
        let out = self.view(node.output);

        let (cols, wide) = (self.cols(node.inputs[0]), self.cols(node.output));
        let state = self.cursor(node.inputs[0]);
        match &node.op {
            Op::Im2Col(w) => {
                let [left, right] = w.padding.map(|p| p as u32);
                let taps = w.kernel_size as u32;
                let stride = w.stride as u32;
                let dilation = w.dilation as u32;

                let unfold = Im2ColKernel {
                    cols,
                    kernel_size: taps,
                    stride,
                    dilation,
                    left,
                    right,
                    by_tap: w.by_tap,
                };
                self.launches.push(unfold.launch(name, &x, state, &out));
            }
            Op::ConvTranspose1d(u) => {
                let groups = u.groups as u32;
                let upsample = audio_conv::ConvTransposeKernel {
                    cols: wide,
                    inputs_per_group: cols / groups,
                    outputs_per_group: wide / groups,
                    kernel_size: u.kernel_size as u32,
                    rate: u.rate as u32,
                    weight: Slot::Vector(u.weight),
                    bias: u.bias.map(Slot::Vector),
                };
                self.launches.push(upsample.launch(name, &x, state, &out));
            }
            Op::Snake { alpha } => {
                let snakes = self.graph.weight(*alpha).rows() as u32;
                self.launches.push(audio_conv::snake(
                    name,
                    wide,
                    snakes,
                    &x,
                    Slot::Vector(*alpha),
                    state,
                    &out,
                ));
            }
            Op::GroupNorm {
                groups,
                gain,
                bias,
                eps,
            } => {
                let gain = Slot::Vector(*gain);
                let bias = Slot::Vector(*bias);

                let norm = audio_conv::GroupNorm {
                    cols,
                    groups: *groups as u32,
                    eps: *eps,
                    gain,
                    bias,
                };
                self.attention_partials = self.attention_partials.max(norm.bytes());
                self.launches.extend(norm.launches(
                    name,
                    &x,
                    &state,
                    &Slot::AttentionPartials,
                    &out,
                ));
            }
            Op::Asinh { k } => {
                let k = View {
                    buffer: Slot::Vector(*k),
                    offset: 0,
                    stride: 0,
                };
                self.launches.push(elementwise(
                    name,
                    Elementwise::Asinh,
                    &[x, k],
                    &out,
                    wide,
                    false,
                ));
            }
            Op::AddPositionEmbedding { table } => {
                let table = View {
                    buffer: Slot::Vector(*table),
                    offset: 0,
                    stride: wide,
                };
                self.launches.push(audio_conv::add_position_embedding(
                    name, wide, &x, &table, state, &out,
                ));
            }
            Op::PadHeads { count } => {
                self.launches.push(audio_conv::pad_heads(
                    name,
                    *count as u32,
                    &x,
                    cols,
                    &out,
                    wide,
                    state,
                ));
            }
            _ => {}
        }
    }
}
