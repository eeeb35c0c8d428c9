//! Lowers weighted sums of table rows.

use super::{Lower, Lowering, NodeViews};
use crate::ir::EmbeddingBag;
use crate::kernels::embedding_bag::embedding_bag;
use crate::{Error, Result};

impl Lower for EmbeddingBag {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let shards = lowering.shards(self.table)?;
        let [(_, table)] = &shards[..] else {
            return Err(Error::OutOfMemory {
                what: format!("{} (its table must fit one buffer)", node.name),
                needed: lowering.weight_bytes(self.table),
                limit: lowering.options.caps.max_weight_buffer(),
                hint: "This device cannot run the model; choose a smaller one.".into(),
            });
        };
        let taps = (self.taps > 0).then_some(self.taps as u32);
        lowering
            .launches
            .push(embedding_bag(&node.name, table, taps, node.x(), &node.out));
        Ok(())
    }
}
