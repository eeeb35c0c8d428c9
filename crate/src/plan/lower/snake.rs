//! Lowers the Snake activation.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::Snake;
use crate::kernels::audio_conv;

impl Lower for Snake {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let snakes = lowering.graph.weight(self.alpha).rows() as u32;
        lowering.launches.push(audio_conv::snake(
            &node.name,
            node.cols,
            snakes,
            node.x(),
            Slot::Vector(self.alpha),
            lowering.cursor(node.node.inputs[0]),
            &node.out,
        ));
        Ok(())
    }
}
