//! Lowers table lookups: embeddings, soft tokens and embedding bags.

use super::{Lowering, Slot, StepKind};
use crate::ir::{IdSource, Node, SoftTokens, ValueId, WeightId};
use crate::kernels::embed::{RowIndex, embed};
use crate::kernels::embedding_bag::{embedding_bag, soft_tokens};
use crate::plan::{PlanBreak, PlanBreakKind, WeightPlan};
use crate::{Error, Result};

impl Lowering<'_> {
    pub(super) fn embed(
        &mut self,
        name: &str,
        (table, scale): (WeightId, f32),
        ids: IdSource,
        soft_ones: Option<SoftTokens>,
        output: ValueId,
    ) -> Result<()> {
        let out = self.view(output);
        let packed = matches!(self.options.rows, StepKind::Packed { .. });
        let numbers = match ids {
            IdSource::Tokens if self.is_paged(table) => RowIndex::Ids(Slot::PagedRows(table)),
            IdSource::Tokens => RowIndex::Ids(Slot::Ids),
            IdSource::Positions if packed => RowIndex::Ids(Slot::Positions),
            IdSource::Positions => RowIndex::Positions(Slot::CURSOR),
            IdSource::Types => RowIndex::Ids(Slot::Types),
        };
        let soft_ones = soft_ones.filter(|_| !matches!(self.options.rows, StepKind::Decode(_)));
        let first = self.graph.weight(table).rows() as u32;
        let past = match soft_ones {
            Some(SoftTokens::Row(number)) if !self.is_paged(table) => Some((first, number)),
            _ => None,
        };
        if let RowIndex::Ids(write @ Slot::PagedRows(_)) = numbers {
            // All tables map the same ids, before the step.
            let kind = PlanBreakKind::PagedRows { table };
            self.breaks.insert(
                0,
                PlanBreak {
                    after: 0,
                    read: Slot::Ids,
                    write,
                    kind,
                },
            );
        }
        for (row0, run) in self.shards(table)? {
            self.launches
                .push(embed(name, &run, row0, numbers.clone(), past, &out, scale));
        }
        if let Some(SoftTokens::Rows(input)) = soft_ones {
            let cols = self.cols(output);
            let rows = self.soft(input, 0);
            self.launches.push(soft_tokens(
                &format!("{name}, soft"),
                None,
                &rows,
                Slot::Ids,
                first,
                &out,
                cols,
            ));
        }
        Ok(())
    }

    /// Whether a weight's buffers hold only some of its rows at a time.
    pub(super) fn is_paged(&self, id: WeightId) -> bool {
        self.options
            .weights
            .get(&id)
            .is_some_and(WeightPlan::is_paged)
    }

    pub(super) fn embedding_bag(
        &mut self,
        name: &str,
        table: WeightId,
        taps: usize,
        node: &Node,
    ) -> Result<()> {
        let runs = self.shards(table)?;
        let [(_, run)] = &runs[..] else {
            return Err(Error::OutOfMemory {
                what: format!("{name} (its table must fit one buffer)"),
                needed: self.options.weights.get(&table).map_or(0, |w| w.bytes()),
                limit: self.options.caps.max_weight_buffer(),
                hint: "This device cannot run the model; choose a smaller one.".into(),
            });
        };
        let x = self.view(node.inputs[0]);
        let out = self.view(node.output);

        self.launches.push(embedding_bag(
            name,
            run,
            (taps > 0).then_some(taps as u32),
            &x,
            &out,
        ));
        Ok(())
    }
}
