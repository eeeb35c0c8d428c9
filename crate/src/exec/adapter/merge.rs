//! Merges adapters into copies of the matrices that they update: LoRA on request, DoRA
//! (arXiv 2402.09353) always. DoRA gives each row of `W + scale * B A` a learned norm, so it needs
//! the norms of the model's own rows, which are those of its dequantized weights.

use super::{AdapterBase, AdapterWeights};
use crate::exec::load::{WeightRegion, allocate, float_of};
use crate::exec::step::Buffers;
use crate::format::{Checkpoint, Float, PackedMatrix, WeightLayout, Weights};
use crate::gpu::{Backend, Buffer};
use crate::hub::Source;
use crate::ir::{LowRankUpdate, Op, WeightId};
use crate::plan::{Slot, WeightPlan, WeightPlans, plan_weights};
use crate::reference::dequant::dequant;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use std::ops::Range;

/// Bytes of f32 that are read back, merged and written at once.
const SLAB_BYTES: usize = 4 << 20;

/// The update of some rows of a weight.
struct RowUpdate {
    rows: Range<usize>,
    /// `[rank, in]`.
    a: Vec<f32>,
    /// `[rows, rank]`.
    b: Vec<f32>,
    rank: usize,
    scale: f32,
    /// The norm of each row, of DoRA.
    magnitude: Option<Vec<f32>>,
}

impl RowUpdate {
    /// Updates a row of the weight, if it is one of these.
    fn apply(&self, row: usize, values: &mut [f32]) {
        if !self.rows.contains(&row) {
            return;
        }
        let index = row - self.rows.start;
        let factors = &self.b[index * self.rank..(index + 1) * self.rank];
        for (factor, a) in factors.iter().zip(self.a.chunks(values.len())) {
            let factor = self.scale * factor;
            values.iter_mut().zip(a).for_each(|(w, a)| *w += factor * a);
        }
        if let Some(magnitude) = &self.magnitude {
            let squares = values.iter().map(|w| f64::from(*w) * f64::from(*w));
            let norm = squares.sum::<f64>().sqrt();
            let factor = (f64::from(magnitude[index]) / norm) as f32;
            values.iter_mut().for_each(|w| *w *= factor);
        }
    }
}

impl AdapterBase<'_> {
    /// Merges updates into copies of the matrices that they name.
    ///
    /// # Errors
    /// `UnsupportedOption` for an update that names no matmul, or an embedding; `OutOfMemory` where a
    /// merged weight exceeds a buffer; errors of the source or the device.
    pub(super) async fn merge_updates(
        &self,
        source: &Source,
        checkpoint: &Checkpoint,
        stored: &Weights,
        updates: &[LowRankUpdate],
    ) -> Result<AdapterWeights> {
        let base = self.runner.planned.clone();
        let mut replaced: SortedMap<WeightId, Vec<RowUpdate>> = SortedMap::new();
        let mut taken = vec![false; updates.len()];
        for id in base.weights.keys() {
            let mut row = 0;
            for (name, rows) in &base.graph.weight(*id).parts {
                let named = updates.iter().position(|update| update.names(name));
                if let Some(index) = named {
                    taken[index] = true;
                    let rows = row..row + rows;
                    let update = &updates[index];
                    let cols = base.graph.weight(*id).cols;
                    let update =
                        read_update(source, checkpoint, stored, update, (rows, cols)).await?;
                    replaced.get_or_insert_with(*id, Vec::new).push(update);
                }
                row += rows;
            }
        }
        let count = taken.iter().filter(|taken| **taken).count();
        let is_embedding = |id: &WeightId| {
            let mut nodes = base.graph.nodes.iter();
            nodes.any(|node| matches!(node.op, Op::Embed(_)) && node.op.weights().contains(id))
        };
        if count != updates.len() || replaced.keys().any(is_embedding) {
            return Err(self.refuse_updates(updates.len(), count));
        }
        let mut planned = (*base).clone();
        let mut plans = WeightPlans::new();
        let mut buffers = Buffers::new();
        for (id, updates) in &replaced {
            let own = &base.weights[id];
            let plan = self.merged_plan(*id, own)?;
            self.merge_weight(*id, own, &plan, updates, &mut buffers)
                .await?;
            planned.weights.insert(*id, plan.clone());
            plans.insert(*id, plan);
        }
        Ok(AdapterWeights {
            planned,
            plans,
            buffers,
        })
    }

    /// Plans the copy of a weight: in f32 if it is, else in f16. Rounded to bf16, an update that is
    /// small next to the weight would be lost.
    fn merged_plan(&self, id: WeightId, own: &WeightPlan) -> Result<WeightPlan> {
        let layout = match own.layout {
            WeightLayout::Dense(Float::F32) => WeightLayout::Dense(Float::F32),
            _ => WeightLayout::Dense(Float::F16),
        };
        let limit = self.options.weight_buffer_limit(self.gpu.caps());
        let plans = plan_weights(&self.runner.planned.graph, &|_| layout, limit)?;
        let plan = &plans[&id];
        // Kernels of merged and gated matmuls read one buffer.
        if plan.shards.len() > 1 && own.shards.len() == 1 {
            return Err(Error::OutOfMemory {
                what: format!("{}, merged", self.runner.planned.graph.weight(id).parts[0].0),
                needed: plan.bytes(),
                limit,
                hint: "Load the model with weights that are not quantized, or a LoRA adapter without 'merge'.".into(),
            });
        }
        Ok(plan.clone())
    }

    async fn merge_weight(
        &self,
        id: WeightId,
        own: &WeightPlan,
        plan: &WeightPlan,
        updates: &[RowUpdate],
        buffers: &mut Buffers,
    ) -> Result<()> {
        allocate(self.gpu, id, plan, buffers)?;
        // Whole words of scales, which four rows may share.
        let slab = (SLAB_BYTES / 4 / own.cols).max(1).next_multiple_of(4);
        for (shard, run) in own.shards.iter().enumerate() {
            for first in (0..run.len()).step_by(slab) {
                let rows = first..(first + slab).min(run.len());
                let read = self.read_rows(id, shard, own, rows.clone()).await?;
                let mut values = dequant(&read);
                let mut packed = PackedMatrix::zeros(plan.layout, rows.len(), own.cols);
                for (index, values) in values.chunks_mut(own.cols).enumerate() {
                    let row = run.start + first + index;
                    updates.iter().for_each(|update| update.apply(row, values));
                    for (col, value) in values.iter().enumerate() {
                        packed.set_dense(index, col, *value);
                    }
                }
                WeightRegion {
                    gpu: self.gpu,
                    buffers,
                    plan,
                    weight: id,
                    row: run.start + first,
                }
                .write_planes(&packed)?;
            }
        }
        Ok(())
    }

    /// Reads rows of a shard of a weight back.
    async fn read_rows(
        &self,
        id: WeightId,
        shard: usize,
        plan: &WeightPlan,
        rows: Range<usize>,
    ) -> Result<PackedMatrix> {
        let mut packed = PackedMatrix::zeros(plan.layout, rows.len(), plan.cols);
        let starts = plan.layout.plane_bytes(rows.start, plan.cols);
        let slots = [Slot::WeightQ(id, shard), Slot::WeightS(id, shard)];
        for ((plane, start), slot) in packed.planes.iter_mut().zip(starts).zip(slots) {
            if plane.is_empty() {
                continue;
            }
            let missing = || Error::Internal(format!("{slot:?} of an adapter is missing"));
            let buffer: &Buffer = self.runner.weights.get(&slot).ok_or_else(missing)?;
            let bytes = self.gpu.read(buffer, start, plane.len() as u64 * 4).await?;
            *plane = bytemuck::pod_collect_to_vec(&bytes);
        }
        Ok(packed)
    }
}

/// Reads the factors of an update, in the order of the model's rows.
async fn read_update(
    source: &Source,
    checkpoint: &Checkpoint,
    stored: &Weights,
    update: &LowRankUpdate,
    (rows, cols): (Range<usize>, usize),
) -> Result<RowUpdate> {
    let read = async |name: &str, shape: [usize; 2]| {
        let weight = stored.get(name, "adapter")?;
        let info = &weight.parts[0].info;
        let count = shape[0] * shape[1];
        let float =
            float_of(info.dtype).filter(|_| weight.shape.iter().product::<usize>() == count);
        let float = float.ok_or_else(|| Error::Shape {
            tensor: name.into(),
            found: weight.shape.clone(),
            expected: shape.into(),
        })?;
        let file = &checkpoint.files[info.file].name;
        let bytes = source.slice(file, info.range.clone()).await?.to_vec();
        let row = |row: usize| weight.row_order.stored_row(row) * shape[1];
        let indices = (0..shape[0]).flat_map(|index| row(index)..row(index) + shape[1]);
        Ok::<Vec<f32>, Error>(indices.filter_map(|at| float.get(&bytes, at)).collect())
    };
    let magnitude = match &update.magnitude {
        Some(name) => Some(read(name, [rows.len(), 1]).await?),
        None => None,
    };
    Ok(RowUpdate {
        a: read(&update.a, [update.rank, cols]).await?,
        b: read(&update.b, [rows.len(), update.rank]).await?,
        rank: update.rank,
        scale: update.scale,
        rows,
        magnitude,
    })
}
