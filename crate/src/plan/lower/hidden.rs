//! Lowers the hidden states that a model hands to its multi-token-prediction head.

use super::{Lower, Lowering, NodeViews, Slot};
use crate::Result;
use crate::ir::{LoadHidden, StoreHidden};
use crate::kernels::elementwise::{CopiedRows, copy_rows, last_row};
use crate::kernels::matmul::View;

/// The hidden states of a sequence.
fn stored(cols: u32) -> CopiedRows<Slot> {
    CopiedRows {
        view: View {
            buffer: Slot::Hidden,
            offset: 0,
            stride: cols,
        },
        by_position: true,
    }
}

impl Lower for StoreHidden {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        // A head proposes tokens for one sequence.
        if lowering.options.rows.is_batch() {
            return Ok(());
        }
        let cols = lowering.cols(node.node.inputs[0]);
        let (name, x) = (&node.name, node.x());
        let launch = match self {
            Self::ByPosition => {
                let rows = CopiedRows {
                    view: x.clone(),
                    by_position: false,
                };
                copy_rows(name, rows, stored(cols), Slot::CURSOR, cols)
            }
            Self::Last => last_row(name, x, Slot::LastHidden, Slot::CURSOR, cols),
        };
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
        let rows = stored(node.cols);
        let launch = copy_rows(&node.name, rows, to, Slot::CURSOR, node.cols);
        lowering.launches.push(launch);
        Ok(())
    }
}
