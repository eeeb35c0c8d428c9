//! A decoder on a device: its weights, its caches, and the programs that prefill and decode.

use super::files::Files;
use super::load::{Compiled, Wanted, load_compiled};
use super::load_times::{Lap, LoadTimes};
use super::options::{Overrides, Precision, RunOptions};
use super::sampling::{MAX_STOPS, RING_BYTES, Tail};
use super::short::Short;
use super::speculate::Speculation;
use super::step::{Buffers, STATE_BYTES, Step, StepTimes, compile, finite, rope_buffers, rows_bytes, state, unpadded};
use super::tune::{Origin, Tuning, tune};
use crate::format::{Float, Layout, WeightSource, quantize};
use crate::gpu::{Backend, Buffer, Gpu, Usage};
use crate::hub::Source;
use crate::ir::{Graph, Op, StateId, WeightKind};
use crate::kernels::attention::Kv;
use crate::kernels::sample::GUESSED_ROWS;
use crate::plan::{
    Fusions, PlanOptions, RowsMode, Slot, StatePlan, WeightPlan, WeightPlans, fuse, lower, plan_states, plan_weights,
};
use crate::{Error, Result, arch};
use futures_util::future::LocalBoxFuture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The context where neither the caller nor the model asks for less.
const DEFAULT_CONTEXT: usize = 4096;

/// Bytes that a model needs beside weights and cache: activations, staging.
pub const ROOM: u64 = 100 << 20;

/// Bytes on the device by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub kv: u64,
    /// Activations, logits and what else a step needs.
    pub activations: u64,
}

/// A loaded decoder.
pub struct Model {
    /// The device.
    pub gpu: Gpu,
    /// config.json, with what the checkpoint implies filled in.
    pub config: Value,
    /// The graph, with the fusions that prefill and decode share.
    pub graph: Graph,
    /// How the weights are stored.
    pub weights: WeightPlans,
    /// Element type of the cache.
    pub kv: Kv,
    /// Positions of the cache.
    pub capacity: usize,
    /// How what a sequence keeps is stored.
    pub states: Vec<StatePlan>,
    /// Bytes on the device.
    pub bytes: Bytes,
    /// What the weights are kept in, of those that are not quantised in the checkpoint.
    pub precision: Precision,
    /// What was chosen otherwise than a user may expect.
    pub notes: Vec<String>,
    /// Which forms of the kernels were chosen for this device, and how.
    pub tuning: Tuning,
    /// Where the time of its load went.
    pub load: LoadTimes,
    pub(super) decode: Step,
    pub(super) tail: Step,
    pub(super) prefill: Step,
    pub(super) short: Short,
    every: Option<Step>,
    pub(super) shared: Buffers,
    pub(super) tails: Vec<(Tail, Step)>,
    pub(super) speculation: Option<Speculation>,
    /// The order of the columns of matrices that are not kept in their inputs' order.
    orders: BTreeMap<String, Arc<[u32]>>,
    pub(super) options: RunOptions,
    rope_dirty: usize,
}

impl Model {
    /// Loads a model from its files.
    ///
    /// # Errors
    /// Whatever the source, the configuration, the checkpoint or the device refuses.
    pub async fn load(gpu: Gpu, source: &Source, config: Value, options: RunOptions) -> Result<Self> {
        let files = Files::safetensors(source, config).await?;
        Self::load_files(gpu, source, files, options).await
    }

    /// Loads a model whose files are opened: safetensors, MLC or GGUF.
    ///
    /// # Errors
    /// Whatever the source, the configuration, the checkpoint or the device refuses.
    pub async fn load_files(gpu: Gpu, source: &Source, files: Files, options: RunOptions) -> Result<Self> {
        Self::load_while(gpu, source, files, options, Box::pin(async { Ok(()) })).await
    }

    /// [`Self::load_files`], and `meanwhile` something else, which begins when kernels compile and weights are on their way.
    ///
    /// # Errors
    /// Whatever the source, the configuration, the checkpoint or the device refuses, or what goes on meanwhile.
    pub async fn load_while(
        gpu: Gpu,
        source: &Source,
        files: Files,
        mut options: RunOptions,
        meanwhile: LocalBoxFuture<'_, Result<()>>,
    ) -> Result<Self> {
        let mut whole = Lap::start();
        let config = files.full_config();
        let Files { checkpoint, weights: stored, .. } = files;
        let orders = stored.iter().filter_map(|w| Some((w.name.clone(), w.order.clone()?))).collect();
        let order_of = |name: &str| stored.get(name, "").ok().and_then(|w| w.order.clone());
        let known = config.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(u64::MAX) as usize;
        let capacity = options.max_context.unwrap_or(DEFAULT_CONTEXT.min(known)).max(1);
        let kv = options.overrides.kv.unwrap_or(if gpu.caps().f16 { Kv::F16 } else { Kv::Packed });
        if kv == Kv::F16 && !gpu.caps().f16 {
            let reason = "f16 needs a device with shader-f16; 'packed' has the same size everywhere".into();
            return Err(Error::Request { parameter: "kv".into(), reason });
        }
        let max_buffer = gpu.caps().max_weight_buffer().min(options.max_weight_buffer.unwrap_or(u64::MAX));
        let plain = arch::graph(&config)?;
        let planned = |precision| {
            let overrides = options.overrides.with(precision);
            let layout_of =
                |name: &str| stored.get(name, "").map_or(Layout::Dense(Float::F32), |w| wanted(w, overrides));
            fused(&plain, options.fusions, &layout_of, &order_of, max_buffer)
        };
        let states = plan_states(&plain, kv, capacity, options.chunk.min(capacity));
        let state_bytes = states.iter().map(StatePlan::bytes).sum();
        let memory = options.memory.or(gpu.caps().memory);
        let (precision, mut notes, fit) = fitting(options.overrides.precision, state_bytes, memory, planned)?;
        let (graph, weights, fusions) = fit;
        options.fusions = fusions;
        let plan = |graph: &Graph, rows| {
            let caps = gpu.caps();
            lower(
                graph,
                PlanOptions {
                    rows,
                    caps,
                    weights: &weights,
                    kv,
                    capacity,
                    states: &states,
                    fuse_heads: options.fusions.heads,
                },
            )
        };
        let few = fuse::few_rows(graph.clone(), options.fusions);
        let plans = || {
            let decode = plan(&few, RowsMode::Few(1))?;
            let prefill = plan(&graph, RowsMode::Many(options.chunk.min(capacity)))?;
            let tail = Tail::Greedy.plan(decode.output_cols as u32, None)?;
            Ok(vec![decode, prefill, tail])
        };
        let mut tuning = Tuning::none(Origin::Off);
        let tune = Box::pin(async {
            tuning = tune(&gpu, source, &weights, options.tune).await?;
            Ok(())
        });
        let wanted =
            Wanted { gpu: &gpu, graph: &graph, plans: &weights, source, checkpoint: &checkpoint, stored: &stored };
        let Compiled { plans, pipelines, buffers: mut shared, times: mut load } =
            load_compiled(wanted, tune, &plans, meanwhile).await?;
        let [decode_plan, prefill_plan, tail_plan] = &plans[..] else {
            return Err(Error::Internal("the model has no three plans".into()));
        };
        notes.extend(tuning.failure.iter().map(|reason| {
            format!("Which kernels are the fastest here could not be measured ({reason}); the usual ones run.")
        }));
        let weight_bytes = shared.values().map(Buffer::size).sum();
        own_buffers(&gpu, &graph, &states, capacity, decode_plan.output, options.chunk, &mut shared)?;
        let before = gpu.created().bytes;
        let decode = Step::new(&gpu, "decode", decode_plan, &shared, &pipelines)?;
        let prefill = Step::new(&gpu, "prefill", prefill_plan, &shared, &pipelines)?;
        let tail = Step::new(&gpu, "sample", tail_plan, &shared, &pipelines)?;
        gpu.check().await?;
        let activations = gpu.created().bytes - before + decode_plan.output;
        let bytes = Bytes { weights: weight_bytes, kv: state_bytes, activations };
        load.peak_bytes = load.peak_bytes.max(tuning.peak_bytes).max(gpu.created().bytes);
        let mut model = Self {
            gpu,
            config,
            graph,
            weights,
            kv,
            capacity,
            states,
            bytes,
            precision,
            notes,
            tuning,
            load,
            decode,
            tail,
            prefill,
            short: Short::Unasked,
            every: None,
            tails: Vec::new(),
            speculation: None,
            shared,
            orders,
            options,
            rope_dirty: 0,
        };
        model.write_ropes(0, capacity, 0);
        model.load.total_ms = whole.lap();
        Ok(model)
    }

    /// Tokens of the vocabulary, as the logits count them.
    pub fn vocab(&self) -> usize {
        self.decode.output_cols
    }

    /// Parameters of the checkpoint.
    pub fn parameters(&self) -> u64 {
        self.weights.values().map(|w| (w.rows * w.cols) as u64).sum()
    }

    /// Dispatches of one greedy decode step.
    pub fn dispatches(&self) -> usize {
        self.decode.dispatches() + self.tail.dispatches()
    }

    /// Whether keys and values of a common prefix hold for another prompt.
    pub fn reuses_prefix(&self) -> bool {
        !self.graph.ropes.iter().any(|r| r.depends_on_length())
    }

    pub(super) fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        self.shared.get(&slot).ok_or_else(|| Error::Internal(format!("no buffer for {slot:?}")))
    }

    /// Sets where the next step stands.
    pub(super) fn set_state(&self, pos: usize, rows: usize, budget: usize) -> Result<()> {
        self.set_sampling_state(pos, rows, 0, budget)
    }

    /// The same in the midst of a generation, after `step` sampled tokens.
    pub(super) fn set_sampling_state(&self, pos: usize, rows: usize, step: usize, budget: usize) -> Result<()> {
        self.gpu.write(self.buffer(Slot::CURSOR)?, 0, bytemuck::cast_slice(&state(pos, rows, step, budget)));
        Ok(())
    }

    fn write_ropes(&self, first: usize, count: usize, total: usize) {
        for (index, spec) in self.graph.ropes.iter().enumerate() {
            if let (Some(buffer), true) = (self.shared.get(&Slot::Rope(index)), total == 0 || spec.depends_on_length())
            {
                let table = spec.table(first, count, total);
                self.gpu.write(buffer, (first * spec.dim * 4) as u64, bytemuck::cast_slice(&table));
            }
        }
    }

    /// The rotation of the positions from `start` on, where it depends on the whole prompt's length.
    fn fit_ropes(&mut self, start: usize, end: usize) {
        if self.reuses_prefix() {
            return;
        }
        if self.rope_dirty > end {
            self.write_ropes(end, self.rope_dirty - end, 0);
        }
        self.write_ropes(start, end - start, end);
        self.rope_dirty = end;
    }

    /// Runs `ids` at positions from `start` on, in chunks; the logits of the last row stay on the device.
    ///
    /// # Errors
    /// `ContextFull` when they do not fit; `Request` when there is no id or one is outside the vocabulary.
    pub async fn prefill(&mut self, ids: &[u32], start: usize) -> Result<()> {
        self.prefill_while(ids, start, || Ok(())).await
    }

    /// The same, as long as `go_on` allows: it is asked before each chunk.
    ///
    /// # Errors
    /// That of `go_on`; the cache then holds the chunks before.
    pub async fn prefill_while(&mut self, ids: &[u32], start: usize, go_on: impl Fn() -> Result<()>) -> Result<()> {
        self.check_ids(ids, start)?;
        self.fit_ropes(start, start + ids.len());
        self.take_short();
        let chunk = self.options.chunk.min(self.capacity);
        for (index, part) in ids.chunks(chunk).enumerate() {
            go_on()?;
            let pos = start + index * chunk;
            self.gpu.write(self.buffer(Slot::Ids)?, 0, bytemuck::cast_slice(part));
            self.set_state(pos, part.len(), 0)?;
            if part.len() == 1 {
                self.gpu.submit(&[self.decode.recorded()])?;
            } else {
                let step = self.prefill_step(part.len());
                let grids = step.grids(part.len());
                self.gpu.submit(&[step.with_grids(&grids)])?;
            }
            if index > 0 {
                // One chunk ahead at the most: the page stays responsive and an abort takes hold soon.
                self.gpu.wait_idle().await?;
            }
        }
        Ok(())
    }

    fn check_ids(&self, ids: &[u32], start: usize) -> Result<()> {
        let refuse = |reason: String| Err(Error::Request { parameter: "ids".into(), reason });
        if ids.is_empty() {
            return refuse("there is no token to run".into());
        }
        if start + ids.len() > self.capacity {
            return Err(Error::ContextFull { tokens: start + ids.len(), limit: self.capacity });
        }
        let vocab = self.vocab();
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => refuse(format!("{id} is outside the vocabulary of {vocab}")),
            None => Ok(()),
        }
    }

    /// Reads the logits of the last row.
    ///
    /// # Errors
    /// `NotFinite` when they are not numbers.
    pub async fn logits(&self) -> Result<Vec<f32>> {
        let bytes = self.gpu.read(self.buffer(Slot::Output)?, 0, self.vocab() as u64 * 4).await?;
        let logits: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        finite(&logits)?;
        Ok(logits)
    }

    /// Runs one token at a position and leaves its logits on the device.
    pub fn step(&self, token: u32, pos: usize) -> Result<()> {
        self.check_ids(&[token], pos)?;
        self.gpu.write(self.buffer(Slot::Ids)?, 0, bytemuck::cast_slice(&[token]));
        self.set_state(pos, 1, 0)?;
        self.gpu.submit(&[self.decode.recorded()])
    }

    /// Logits of every token, or the last hidden states where `hidden` is set: `[ids, columns]`.
    pub async fn every_row(&mut self, ids: &[u32], hidden: bool) -> Result<Vec<f32>> {
        self.check_ids(ids, 0)?;
        let chunk = self.options.chunk.min(self.capacity);
        let graph = fuse::gather_inputs(arch::graph(&self.config)?, &|name| self.orders.get(name).cloned());
        let mut graph = fuse::common(graph, self.options.fusions, &|name| self.layout_of(name));
        if hidden {
            graph = graph.without_head();
        }
        let graph = fuse::all_rows(graph);
        let (caps, weights) = (self.gpu.caps(), &self.weights);
        let rows = RowsMode::Many(chunk);
        let (kv, capacity) = (self.kv, self.capacity);
        let plan =
            lower(&graph, PlanOptions { rows, caps, weights, kv, capacity, states: &self.states, fuse_heads: false })?;
        let pipelines = compile(&self.gpu, &[&plan]).await?;
        let mut shared = self.shared.clone();
        shared.remove(&Slot::Output);
        let step = Step::new(&self.gpu, "every row", &plan, &shared, &pipelines)?;
        self.fit_ropes(0, ids.len());
        let mut all = Vec::with_capacity(ids.len() * step.output_cols);
        for (index, part) in ids.chunks(chunk).enumerate() {
            self.gpu.write(self.buffer(Slot::Ids)?, 0, bytemuck::cast_slice(part));
            self.set_state(index * chunk, part.len(), 0)?;
            let grids = step.grids(part.len());
            self.gpu.submit(&[step.with_grids(&grids)])?;
            let bytes = self.gpu.read(&step.output, 0, rows_bytes(part.len(), step.output_cols)).await?;
            all.extend(unpadded(&bytes, step.output_cols));
        }
        self.gpu.check().await?;
        finite(&all)?;
        self.every = Some(step);
        Ok(all)
    }

    fn layout_of(&self, name: &str) -> Layout {
        let holds = |id: &crate::ir::WeightId| self.graph.weight(*id).parts.iter().any(|p| p.0 == name);
        self.weights.iter().find(|(id, _)| holds(id)).map_or(Layout::Dense(Float::F32), |(_, w)| w.layout)
    }

    /// Times each dispatch of one decode step, and of a prefill of `rows` tokens.
    pub async fn profile(&self, rows: usize, pos: usize) -> Result<StepTimes> {
        self.set_state(pos, rows, 0)?;
        let step = if rows == 1 { &self.decode } else { self.prefill_step(rows) };
        step.profile(&self.gpu, rows).await
    }
}

/// The layout of a weight: its own where it is quantised, else what is asked for.
pub(super) fn wanted(weight: &WeightSource, overrides: Overrides) -> Layout {
    let own = weight.layout().unwrap_or(Layout::Dense(Float::F32));
    let precision = overrides.precision_of(&weight.name);
    let dense = if precision == Precision::F32 { Float::F32 } else { Float::F16 };
    if weight.is_scattered() && weight.order.is_none() {
        // Uneven groups fit no layout: the values become plain numbers.
        return Layout::Dense(dense);
    }
    let Layout::Dense(stored) = own else { return own };
    match precision {
        Precision::Auto => Layout::Dense(stored),
        Precision::F32 | Precision::F16 => Layout::Dense(dense),
        Precision::Q4 => quantize::layout(4),
        Precision::Q8 => quantize::layout(8),
    }
}

type Fused = (Graph, WeightPlans, Fusions);

/// The graph with its shared fusions, its weights' storage, and the fusions that were made: weights that only fit in
/// several buffers are neither merged nor gated.
pub(super) fn fused(
    plain: &Graph,
    fusions: Fusions,
    layout_of: &dyn Fn(&str) -> Layout,
    order_of: &dyn Fn(&str) -> Option<Arc<[u32]>>,
    max_buffer: u64,
) -> Result<Fused> {
    let graph = fuse::gather_inputs(plain.clone(), order_of);
    let graph = fuse::common(graph, fusions, layout_of);
    let weights = plan_weights(&graph, layout_of, max_buffer)?;
    let experts = |id| matches!(graph.weight(id).kind, WeightKind::Experts { .. });
    let merged = |id| graph.weight(id).parts.len() > 1 && !experts(id);
    let gated = |id| graph.nodes.iter().any(|n| matches!(&n.op, Op::Linear(l) if l.gated && l.weight == id));
    let whole = weights.iter().all(|(id, w)| w.runs.len() == 1 || !(merged(*id) || gated(*id)));
    if whole || !(fusions.siblings || fusions.gated) {
        return Ok((graph, weights, fusions));
    }
    fused(plain, Fusions { siblings: false, gated: false, ..fusions }, layout_of, order_of, max_buffer)
}

/// What `auto` means: the weights as they are stored while the model fits the memory, else as many bits as fit. Beside
/// the weights the model needs its cache, activations and what loading stages, for which [`ROOM`] is kept free.
fn fitting(
    asked: Precision,
    kv: u64,
    memory: Option<u64>,
    planned: impl Fn(Precision) -> Result<Fused>,
) -> Result<(Precision, Vec<String>, Fused)> {
    let needed = |fused: &Fused| fused.1.values().map(WeightPlan::bytes).sum::<u64>() + kv + ROOM;
    let (mut chosen, mut best) = (asked, planned(asked)?);
    let stored = needed(&best);
    let Some(memory) = memory.filter(|memory| stored > *memory) else { return Ok((chosen, Vec::new(), best)) };
    for fewer in [Precision::Q8, Precision::Q4].into_iter().filter(|_| asked == Precision::Auto) {
        let other = planned(fewer)?;
        if needed(&best) > memory && needed(&other) < needed(&best) {
            (chosen, best) = (fewer, other);
        }
    }
    let mb = |bytes: u64| bytes.div_ceil(1_000_000);
    let mut notes = Vec::new();
    if chosen != asked {
        let (name, takes, would, has) = (chosen.name(), mb(needed(&best)), mb(stored), mb(memory));
        notes.push(format!(
            "The weights are kept as {name}: so the model takes {takes} MB with its cache and room to work. As they are stored \
             it would take {would} MB, and the device is thought to have {has} MB for it."
        ));
    }
    if needed(&best) > memory {
        let (takes, has) = (mb(needed(&best)), mb(memory));
        notes.push(format!(
            "The model takes about {takes} MB, more than the {has} MB that the device is thought to have for it; a smaller \
             maxContext or model would fit."
        ));
    }
    Ok((chosen, notes, best))
}

/// The buffers that live as long as the model, beside its weights.
fn own_buffers(
    gpu: &Gpu,
    graph: &Graph,
    states: &[StatePlan],
    capacity: usize,
    output: u64,
    chunk: usize,
    shared: &mut Buffers,
) -> Result<()> {
    let sizes = [
        (Slot::Ids, chunk.max(GUESSED_ROWS as usize) as u64 * 4),
        (Slot::CURSOR, STATE_BYTES),
        (Slot::Tokens, RING_BYTES),
        (Slot::Stops, MAX_STOPS as u64 * 4),
        (Slot::Candidates, 128 * 8 * u64::from(GUESSED_ROWS)),
        (Slot::Output, output),
    ];
    for (slot, size) in sizes {
        shared.insert(slot, gpu.buffer("state", size, Usage::Storage)?);
    }
    rope_buffers(gpu, graph, capacity, shared)?;
    for (index, state) in states.iter().enumerate() {
        for (plane, bytes) in state.planes.iter().enumerate() {
            let slot = Slot::Sequence(StateId(index), plane as u8);
            shared.insert(slot, gpu.buffer("kv cache", *bytes, Usage::Storage)?);
        }
    }
    Ok(())
}
