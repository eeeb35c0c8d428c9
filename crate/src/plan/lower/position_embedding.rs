//! Lowers learned position embeddings.

use super::{Lower, Lowering, NodeViews, vector};
use crate::Result;
use crate::ir::AddPositionEmbedding;
use crate::kernels::audio_conv;
use crate::kernels::matmul::View;

impl Lower for AddPositionEmbedding {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let table = View {
            stride: node.cols,
            ..vector(self.table)
        };
        lowering.launches.push(audio_conv::add_position_embedding(
            &node.name,
            node.cols,
            node.x(),
            &table,
            (
                lowering.cursor(node.node.inputs[0]),
                lowering.options.rows.is_batch(),
            ),
            &node.out,
        ));
        Ok(())
    }
}
