//! Lowers operations that reduce rows: the last row, and pooling of packed sequences.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::{LastRow, Pool};
use crate::kernels::elementwise::last_row;
use crate::kernels::pool::pool;

impl Lower for LastRow {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.launches.push(last_row(
            &node.name,
            node.x(),
            node.out.buffer,
            Slot::CURSOR,
            node.cols,
        ));
        Ok(())
    }
}

impl Lower for Pool {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        lowering.launches.push(pool(
            &node.name,
            self.0 as u32,
            node.x(),
            Slot::PoolSpans,
            &node.out,
            node.cols,
        ));
        Ok(())
    }
}
