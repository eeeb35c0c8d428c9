//! Lowers norms of column groups over all rows.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::GroupNorm;
use crate::kernels::audio_conv::GroupNormKernel;

impl Lower for GroupNorm {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let kernel = GroupNormKernel {
            cols: node.cols,
            groups: self.groups as u32,
            eps: self.eps,
            gain: Slot::Vector(self.gain),
            bias: Slot::Vector(self.bias),
        };
        let state = lowering.cursor(node.node.inputs[0]);
        lowering.reserve_partials(kernel.bytes());
        lowering.launches.extend(kernel.launches(
            &node.name,
            node.x(),
            &state,
            &Slot::AttentionPartials,
            &node.out,
        ));
        Ok(())
    }
}
