//! Writes bytes to a weight's buffers, across shard boundaries.

use super::plan_mismatch;
use crate::Result;
use crate::exec::step::Buffers;
use crate::format::{PackedMatrix, WeightLayout, WeightSource};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Chunk;
use crate::ir::{WeightId, WeightKind};
use crate::plan::{Slot, WeightPlan};
use std::ops::Range;

/// Target region of rows in a weight.
pub struct WeightRegion<'a> {
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
        self.write_planes(packed)?;
        if packed.layout != WeightLayout::Mxfp4 {
            return Ok(());
        }
        // Rows share words of scale bytes, so they must begin on whole words, as slabs, shards and
        // heads do.
        let blocks = packed.layout.padded_cols(packed.cols) / 32;
        for (index, rows, target) in self.shard_rows(packed.rows) {
            let first = rows.start * blocks;
            let target = target * blocks;
            if !first.is_multiple_of(4) || !target.is_multiple_of(4) {
                return Err(source.unsupported(
                    "Its rows begin inside a word of scales. Use another quantization.",
                ));
            }
            let data = &packed.planes[1][first / 4..(rows.end * blocks).div_ceil(4)];
            let buffer = self.buffer(Slot::WeightS(self.weight, index))?;
            self.gpu
                .write(buffer, target as u64, bytemuck::cast_slice(data));
        }
        Ok(())
    }

    /// Writes the planes of packed rows that have whole words for each row.
    pub fn write_planes(&self, packed: &PackedMatrix) -> Result<()> {
        let words = [
            packed.layout.row_words(packed.cols),
            packed.layout.row_param_words(packed.cols),
        ];
        for (index, rows, target) in self.shard_rows(packed.rows) {
            let slots = [
                Slot::WeightQ(self.weight, index),
                Slot::WeightS(self.weight, index),
            ];
            for (plane, words) in words.iter().enumerate().filter(|(_, w)| **w > 0) {
                let data = &packed.planes[plane][rows.start * words..rows.end * words];
                let at = (target * words * 4) as u64;
                self.gpu
                    .write(self.buffer(slots[plane])?, at, bytemuck::cast_slice(data));
            }
        }
        Ok(())
    }

    /// The shards that `count` rows of the region lie in: index, rows counted from the region's first,
    /// and the shard's row that the first of them is.
    fn shard_rows(&self, count: usize) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
        let shards = self.plan.shards.iter().enumerate();
        shards.filter_map(move |(index, run)| {
            let rows = self.row.max(run.start)..(self.row + count).min(run.end);
            (!rows.is_empty()).then(|| {
                let own = rows.start - self.row..rows.end - self.row;
                (index, own, rows.start - run.start)
            })
        })
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
