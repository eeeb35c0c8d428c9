//! Lowers convolutions and audio operations: im2col windows, transposed convolution, norms, Snake.

use super::{Lowering, Slot};
use crate::ir::{Node, Op};
use crate::kernels::elementwise::{Elementwise, elementwise};
use crate::kernels::matmul::View;
use crate::kernels::sound::{self, Unfold};

impl Lowering<'_> {
    /// Lowers a convolution or audio node.
    pub(super) fn sound(&mut self, name: &str, node: &Node) {
        let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
        let (cols, wide) = (self.cols(node.inputs[0]), self.cols(node.output));
        let state = self.cursor(node.inputs[0]);
        match &node.op {
            Op::Windows(w) => {
                let [left, right] = w.padding.map(|p| p as u32);
                let (taps, stride, dilation) = (w.taps as u32, w.stride as u32, w.dilation as u32);
                let unfold = Unfold { cols, taps, stride, dilation, left, right, by_tap: w.by_tap };
                self.launches.push(unfold.launch(name, &x, state, &out));
            }
            Op::Upsample(u) => {
                let groups = u.groups as u32;
                let upsample = sound::Upsample {
                    cols: wide,
                    inputs: cols / groups,
                    outputs: wide / groups,
                    taps: u.taps as u32,
                    rate: u.rate as u32,
                    weight: Slot::Vector(u.weight),
                    bias: u.bias.map(Slot::Vector),
                };
                self.launches.push(upsample.launch(name, &x, state, &out));
            }
            Op::Snake { alpha } => {
                let snakes = self.graph.weight(*alpha).rows() as u32;
                self.launches.push(sound::snake(name, wide, snakes, &x, Slot::Vector(*alpha), state, &out));
            }
            Op::GroupNorm { groups, gain, bias, eps } => {
                let (gain, bias) = (Slot::Vector(*gain), Slot::Vector(*bias));
                let norm = sound::GroupNorm { cols, groups: *groups as u32, eps: *eps, gain, bias };
                self.scratch = self.scratch.max(norm.bytes());
                self.launches.extend(norm.launches(name, &x, &state, &Slot::Scratch, &out));
            }
            Op::Asinh { k } => {
                let k = View { buffer: Slot::Vector(*k), offset: 0, stride: 0 };
                self.launches.push(elementwise(name, Elementwise::Asinh, &[x, k], &out, wide, false));
            }
            Op::AddPositions { table } => {
                let table = View { buffer: Slot::Vector(*table), offset: 0, stride: wide };
                self.launches.push(sound::add_positions(name, wide, &x, &table, state, &out));
            }
            Op::Heads { count } => {
                self.launches.push(sound::heads(name, *count as u32, &x, cols, &out, wide, state));
            }
            _ => {}
        }
    }
}
