//! Lowers token embeddings and the soft tokens that replace or extend them.

use super::{Lower, Lowering, NodeViews, Slot, StepKind};
use crate::Result;
use crate::ir::{AddSoftTokens, Embed, IdSource, InputId, SoftTokens, WeightId};
use crate::kernels::embed::{RowIndex, embed};
use crate::kernels::embedding_bag::soft_tokens;
use crate::kernels::matmul::View;
use crate::plan::{PlanBreak, PlanBreakKind};

impl Lowering<'_> {
    /// Returns the rows of an input from a column on.
    fn input_rows(&self, input: InputId, column: usize) -> View<Slot> {
        let stride = self.graph.inputs[input.0].cols.next_multiple_of(4) as u32;
        View {
            buffer: Slot::Input(input),
            offset: column as u32,
            stride,
        }
    }

    /// Adds the break before the step that maps its token ids to rows of a paged table.
    fn break_for_table(&mut self, table: WeightId) {
        let stop = PlanBreak {
            after: 0,
            read: Slot::Ids,
            write: Slot::PagedRows(table),
            kind: PlanBreakKind::PagedRows { table },
        };
        self.breaks.insert(0, stop);
    }
}

impl Lower for Embed {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let rows = lowering.options.rows;
        let packed = matches!(rows, StepKind::Packed { .. });
        let paged = lowering.is_paged(self.table);
        let ids = match self.ids {
            IdSource::Tokens if paged => {
                lowering.break_for_table(self.table);
                RowIndex::Ids(Slot::PagedRows(self.table))
            }
            IdSource::Tokens => RowIndex::Ids(Slot::Ids),
            IdSource::Positions if packed => RowIndex::Ids(Slot::Positions),
            IdSource::Positions if rows.is_batch() => RowIndex::RowPositions(Slot::CURSOR),
            IdSource::Positions => RowIndex::Positions(Slot::CURSOR),
            IdSource::Types => RowIndex::Ids(Slot::Types),
        };
        let soft = self.soft.filter(|_| !rows.decodes());
        let first = lowering.graph.weight(self.table).rows() as u32;
        let past = match soft {
            Some(SoftTokens::Row(row)) if !paged => Some((first, row)),
            _ => None,
        };
        for (row0, shard) in lowering.shards(self.table)? {
            lowering.launches.push(embed(
                &node.name,
                &shard,
                row0,
                ids.clone(),
                past,
                &node.out,
                self.scale,
            ));
        }
        if let Some(SoftTokens::Rows(input)) = soft {
            let rows = lowering.input_rows(input, 0);
            lowering.launches.push(soft_tokens(
                &format!("{}, soft", node.name),
                None,
                &rows,
                Slot::Ids,
                first,
                &node.out,
                node.cols,
            ));
        }
        Ok(())
    }
}

impl Lower for AddSoftTokens {
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()> {
        let first = lowering.graph.weight(self.table).rows() as u32;
        let rows = lowering.input_rows(self.rows, self.column);
        lowering.launches.push(soft_tokens(
            &node.name,
            Some(node.x()),
            &rows,
            Slot::Ids,
            first,
            &node.out,
            node.cols,
        ));
        Ok(())
    }
}
