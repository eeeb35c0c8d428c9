//! Weight loader: file bytes to device buffers. If file and device layouts match, chunks are
//! written directly. Others go to staging buffers and are transcoded on the GPU, or on the CPU if
//! no kernel supports the encoding.

mod finish;
mod load_unit;
mod staging;

use super::plan_mismatch;
use super::quantized_cache::{QuantizedCache, QuantizedSet};
use super::write::{WeightRegion, write_chunk};
use crate::exec::load_times::{LoadTimes, Stopwatch};
use crate::exec::step::{Buffers, Pipelines};
use crate::format::{self, Checkpoint, RowOrder, TensorInfo, WeightSource, Weights};
use crate::gpu::{Backend, Buffer, BufferUsage, DispatchDesc, Gpu};
use crate::hub::{Chunk, Source};
use crate::ir::{Graph, WeightId, WeightKind};
use crate::plan::{Slot, WeightPlan, WeightPlans};
use crate::util::latch::Latch;
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result};
use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::{self, StreamExt};
use load_unit::{LoadPath, LoadUnit, StagedPart, is_needed_on_cpu, with_graph_shape};
use staging::Staging;

/// Target slab size of transcoding in bytes, for encodings that allow splitting by rows. Bounds
/// staging memory.
const SLAB_BYTES: u64 = 32 << 20;
/// Bytes written at once; the queue holds at most twice as many.
const MAX_PENDING_BYTES: usize = 32 << 20;
/// Ranges read concurrently.
const MAX_CONCURRENT_RANGES: usize = 4;

pub(super) struct Loader<'a> {
    gpu: &'a Gpu,
    plans: &'a WeightPlans,
    buffers: Buffers,
    units: Vec<Option<LoadUnit>>,
    /// Units and parts by (file, offset) of their bytes.
    targets: SortedMap<(usize, u64), Vec<(usize, usize)>>,
    infos: SortedMap<(usize, u64), TensorInfo>,
    pipelines: Pipelines,
    /// Kernels compiled ahead of their first use.
    compiling: Option<LocalBoxFuture<'a, Result<Pipelines>>>,
    staging: Staging,
    /// Transcodes of complete units that are not submitted yet, and the bytes that they read.
    batch: (Vec<DispatchDesc>, u64),
    pending: usize,
    /// Writes submitted before the pending ones.
    draining: Option<LocalBoxFuture<'a, Result<()>>>,
    /// Whether pending work includes transcoding.
    transcodes: bool,
    times: LoadTimes,
    compile_gate: &'a Latch,
    quantized: QuantizedSet,
}

/// Creates the buffers of a weight.
///
/// # Errors
/// `OutOfMemory`.
pub fn allocate(gpu: &Gpu, id: WeightId, plan: &WeightPlan, buffers: &mut Buffers) -> Result<()> {
    if matches!(plan.kind, WeightKind::Vector | WeightKind::Order) {
        buffers.insert(
            Slot::Vector(id),
            gpu.buffer("vector", plan.bytes(), BufferUsage::Storage)?,
        );
        return Ok(());
    }
    for (index, run) in plan.shards.iter().enumerate() {
        let [q, s] = plan.layout.plane_bytes(run.len(), plan.cols);
        buffers.insert(
            Slot::WeightQ(id, index),
            gpu.buffer("weights", q, BufferUsage::Storage)?,
        );
        if s > 0 {
            buffers.insert(
                Slot::WeightS(id, index),
                gpu.buffer("scales", s, BufferUsage::Storage)?,
            );
        }
    }
    Ok(())
}

impl<'a> Loader<'a> {
    /// Allocates the buffers of all weights and records the sources of each.
    ///
    /// # Errors
    /// `MissingTensor`, `Shape`, `UnsupportedEncoding` or `OutOfMemory`.
    pub fn new(
        gpu: &'a Gpu,
        graph: &Graph,
        plans: &'a WeightPlans,
        weights: &Weights,
        gate: &'a Latch,
    ) -> Result<Self> {
        let mut loader = Self {
            gpu,
            plans,
            buffers: Buffers::new(),
            units: Vec::new(),
            targets: SortedMap::new(),
            infos: SortedMap::new(),
            pipelines: Pipelines::new(),
            compiling: None,
            staging: Staging::default(),
            batch: (Vec::new(), 0),
            pending: 0,
            draining: None,
            transcodes: false,
            times: LoadTimes::default(),
            compile_gate: gate,
            quantized: QuantizedSet::of(graph, plans, weights),
        };
        for (id, plan) in plans {
            allocate(gpu, *id, plan, &mut loader.buffers)?;
            let weight = graph.weight(*id);
            if plan.is_paged() {
                // Report missing tensors before reading any data.
                for (name, _) in &weight.parts {
                    weights.get(name, &graph.name)?;
                }
                continue;
            }
            if plan.kind == WeightKind::Order {
                let source = weights.get(&weight.parts[0].0, &graph.name)?;
                let buffer = loader.buffer(Slot::Vector(*id), &source.name)?;
                let order = source.column_order.as_ref().ok_or_else(|| {
                    plan_mismatch(
                        &source.name,
                        "has no column order, but the plan gathers its columns",
                    )
                })?;
                if order.len() != plan.rows {
                    let what = format!(
                        "has a column order of {} entries, expected {}",
                        order.len(),
                        plan.rows
                    );
                    return Err(plan_mismatch(&source.name, &what));
                }
                gpu.write(buffer, 0, bytemuck::cast_slice(order));
                continue;
            }
            let mut row = 0;
            for (name, rows) in &weight.parts {
                let stored = weights.get(name, &graph.name)?;
                loader.add_rows(*id, plan, row, &with_graph_shape(stored, *rows, plan)?)?;
                row += rows;
            }
        }
        Ok(loader)
    }

    /// Creates a loader for rows of weights whose buffers exist.
    pub fn for_existing(
        gpu: &'a Gpu,
        plans: &'a WeightPlans,
        buffers: Buffers,
        pipelines: Pipelines,
        compile_gate: &'a Latch,
    ) -> Self {
        Self {
            gpu,
            plans,
            buffers,
            units: Vec::new(),
            targets: SortedMap::new(),
            infos: SortedMap::new(),
            pipelines,
            compiling: None,
            staging: Staging::default(),
            batch: (Vec::new(), 0),
            pending: 0,
            draining: None,
            transcodes: false,
            times: LoadTimes::default(),
            compile_gate,
            quantized: QuantizedSet::default(),
        }
    }

    /// Requests rows of a source for a row of a weight.
    pub fn request(&mut self, weight: WeightId, row: usize, source: &WeightSource) -> Result<()> {
        let plan = self
            .plans
            .get(&weight)
            .ok_or_else(|| plan_mismatch(&source.name, "has no plan"))?;
        let (rows, _) = source.rows_cols();
        self.add_rows(weight, plan, row, &with_graph_shape(source, rows, plan)?)
    }

    /// Fetches the requested rows, several ranges at a time; returns the pipelines and the bytes
    /// read.
    pub async fn fetch(
        mut self,
        source: &Source,
        checkpoint: &Checkpoint,
    ) -> Result<(Pipelines, u64)> {
        let infos: Vec<TensorInfo> = self.infos.values().cloned().collect();
        let read = |info: TensorInfo| async move {
            let file = checkpoint
                .files
                .get(info.file)
                .ok_or_else(|| plan_mismatch(&info.name, "belongs to no file"))?;
            let chunk = source.slice(&file.name, info.range.clone()).await?;
            Ok::<_, Error>((info, chunk))
        };
        let mut read = stream::iter(infos)
            .map(read)
            .buffered(MAX_CONCURRENT_RANGES);
        while let Some(found) = read.next().await {
            let (info, chunk) = found?;
            self.receive(&info, 0, &chunk).await?;
        }
        self.submit_batch()?;
        Ok((self.pipelines, self.times.bytes))
    }

    /// Streams the files into the buffers. With `kept`, weights quantized on load are read from the
    /// cache, or written to it for the next load.
    ///
    /// # Errors
    /// Errors of the source.
    pub async fn load(
        mut self,
        source: &Source,
        checkpoint: &Checkpoint,
        kept: bool,
    ) -> Result<(Buffers, LoadTimes)> {
        let mut whole = Stopwatch::start();
        let kept = if kept {
            QuantizedCache::of(source, checkpoint, &self.quantized, &self.buffers).await
        } else {
            None
        };
        let anew = match &kept {
            Some(kept) => self.restore(kept).await?,
            None => false,
        };
        self.start_compiling();
        let missing = |unit: usize| self.units.get(unit).is_some_and(Option::is_some);
        let asked = |key: &(usize, u64)| {
            self.targets
                .get(key)
                .is_some_and(|to| to.iter().any(|(unit, _)| missing(*unit)))
        };
        let infos: Vec<TensorInfo> = self
            .infos
            .iter()
            .filter(|(key, _)| asked(key))
            .map(|(_, i)| i.clone())
            .collect();
        let wanted: Vec<&TensorInfo> = infos.iter().collect();

        let mut stream = Stopwatch::start();
        source
            .stream_tensors(
                checkpoint,
                &wanted,
                async |tensor: &TensorInfo, offset: u64, chunk: Chunk| {
                    self.receive(tensor, offset, &chunk).await
                },
            )
            .await?;
        let streamed = stream.lap();
        if let Some(unit) = self
            .units
            .iter()
            .flatten()
            .find(|u| u.path != LoadPath::Direct)
        {
            return Err(Error::Internal(format!(
                "loading: {} is incomplete: the source ended early",
                unit.source.name
            )));
        }
        self.submit_batch()?;
        self.gpu.check().await?;
        if let Some(kept) = kept.filter(|_| anew) {
            let mut lap = Stopwatch::start();
            kept.store(self.gpu).await?;
            self.times.writing_ms += lap.lap();
        }
        let mut times = self.times;
        times.reading_ms = streamed
            - times.writing_ms
            - times.transcoding_ms
            - times.tuning_ms
            - times.compiling_ms;
        times.total_ms = whole.lap();
        Ok((self.buffers, times))
    }

    /// Restores cached weights; returns whether some must be quantized again.
    async fn restore(&mut self, kept: &QuantizedCache<'_>) -> Result<bool> {
        self.compile_gate.wait().await;
        let (there, bytes) = kept.restore(self.gpu).await?;
        for unit in &mut self.units {
            unit.take_if(|unit| there.contains(&unit.weight));
        }
        self.times.bytes += bytes;
        Ok(self.quantized.count() > there.len())
    }

    /// Adds a weight's rows as one unit, or as slabs if the encoding allows.
    fn add_rows(
        &mut self,
        weight: WeightId,
        plan: &WeightPlan,
        row: usize,
        source: &WeightSource,
    ) -> Result<()> {
        let route = LoadPath::of(source, plan, row, self.gpu.caps().max_weight_buffer());
        let (rows, cols) = source.rows_cols();
        let per_row = (source.stored_bytes() / rows.max(1) as u64).max(1);
        // Slabs are multiples of four rows, so that layouts that pack scales of several rows in a
        // word stay separate.
        let room = SLAB_BYTES.min(self.gpu.caps().max_weight_buffer());
        let slab = ((room / per_row) as usize / 4 * 4).max(4);
        if matches!(route, LoadPath::Gpu(_)) {
            format::check_parts(source)?;
        }
        let whole = route == LoadPath::Direct
            || plan.kind == WeightKind::Vector
            || rows <= slab
            || !source.encoding.has_contiguous_rows()
            || source.row_order != RowOrder::Stored;
        if whole {
            return self.push_unit(weight, row, source.clone(), route);
        }
        for first in (0..rows).step_by(slab) {
            let n = slab.min(rows - first);
            let piece = source.slice(&source.name, first, vec![n, cols]);
            let piece = piece.ok_or_else(|| {
                Error::Internal(format!("loading: {} cannot be split by rows", source.name))
            })?;
            self.push_unit(weight, row + first, piece, route.clone())?;
        }
        Ok(())
    }

    fn push_unit(
        &mut self,
        weight: WeightId,
        row: usize,
        source: WeightSource,
        route: LoadPath,
    ) -> Result<()> {
        let unit = self.units.len();
        let mut parts = Vec::new();
        for (index, part) in source.parts.iter().enumerate() {
            let key = (part.info.file, part.info.range.start);
            let info = self.infos.get_or_insert_with(key, || part.info.clone());
            if info.range != part.info.range {
                return Err(Error::Internal(format!(
                    "loading: two weights read different ranges of {}",
                    part.info.name
                )));
            }
            self.targets
                .get_or_insert_with(key, Vec::new)
                .push((unit, index));
            let bytes = part.info.bytes();
            if matches!(route, LoadPath::Gpu(_)) {
                self.staging.expect(bytes);
            }
            parts.push(StagedPart {
                role: part.role,
                bytes,
                received: 0,
                received_offsets: SortedSet::new(),
                cpu: Vec::new(),
                gpu: None,
            });
        }
        self.units.push(Some(LoadUnit {
            weight,
            row,
            source,
            path: route,
            parts,
        }));
        Ok(())
    }

    async fn receive(&mut self, tensor: &TensorInfo, offset: u64, chunk: &Chunk) -> Result<()> {
        let places = self
            .targets
            .get(&(tensor.file, tensor.range.start))
            .cloned()
            .unwrap_or_default();
        let mut lap = Stopwatch::start();
        self.compile_gate.wait().await;
        self.times.tuning_ms += lap.lap();
        for (unit, part) in places {
            self.receive_part(unit, part, offset, chunk)?;
            let complete = self.units[unit].as_ref().is_some_and(|u| {
                u.path != LoadPath::Direct && u.parts.iter().all(|p| p.received >= p.bytes)
            });
            self.times.writing_ms += lap.lap();
            if complete && let Some(unit) = self.units[unit].take() {
                self.times.peak_bytes = self.times.peak_bytes.max(self.gpu.resource_counts().bytes);
                let compiling = self.times.compiling_ms;
                self.finish(unit).await?;
                self.times.transcoding_ms += lap.lap() - (self.times.compiling_ms - compiling);
                self.transcodes = true;
            }
        }
        self.times.bytes += chunk.len() as u64;
        // Written bytes stay in the queue until they are submitted and done: wait for the batch
        // before the last.
        self.pending += chunk.len();
        if self.pending > MAX_PENDING_BYTES {
            self.pending = 0;
            self.submit_batch()?;
            self.gpu.submit(&[])?;
            if let Some(before) = self.draining.replace(self.gpu.wait_idle().boxed_local()) {
                before.await?;
            }
            let waited = if self.transcodes {
                &mut self.times.transcoding_ms
            } else {
                &mut self.times.writing_ms
            };
            *waited += lap.lap();
            self.transcodes = false;
        }
        Ok(())
    }

    fn receive_part(&mut self, unit: usize, part: usize, offset: u64, chunk: &Chunk) -> Result<()> {
        let Some(Some(unit)) = self.units.get_mut(unit) else {
            return Ok(());
        };
        let plan = self
            .plans
            .get(&unit.weight)
            .ok_or_else(|| plan_mismatch(&unit.source.name, "has no plan"))?;
        if unit.path == LoadPath::Direct {
            let gpu = self.gpu;
            let buffers = &self.buffers;

            return WeightRegion {
                gpu,
                buffers,
                plan,
                weight: unit.weight,
                row: unit.row,
            }
            .write_chunk(offset, chunk);
        }
        let Some(held) = unit.parts.get_mut(part) else {
            return Ok(());
        };
        if held.received_offsets.insert(offset) {
            held.received += chunk.len() as u64;
        }
        if unit.path == LoadPath::Cpu || is_needed_on_cpu(&unit.source, held.role) {
            held.cpu.resize(held.bytes as usize, 0);
            let data = chunk.to_vec();
            let at = offset as usize;

            let end = (at + data.len()).min(held.cpu.len());
            if at < end {
                held.cpu[at..end].copy_from_slice(&data[..end - at]);
            }
            return Ok(());
        }
        let place = match &held.gpu {
            Some(place) => place,
            None => {
                let place = self.staging.place(self.gpu, held.role, held.bytes)?;
                held.gpu.insert(place)
            }
        };
        write_chunk(self.gpu, &place.buffer, u64::from(place.at) + offset, chunk);
        Ok(())
    }

    fn buffer(&self, slot: Slot, name: &str) -> Result<&Buffer> {
        self.buffers
            .get(&slot)
            .ok_or_else(|| plan_mismatch(name, &format!("has no buffer for {slot:?}")))
    }
}
