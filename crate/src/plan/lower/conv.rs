//! Lowers convolutions over rows: im2col windows and transposed convolutions.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::{ConvTranspose1d, Im2Col};
use crate::kernels::audio_conv::{ConvTransposeKernel, Im2ColKernel};

impl Lower for Im2Col {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let input = node.node.inputs[0];
        let [left, right] = self.padding.map(|p| p as u32);
        let kernel = Im2ColKernel {
            cols: lowering.cols(input),
            kernel_size: self.kernel_size as u32,
            stride: self.stride as u32,
            dilation: self.dilation as u32,
            left,
            right,
            by_tap: self.by_tap,
        };
        let state = lowering.cursor(input);
        lowering
            .launches
            .push(kernel.launch(&node.name, node.x(), state, &node.out));
        Ok(())
    }
}

impl Lower for ConvTranspose1d {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let input = node.node.inputs[0];
        let groups = self.groups as u32;
        let kernel = ConvTransposeKernel {
            cols: node.cols,
            inputs_per_group: lowering.cols(input) / groups,
            outputs_per_group: node.cols / groups,
            kernel_size: self.kernel_size as u32,
            rate: self.rate as u32,
            weight: Slot::Vector(self.weight),
            bias: self.bias.map(Slot::Vector),
        };
        let state = lowering.cursor(input);
        lowering
            .launches
            .push(kernel.launch(&node.name, node.x(), state, &node.out));
        Ok(())
    }
}
