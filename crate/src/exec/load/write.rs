//! Writes bytes to a weight's buffers, across shard boundaries.

use super::plan_mismatch;
use crate::Result;
use crate::exec::step::Buffers;
use crate::format::{PackedMatrix, WeightLayout, WeightSource};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Chunk;
use crate::ir::{WeightId, WeightKind};
use crate::plan::{Slot, WeightPlan};

/// Target region of rows in a weight.
pub(super) struct WeightRegion<'a> {
    pub gpu: &'a Gpu,
    pub buffers: &'a Buffers,
    pub plan: &'a WeightPlan,
    pub weight: WeightId,
    /// The first row.
    pub row: usize,
}

impl WeightRegion<'_> {
    /// Writes a chunk that is already in the device layout; `offset` is relative to the rows'
    /// bytes.
    pub fn write_chunk(&self, offset: u64, chunk: &Chunk) -> Result<()> {
        if self.plan.kind == WeightKind::Vector {
            write_chunk(
                self.gpu,
                self.buffer(Slot::Vector(self.weight))?,
                self.row as u64 * 4 + offset,
                chunk,
            );
            return Ok(());
        }
        let row_bytes = self.plan.layout.row_words(self.plan.cols) as u64 * 4;
        let start = self.row as u64 * row_bytes + offset;
        let end = start + chunk.len() as u64;
        for (index, run) in self.plan.shards.iter().enumerate() {
            let low = run.start as u64 * row_bytes;
            let high = run.end as u64 * row_bytes;

            let from = start.max(low);
            let to = end.min(high);

            if from < to {
                let part = chunk.slice((from - start) as usize..(to - start) as usize);
                write_chunk(
                    self.gpu,
                    self.buffer(Slot::WeightQ(self.weight, index))?,
                    from - low,
                    &part,
                );
            }
        }
        Ok(())
    }

    /// Writes packed rows of `source`.
    pub fn write_packed(&self, packed: &PackedMatrix, source: &WeightSource) -> Result<()> {
        let words = [
            packed.layout.row_words(packed.cols),
            packed.layout.row_param_words(packed.cols),
        ];
        for (index, run) in self.plan.shards.iter().enumerate() {
            let rows = self.row.max(run.start)..(self.row + packed.rows).min(run.end);
            if rows.is_empty() {
                continue;
            }
            let from = rows.start - self.row;
            let to = rows.end - self.row;

            let slots = [
                Slot::WeightQ(self.weight, index),
                Slot::WeightS(self.weight, index),
            ];
            for (plane, words) in words.iter().enumerate().filter(|(_, w)| **w > 0) {
                let data = &packed.planes[plane][from * words..to * words];
                let at = ((rows.start - run.start) * words * 4) as u64;
                self.gpu
                    .write(self.buffer(slots[plane])?, at, bytemuck::cast_slice(data));
            }
            if packed.layout == WeightLayout::Mxfp4 {
                // Rows share words of scale bytes, so they must begin on whole words, as slabs,
                // shards and heads do.
                let blocks = packed.layout.padded_cols(packed.cols) / 32;
                let first = from * blocks;
                let target = (rows.start - run.start) * blocks;

                if !first.is_multiple_of(4) || !target.is_multiple_of(4) {
                    return Err(source.unsupported(
                        "Its rows begin inside a word of scales. Use another quantization.",
                    ));
                }
                let data = &packed.planes[1][first / 4..(to * blocks).div_ceil(4)];
                self.gpu.write(
                    self.buffer(slots[1])?,
                    target as u64,
                    bytemuck::cast_slice(data),
                );
            }
        }
        Ok(())
    }

    fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        self.buffers
            .get(&slot)
            .ok_or_else(|| plan_mismatch("a weight", &format!("has no buffer for {slot:?}")))
    }
}

/// Writes a chunk to a buffer; in the browser its bytes bypass WebAssembly memory.
pub(super) fn write_chunk(gpu: &Gpu, buffer: &Buffer, offset: u64, chunk: &Chunk) {
    let chunk = chunk.padded(4);
    #[cfg(target_arch = "wasm32")]
    gpu.write_js(buffer, offset, chunk.as_js());
    #[cfg(not(target_arch = "wasm32"))]
    gpu.write(buffer, offset, chunk.as_slice());
}
