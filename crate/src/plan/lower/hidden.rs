//! Lowers the hidden states that a model hands to its multi-token-prediction head.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::{LoadHidden, StoreHidden};
use crate::kernels::elementwise::{CopiedRows, copy_rows};
use crate::kernels::matmul::View;

/// Rows of a buffer outside of the graph.
fn stored(buffer: Slot, cols: u32) -> CopiedRows<Slot> {
    CopiedRows {
        view: View {
            buffer,
            offset: 0,
            stride: cols,
        },
        by_position: buffer == Slot::Hidden,
    }
}

impl Lower for StoreHidden {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        // A head proposes tokens for one sequence.
        if lowering.options.rows.is_batch() {
            return Ok(());
        }
        let cols = lowering.cols(node.node.inputs[0]);
        let (buffer, last) = match self {
            Self::ByPosition => (Slot::Hidden, false),
            Self::Last => (Slot::LastHidden, true),
        };
        let rows = CopiedRows {
            view: node.x().clone(),
            by_position: false,
        };
        let to = stored(buffer, cols);
        let launch = copy_rows(&node.name, rows, to, Slot::CURSOR, cols, last);
        lowering.launches.push(launch);
        Ok(())
    }
}

impl Lower for LoadHidden {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let to = CopiedRows {
            view: node.out.clone(),
            by_position: false,
        };
        let rows = stored(Slot::Hidden, node.cols);
        let launch = copy_rows(&node.name, rows, to, Slot::CURSOR, node.cols, false);
        lowering.launches.push(launch);
        Ok(())
    }
}
