//! Embeddings.

use super::Differentiate;
use crate::kernels::embed::{embed, embed_table};
use crate::tape::{Tape, TrainBuffer};
use jerboa::Result;
use jerboa::ir::{Embed, IdSource, Node};

impl Differentiate for Embed {
    fn forward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        let ids = ids_of(self);
        let out = tape.view(node.output);
        let rows = tape.rows;
        for (first, table) in tape.shards(self.table)? {
            tape.push(embed(&table, first, rows, self.scale, ids, out.buffer));
        }
        Ok(())
    }

    fn backward(&self, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
        if let Some(table) = tape.weight_gradient(self.table) {
            let ids = ids_of(self);
            let dy = tape.gradient(node.output)?;
            let size = [tape.rows, tape.cols_of(node.output)];
            tape.push(embed_table(size, self.scale, ids, &dy, &table));
        }
        Ok(())
    }
}

fn ids_of(op: &Embed) -> TrainBuffer {
    match op.ids {
        IdSource::Tokens => TrainBuffer::Ids,
        IdSource::Positions => TrainBuffer::Positions,
        IdSource::Types => TrainBuffer::Types,
    }
}
