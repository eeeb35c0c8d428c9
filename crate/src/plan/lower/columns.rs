//! Lowers operations that concatenate, pad or reorder columns.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::{Concat, ConcatHeads, Gather, HeadSlice, PadHeads};
use crate::kernels::audio_conv;
use crate::kernels::elementwise::{Elementwise, HeadColumns, concat_heads, elementwise, gather};
use crate::kernels::matmul::View;

impl Lower for Concat {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let mut out = node.out.clone();
        for (id, x) in node.node.inputs.iter().zip(&node.inputs) {
            let cols = lowering.cols(*id);
            lowering.launches.push(elementwise(
                &node.name,
                Elementwise::Scale(1.0),
                std::slice::from_ref(x),
                &out,
                cols,
                node.single,
            ));
            out.offset += cols;
        }
        Ok(())
    }
}

impl Lower for ConcatHeads {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let part = |(part, input): (&HeadSlice, &View<Slot>)| {
            let mut view = input.clone();
            view.offset += part.first as u32;
            let columns = HeadColumns {
                cols: part.cols as u32,
                step: part.step as u32,
            };
            (view, columns)
        };
        let parts: Vec<_> = self.parts.iter().zip(&node.inputs).map(part).collect();
        let head_dim = self.head_dim as u32;
        lowering.launches.push(concat_heads(
            &node.name,
            [node.cols / head_dim, head_dim],
            &parts,
            &node.out,
            node.single,
        ));
        Ok(())
    }
}

impl Lower for PadHeads {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let input = node.node.inputs[0];
        lowering.launches.push(audio_conv::pad_heads(
            &node.name,
            self.count as u32,
            node.x(),
            lowering.cols(input),
            &node.out,
            node.cols,
            lowering.cursor(input),
        ));
        Ok(())
    }
}

impl Lower for Gather {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.launches.push(gather(
            &node.name,
            node.x(),
            Slot::Vector(self.order),
            &node.out,
            node.cols,
            node.single,
        ));
        Ok(())
    }
}
