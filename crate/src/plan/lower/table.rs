//! Lowers table lookups: embeddings, soft tokens and embedding bags.

use super::{Lowering, RowsMode, Slot};
use crate::ir::{Ids, Node, Soft, ValueId, WeightId};
use crate::kernels::blend::{blend, soft};
use crate::kernels::embed::{Numbers, embed};
use crate::plan::WeightPlan;
use crate::{Error, Result};

impl Lowering<'_> {
    pub(super) fn embed(
        &mut self,
        name: &str,
        (table, scale): (WeightId, f32),
        ids: Ids,
        soft_ones: Option<Soft>,
        output: ValueId,
    ) -> Result<()> {
        let out = self.view(output);
        let packed = matches!(self.options.rows, RowsMode::Packed { .. });
        let numbers = match ids {
            Ids::Tokens if self.paged(table) => Numbers::Listed(Slot::Rows(table)),
            Ids::Tokens => Numbers::Listed(Slot::Ids),
            Ids::Positions if packed => Numbers::Listed(Slot::Positions),
            Ids::Positions => Numbers::Places(Slot::CURSOR),
            Ids::Types => Numbers::Listed(Slot::Types),
        };
        let soft_ones = soft_ones.filter(|_| !matches!(self.options.rows, RowsMode::Few(_)));
        let first = self.graph.weight(table).rows() as u32;
        let past = match soft_ones {
            Some(Soft::Number(number)) if !self.paged(table) => Some((first, number)),
            _ => None,
        };
        for (row0, run) in self.runs(table)? {
            self.launches.push(embed(name, &run, row0, numbers.clone(), past, &out, scale));
        }
        if let Some(Soft::Rows(input)) = soft_ones {
            let cols = self.cols(output);
            let rows = self.soft(input, 0);
            self.launches.push(soft(&format!("{name}, soft"), None, &rows, Slot::Ids, first, &out, cols));
        }
        Ok(())
    }

    /// Whether a weight's buffers hold only some of its rows at a time.
    pub(super) fn paged(&self, id: WeightId) -> bool {
        self.options.weights.get(&id).is_some_and(WeightPlan::is_paged)
    }

    pub(super) fn blend(&mut self, name: &str, table: WeightId, taps: usize, node: &Node) -> Result<()> {
        let runs = self.runs(table)?;
        let [(_, run)] = &runs[..] else {
            return Err(Error::OutOfMemory {
                what: format!("{name} (its table must fit one buffer)"),
                needed: self.options.weights.get(&table).map_or(0, |w| w.bytes()),
                limit: self.options.caps.max_weight_buffer(),
                hint: "This device cannot run the model; choose a smaller one.".into(),
            });
        };
        let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
        self.launches.push(blend(name, run, (taps > 0).then_some(taps as u32), &x, &out));
        Ok(())
    }
}
