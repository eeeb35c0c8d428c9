//! Trains weights of a graph. A step is one submit and one readback: all micro-batches with their
//! gradients, the norm of the gradients, and the update.

pub mod contrastive;

use crate::batch::{PackedRows, TrainSequence};
use crate::checkpointing::{MAX_BOUNDARIES_PER_SEGMENT, Segments};
use crate::kernel::{TrainLaunch, TrainPipelines};
use crate::kernels::fill;
use crate::kernels::preference::PAIR_RESULTS;
use crate::kernels::update::{
    HYPER_BYTES, Optimizer, UpdateBuffers, UpdatedWeight, square_sums, update_launches,
};
use crate::memory::TapeMemory;
use crate::tape::{Tape, TapeEnd, TapeOptions, TrainBuffer, TrainLoss, with_logits_of_all_rows};
use jerboa::exec::GraphWeights;
use jerboa::format::{Float, WeightLayout};
use jerboa::gpu::{Backend, Buffer, BufferUsage, Command, Gpu, Program};
use jerboa::ir::{Graph, StepSizes, ValueId, WeightId, WeightKind};
use jerboa::plan::{Slot, WeightPlan, WeightPlans};
use jerboa::{Error, Result, SortedSet};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// Bytes of the readback: loss, norm of the gradients, factor that clips them, a gap, and the sums
/// of pairs.
const REPORT_BYTES: u64 = 32;
/// u32 words of a row's inputs: id, position, label, span.
const INPUT_WORDS: usize = 5;

/// How a trainer updates weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainerOptions {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Weight decay.
    pub weight_decay: f32,
    /// Largest norm of all gradients; 0 for any.
    pub max_norm: f32,
    /// Maximum tokens of a micro-batch.
    pub max_tokens: usize,
    /// Whether the backward pass computes activations again instead of storing those of all
    /// layers. Losses and gradients have the same bits; a step takes about a third longer.
    pub checkpointing: bool,
    /// The loss. A trainer of pairs has steps of pairs only.
    pub loss: TrainLoss,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Mean loss of the labels, or of the pairs.
    pub loss: f32,
    /// Norm of all gradients before clipping.
    pub gradient_norm: f32,
}

/// Device memory of a trainer in bytes, known before a buffer is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainMemory {
    /// Values and gradients of the largest micro-batch.
    pub activations: u64,
    /// Trained weights, their gradients and the states of the optimizer.
    pub trained: u64,
    /// Weights that stay as they are.
    pub frozen: u64,
    /// The largest buffer of values or gradients.
    pub largest: u64,
    /// Whether the backward pass computes activations again.
    pub checkpointing: bool,
}

impl TrainMemory {
    /// All uses together.
    pub fn total(&self) -> u64 {
        self.activations + self.trained + self.frozen
    }
}

/// Device memory of a trainer by the tokens of its micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Bytes of all values and gradients per row.
    row: u64,
    /// Bytes per row of the widest buffer of them.
    widest: u64,
    trained: u64,
    /// Bytes of the largest trained weight.
    largest: u64,
    frozen: u64,
    checkpointing: bool,
}

impl MemoryEstimate {
    /// Memory with micro-batches of up to `tokens` tokens.
    pub fn with_tokens(&self, tokens: usize) -> TrainMemory {
        let rows = PackedRows::capacity(tokens) as u64;
        TrainMemory {
            activations: self.row * rows,
            trained: self.trained,
            frozen: self.frozen,
            largest: self.largest.max(self.widest * rows),
            checkpointing: self.checkpointing,
        }
    }
}

/// Trains weights of a language model's graph.
pub struct Trainer {
    gpu: Rc<Gpu>,
    graph: Graph,
    plans: WeightPlans,
    trained: SortedSet<WeightId>,
    options: TrainerOptions,
    buffers: HashMap<TrainBuffer, Buffer>,
    /// Buffers of values and gradients, by the places of `memory`.
    activations: Vec<Buffer>,
    memory: TapeMemory,
    segments: Segments,
    /// Inputs of the micro-batches of a step.
    inbox: Buffer,
    report: Buffer,
    pipelines: TrainPipelines,
    /// By end and rows.
    programs: HashMap<(bool, usize), Program>,
    clear: Program,
    update: Program,
    steps: i32,
}

impl Trainer {
    /// Creates a trainer of `trained` weights, which are f32. `weights` has the graph's other
    /// weights in any layout; trained ones that it lacks start with zeros.
    ///
    /// # Errors
    /// `UnsupportedOption` for operations without a gradient; `Request` for a trained weight that
    /// is not f32; device errors.
    pub async fn new(
        gpu: Rc<Gpu>,
        graph: Graph,
        weights: GraphWeights,
        trained: SortedSet<WeightId>,
        options: TrainerOptions,
    ) -> Result<Self> {
        let graph = with_logits_of_all_rows(graph);
        let GraphWeights {
            mut plans,
            buffers: loaded,
        } = weights;
        for id in &trained {
            plan_trained(&graph, *id, &mut plans)?;
        }
        let max_rows = PackedRows::capacity(options.max_tokens);
        let (segments, memory) = assign(&graph, &plans, &trained, options)?;
        let mut buffers: HashMap<TrainBuffer, Buffer> = loaded
            .into_iter()
            .filter_map(|(slot, buffer)| Some((buffer_of(slot)?, buffer)))
            .collect();
        let create =
            |what: &str, bytes: usize| gpu.buffer(what, bytes as u64, BufferUsage::Storage);
        let mut sums = 0;
        for id in &trained {
            let count = elements(&plans[id]);
            let own = weight_buffer(&graph, *id);
            if let Entry::Vacant(missing) = buffers.entry(own) {
                missing.insert(create("weight", count * 4)?);
            }
            buffers.insert(
                TrainBuffer::WeightGradient(*id),
                create("gradient", count * 4)?,
            );
            for state in 0..options.optimizer.states() {
                let key = TrainBuffer::OptimizerState(*id, state);
                buffers.insert(key, create("optimizer state", count * 4)?);
            }
            sums += square_sums(count);
        }
        for (index, spec) in graph.ropes.iter().enumerate() {
            let table = spec.table(0, max_rows, max_rows);
            let buffer = create("rope", table.len() * 8)?;
            gpu.write(&buffer, 0, bytemuck::cast_slice(&table));
            buffers.insert(TrainBuffer::Rope(index), buffer);
        }
        for (key, bytes) in [
            (TrainBuffer::Ids, max_rows * 4),
            (TrainBuffer::Positions, max_rows * 4),
            (TrainBuffer::Labels, max_rows * 4),
            (TrainBuffer::Spans, max_rows * 8),
            (TrainBuffer::RowLosses, max_rows * 4),
            (TrainBuffer::Loss, 4),
            (TrainBuffer::Hyper, HYPER_BYTES),
            (TrainBuffer::SquareSums, sums.max(1) * 4),
            (TrainBuffer::Clip, 8),
        ] {
            buffers.insert(key, create("training", bytes)?);
        }
        if options.loss != TrainLoss::CrossEntropy {
            let pairs = PackedRows::pair_capacity(max_rows);
            for (key, bytes) in [
                (TrainBuffer::PairSpans, pairs * 16),
                (TrainBuffer::PairReferences, pairs * 8),
                (TrainBuffer::PairResults, pairs * PAIR_RESULTS * 4),
                (TrainBuffer::PairSums, PAIR_RESULTS * 4),
                (TrainBuffer::RowScales, max_rows * 4),
            ] {
                buffers.insert(key, create("pairs", bytes)?);
            }
        }
        let activations = memory
            .cols
            .iter()
            .map(|cols| create("activations", cols * max_rows * 4))
            .collect::<Result<Vec<Buffer>>>()?;
        let inbox = create("inputs", max_rows * INPUT_WORDS * 4)?;
        let report = create("report", REPORT_BYTES as usize)?;
        let mut pipelines = TrainPipelines::default();
        let [clear, update] = [
            clear_launches(&plans, &trained, options.loss),
            weight_updates(&graph, &plans, &trained, options),
        ];
        let launches = clear.iter().chain(&update);
        pipelines.compile(&gpu, launches).await?;
        let record = |label: &str, launches: Vec<TrainLaunch<TrainBuffer>>| {
            let resolve = |launch: TrainLaunch<TrainBuffer>| {
                launch
                    .map(|buffer| buffers[buffer].clone())
                    .dispatch(&pipelines)
                    .transpose()
            };
            let steps = launches
                .into_iter()
                .filter_map(resolve)
                .collect::<Result<_>>()?;
            gpu.program(label, steps)
        };
        let clear = record("clear", clear)?;
        let update = record("update", update)?;
        gpu.check().await?;
        Ok(Self {
            gpu,
            graph,
            plans,
            trained,
            options,
            buffers,
            activations,
            memory,
            segments,
            inbox,
            report,
            pipelines,
            programs: HashMap::new(),
            clear,
            update,
            steps: 0,
        })
    }

    /// Computes the memory of a trainer without creating it, for any `max_tokens`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn estimate(
        graph: Graph,
        plans: &WeightPlans,
        trained: &SortedSet<WeightId>,
        options: TrainerOptions,
    ) -> Result<MemoryEstimate> {
        let graph = with_logits_of_all_rows(graph);
        let mut plans = plans.clone();
        for id in trained {
            plan_trained(&graph, *id, &mut plans)?;
        }
        let (_, memory) = assign(&graph, &plans, trained, options)?;
        let own: Vec<u64> = trained
            .iter()
            .map(|id| elements(&plans[id]) as u64 * 4)
            .collect();
        let widest = memory.cols.iter().max().copied().unwrap_or(0);
        let copies = 2 + options.optimizer.states() as u64;
        let frozen = plans.iter().filter(|(id, _)| !trained.contains(*id));
        Ok(MemoryEstimate {
            row: memory.bytes(1),
            widest: widest as u64 * 4,
            trained: own.iter().sum::<u64>() * copies,
            largest: own.iter().copied().max().unwrap_or(0),
            frozen: frozen.map(|(_, plan)| plan.bytes()).sum(),
            checkpointing: options.checkpointing,
        })
    }

    /// The graph, with logits of all rows.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Splits sequences into micro-batches, in order.
    pub fn split<'a>(&self, sequences: &'a [TrainSequence]) -> Vec<&'a [TrainSequence]> {
        self.split_by(sequences, |sequence| sequence.ids.len())
    }

    /// Splits items into micro-batches of up to `max_tokens`, in order.
    pub(crate) fn split_by<'a, T>(
        &self,
        items: &'a [T],
        tokens_of: impl Fn(&T) -> usize,
    ) -> Vec<&'a [T]> {
        let mut batches = Vec::new();
        let mut first = 0;
        let mut tokens = 0;
        for (index, item) in items.iter().enumerate() {
            let own = tokens_of(item);
            if index > first && tokens + own > self.options.max_tokens {
                batches.push(&items[first..index]);
                (first, tokens) = (index, 0);
            }
            tokens += own;
        }
        if first < items.len() {
            batches.push(&items[first..]);
        }
        batches
    }

    /// The trained weights.
    pub fn trained(&self) -> &SortedSet<WeightId> {
        &self.trained
    }

    /// The options.
    pub(crate) fn options(&self) -> TrainerOptions {
        self.options
    }

    fn logits_value(&self) -> Result<ValueId> {
        let logits = self.graph.logits;
        logits.ok_or_else(|| Error::Internal(format!("{} has no logits", self.graph.name)))
    }

    pub(crate) fn vocab(&self) -> Result<usize> {
        Ok(self.graph.value(self.logits_value()?).cols)
    }

    /// Compiles and records the program of a pass over `rows` rows.
    async fn prepare(&mut self, end: TapeEnd, rows: usize) -> Result<()> {
        let key = (end == TapeEnd::Gradients, rows);
        if self.programs.contains_key(&key) {
            return Ok(());
        }
        let options = TapeOptions {
            rows,
            end,
            loss: self.options.loss,
            segments: &self.segments,
        };
        let tape = Tape::record(&self.graph, &self.plans, &self.trained, options)?;
        // An evaluation may run in the same buffers: it is the beginning of the other tape.
        let program = self.record("train", tape.launches).await?;
        self.programs.insert(key, program);
        Ok(())
    }

    /// Compiles and records launches.
    async fn record(
        &mut self,
        label: &str,
        launches: Vec<TrainLaunch<TrainBuffer>>,
    ) -> Result<Program> {
        self.pipelines.compile(&self.gpu, launches.iter()).await?;
        let mut steps = Vec::with_capacity(launches.len());
        for launch in launches {
            let launch = launch.map(|buffer| self.buffer(*buffer));
            steps.extend(launch.dispatch(&self.pipelines)?);
        }
        self.gpu.program(label, steps)
    }

    fn buffer(&self, buffer: TrainBuffer) -> Buffer {
        match self.memory.places.get(&buffer) {
            Some(place) => self.activations[*place].clone(),
            None => self.buffers[&buffer].clone(),
        }
    }

    /// Runs the pass of each micro-batch, then `last`; returns the words of the report: loss sum,
    /// gradient norm, factor, 0, and the sums of pairs.
    pub(crate) async fn run(
        &mut self,
        end: TapeEnd,
        batches: &[PackedRows],
        last: bool,
    ) -> Result<[f32; REPORT_BYTES as usize / 4]> {
        let mut words: Vec<u32> = Vec::new();
        for batch in batches {
            self.prepare(end, batch.rows()).await?;
            for (_, input) in batch.inputs() {
                words.extend(input);
            }
        }
        let bytes = words.len() as u64 * 4;
        if bytes > self.inbox.size() {
            self.inbox = self.gpu.buffer("inputs", bytes, BufferUsage::Storage)?;
        }
        self.gpu.write(&self.inbox, 0, bytemuck::cast_slice(&words));
        let mut work = vec![Command::Run {
            program: &self.clear,
            grids: None,
        }];
        let mut at = 0;
        for batch in batches {
            for (buffer, input) in batch.inputs() {
                let size = size_of_val(input) as u64;
                work.push(Command::Copy {
                    from: (&self.inbox, at),
                    to: (&self.buffers[&buffer], 0),
                    size,
                });
                at += size;
            }
            work.push(Command::Run {
                program: &self.programs[&(end == TapeEnd::Gradients, batch.rows())],
                grids: None,
            });
        }
        if last {
            work.push(Command::Run {
                program: &self.update,
                grids: None,
            });
        }
        self.submit(work).await
    }

    /// Submits the work of a step; returns the words of the report, as [`Self::run`] does.
    async fn submit<'a>(
        &'a self,
        mut work: Vec<Command<'a>>,
    ) -> Result<[f32; REPORT_BYTES as usize / 4]> {
        for (buffer, to, size) in [
            (TrainBuffer::Loss, 0, 4),
            (TrainBuffer::Clip, 4, 8),
            (TrainBuffer::PairSums, 16, 16),
        ] {
            if let Some(buffer) = self.buffers.get(&buffer) {
                work.push(Command::Copy {
                    from: (buffer, 0),
                    to: (&self.report, to),
                    size,
                });
            }
        }
        self.gpu.submit(&work)?;
        let report = self.gpu.read(&self.report, 0, REPORT_BYTES).await?;
        self.gpu.check().await?;
        let words: Vec<f32> = bytemuck::pod_collect_to_vec(&report);
        Ok(std::array::from_fn(|index| words[index]))
    }

    fn pack(&self, batches: &[&[TrainSequence]]) -> Result<(Vec<PackedRows>, usize)> {
        if self.options.loss != TrainLoss::CrossEntropy {
            return Err(Error::Internal("this trainer is for pairs".into()));
        }
        let vocab = self.vocab()?;
        let pack =
            |batch: &&[TrainSequence]| PackedRows::pack(batch, self.options.max_tokens, vocab);
        let packed = batches.iter().map(pack).collect::<Result<Vec<_>>>()?;
        let labels = batches.iter().flat_map(|batch| batch.iter());
        let labels: usize = labels.map(TrainSequence::labels).sum();
        if labels == 0 {
            return Err(Error::Request {
                parameter: "batch".into(),
                reason:
                    "no token contributes to the loss. Use longer sequences, or a larger 'maxLength'."
                        .into(),
            });
        }
        Ok((packed, labels))
    }

    /// Trains one step: the gradients of all micro-batches together, then the update.
    ///
    /// # Errors
    /// `Request` for a micro-batch that is too large or has no labels; `NotFinite` for a loss that
    /// is not a number; device errors.
    pub async fn step(&mut self, batches: &[&[TrainSequence]], rate: f32) -> Result<StepReport> {
        let (packed, labels) = self.pack(batches)?;
        self.begin_step(labels, rate);
        let [loss, gradient_norm, ..] = self.run(TapeEnd::Gradients, &packed, true).await?;
        self.report(loss / labels as f32, gradient_norm, rate)
    }

    /// The report of a step whose numbers are finite.
    pub(crate) fn report(&self, loss: f32, gradient_norm: f32, rate: f32) -> Result<StepReport> {
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(Error::Request {
                parameter: "learningRate".into(),
                reason: format!(
                    "the loss of step {} is not finite (learning rate {rate}). Use a smaller learning rate.",
                    self.steps
                ),
            });
        }
        Ok(StepReport {
            loss,
            gradient_norm,
        })
    }

    /// Computes the gradients of a micro-batch without an update, for [`Self::gradient`]. Returns
    /// the mean loss.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn compute_gradients(&mut self, batch: &[TrainSequence]) -> Result<f32> {
        let (packed, labels) = self.pack(&[batch])?;
        self.write_hyper(labels, 0.0);
        let [loss, ..] = self.run(TapeEnd::Gradients, &packed, false).await?;
        Ok(loss / labels as f32)
    }

    /// Computes the mean loss of a micro-batch.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn evaluate(&mut self, batch: &[TrainSequence]) -> Result<f32> {
        let (packed, labels) = self.pack(&[batch])?;
        let [loss, ..] = self.run(TapeEnd::Loss, &packed, false).await?;
        Ok(loss / labels as f32)
    }

    /// Computes the logits of a sequence, `[ids, vocabulary]`.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub async fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let sequence = [TrainSequence::whole(ids.to_vec())];
        let mut packed = PackedRows::pack(&sequence, self.options.max_tokens, self.vocab()?)?;
        if self.options.loss != TrainLoss::CrossEntropy {
            packed.pad_pairs();
        }
        self.run(TapeEnd::Loss, &[packed], false).await?;
        let buffer = self.buffer(TrainBuffer::Value(self.logits_value()?));
        let size = (ids.len() * self.vocab()? * 4) as u64;
        let bytes = self.gpu.read(&buffer, 0, size).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Counts a step and writes its numbers.
    pub(crate) fn begin_step(&mut self, counted: usize, rate: f32) {
        self.steps += 1;
        self.write_hyper(counted, rate);
    }

    pub(crate) fn write_hyper(&self, labels: usize, rate: f32) {
        let hyper = self.options.optimizer.hyper(
            self.steps.max(1),
            labels,
            rate,
            self.options.weight_decay,
            self.options.max_norm,
        );
        let buffer = &self.buffers[&TrainBuffer::Hyper];
        self.gpu.write(buffer, 0, bytemuck::cast_slice(&hyper));
    }

    /// Reads a trained weight, row after row.
    ///
    /// # Errors
    /// Device errors.
    pub async fn weight(&self, id: WeightId) -> Result<Vec<f32>> {
        self.read(id, weight_buffer(&self.graph, id)).await
    }

    /// Reads the gradient of a trained weight.
    ///
    /// # Errors
    /// Device errors.
    pub async fn gradient(&self, id: WeightId) -> Result<Vec<f32>> {
        self.read(id, TrainBuffer::WeightGradient(id)).await
    }

    /// Reads the results of the last micro-batch's pairs.
    pub(crate) async fn pair_results(&self, pairs: usize) -> Result<Vec<[f32; PAIR_RESULTS]>> {
        let bytes = (pairs * PAIR_RESULTS * 4) as u64;
        let buffer = &self.buffers[&TrainBuffer::PairResults];
        let bytes = self.gpu.read(buffer, 0, bytes).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    async fn read(&self, id: WeightId, buffer: TrainBuffer) -> Result<Vec<f32>> {
        let plan = &self.plans[&id];
        let bytes = elements(plan) as u64 * 4;
        let bytes = self.gpu.read(&self.buffers[&buffer], 0, bytes).await?;
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        let stride = stride(plan);
        let rows = values.chunks_exact(stride);
        Ok(rows.flat_map(|row| row[..plan.cols].to_vec()).collect())
    }

    /// Replaces a trained weight, row after row.
    pub fn set_weight(&self, id: WeightId, values: &[f32]) {
        let plan = &self.plans[&id];
        let mut padded = vec![0.0; elements(plan)];
        let rows = padded.chunks_exact_mut(stride(plan));
        for (row, own) in rows.zip(values.chunks_exact(plan.cols)) {
            row[..plan.cols].copy_from_slice(own);
        }
        let buffer = &self.buffers[&weight_buffer(&self.graph, id)];
        self.gpu.write(buffer, 0, bytemuck::cast_slice(&padded));
    }
}

/// Assigns the buffers of a pass with gradients, whatever its rows. The logits last, so that an
/// evaluation's can be read; of an encoder, the embeddings. With `checkpointing`, the segments are
/// those that take the least memory; encoders have none.
fn assign(
    graph: &Graph,
    plans: &WeightPlans,
    trained: &SortedSet<WeightId>,
    options: TrainerOptions,
) -> Result<(Segments, TapeMemory)> {
    let TrainerOptions {
        checkpointing,
        loss,
        ..
    } = options;
    let Some(logits) = graph.logits else {
        let (tape, _) = Tape::record_encoder(graph, plans, trained, StepSizes::rows(1))?;
        let output = TrainBuffer::Value(graph.root(graph.hidden).0);
        return Ok((Segments::whole(graph), TapeMemory::assign(&tape, output)));
    };
    let assigned = |segments: Segments| {
        let options = TapeOptions {
            rows: 1,
            end: TapeEnd::Gradients,
            loss,
            segments: &segments,
        };
        let tape = Tape::record(graph, plans, trained, options)?;
        let memory = TapeMemory::assign(&tape, TrainBuffer::Value(logits));
        Ok((segments, memory))
    };
    let mut best = assigned(Segments::whole(graph))?;
    if checkpointing {
        for boundaries in 1..=MAX_BOUNDARIES_PER_SEGMENT {
            let other = assigned(Segments::between_boundaries(graph, boundaries))?;
            if other.1.bytes(1) < best.1.bytes(1) {
                best = other;
            }
        }
    }
    Ok(best)
}

/// The storage of a trained weight; adds it if the weight was not loaded.
fn plan_trained(graph: &Graph, id: WeightId, plans: &mut WeightPlans) -> Result<()> {
    let weight = graph.weight(id);
    if let Some(plan) = plans.get(&id) {
        let is_f32 = plan.layout == WeightLayout::Dense(Float::F32);
        if plan.kind != WeightKind::Vector && (!is_f32 || plan.shards.len() > 1) {
            return Err(Error::Request {
                parameter: "weights".into(),
                reason: format!(
                    "{} is stored as {}, but trained weights must be f32. Load the model with weights: 'f32'.",
                    weight.parts[0].0,
                    plan.layout.name()
                ),
            });
        }
        return Ok(());
    }
    let rows = weight.rows();
    plans.insert(
        id,
        WeightPlan {
            layout: WeightLayout::Dense(Float::F32),
            rows,
            total_rows: rows,
            cols: weight.cols,
            kind: weight.kind,
            shards: std::iter::once(0..rows).collect(),
        },
    );
    Ok(())
}

fn buffer_of(slot: Slot) -> Option<TrainBuffer> {
    match slot {
        Slot::WeightQ(id, shard) => Some(TrainBuffer::Codes(id, shard)),
        Slot::WeightS(id, shard) => Some(TrainBuffer::Scales(id, shard)),
        Slot::Vector(id) => Some(TrainBuffer::Vector(id)),
        _ => None,
    }
}

fn weight_buffer(graph: &Graph, id: WeightId) -> TrainBuffer {
    match graph.weight(id).kind {
        WeightKind::Vector => TrainBuffer::Vector(id),
        _ => TrainBuffer::Codes(id, 0),
    }
}

/// Elements between the rows of an f32 weight.
fn stride(plan: &WeightPlan) -> usize {
    match plan.kind {
        WeightKind::Vector => plan.cols,
        _ => plan.layout.padded_cols(plan.cols),
    }
}

/// Elements of an f32 weight with the padding of its rows.
fn elements(plan: &WeightPlan) -> usize {
    plan.rows * stride(plan)
}

/// Zeroes the sums of a step.
fn clear_launches(
    plans: &WeightPlans,
    trained: &SortedSet<WeightId>,
    loss: TrainLoss,
) -> Vec<TrainLaunch<TrainBuffer>> {
    let gradient = |id: &WeightId| fill(elements(&plans[id]), TrainBuffer::WeightGradient(*id));
    let mut launches: Vec<_> = trained.iter().map(gradient).collect();
    launches.push(fill(1, TrainBuffer::Loss));
    if loss != TrainLoss::CrossEntropy {
        launches.push(fill(PAIR_RESULTS, TrainBuffer::PairSums));
    }
    launches
}

/// The norm of all gradients, and the update of each weight.
fn weight_updates(
    graph: &Graph,
    plans: &WeightPlans,
    trained: &SortedSet<WeightId>,
    options: TrainerOptions,
) -> Vec<TrainLaunch<TrainBuffer>> {
    let states = 0..options.optimizer.states();
    let state = |id: WeightId| move |state: usize| TrainBuffer::OptimizerState(id, state);
    let weights: Vec<UpdatedWeight<TrainBuffer>> = trained
        .iter()
        .map(|id| UpdatedWeight {
            count: elements(&plans[id]),
            weight: weight_buffer(graph, *id),
            gradient: TrainBuffer::WeightGradient(*id),
            states: states.clone().map(state(*id)).collect(),
        })
        .collect();
    let shared = UpdateBuffers {
        square_sums: TrainBuffer::SquareSums,
        clip: TrainBuffer::Clip,
        hyper: TrainBuffer::Hyper,
    };
    let decay = options.weight_decay != 0.0;
    update_launches(options.optimizer, decay, &weights, &shared)
}
