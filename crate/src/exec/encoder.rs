//! Encoder models: packs sequences into one batch and reads back one embedding (or one row a token)
//! for each.

use super::adapter::{AdapterBase, LoadedAdapter};
use super::files::ModelFiles;
use super::graph_runner::{GraphRunner, WeightFiles};
use super::load::LoadTasks;
use super::load_times::{LoadTimes, Stopwatch};
use super::model::MemoryUse;
use super::options::{Precision, RunOptions};
use super::planned_graph::{LoadPlans, PlannedGraph, StepPlan};
use super::program_key::{OverlayId, ProgramKey};
use super::step::{
    Buffers, STATE_BYTES, Step, StepTimes, check_finite, rope_buffers, rows_bytes, state_words,
    unpad_rows,
};
use crate::arch::{self, EncoderGraph, EncoderHead, LoadConfig, PositionScheme};
use crate::device::Caps;
use crate::gpu::{Backend, BufferUsage, Gpu, Readback};
use crate::hub::Source;
use crate::ir::{Dim, Graph, StepSizes};
use crate::plan::{Slot, StepKind, WeightPlans};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum bytes of activations, unless one sequence alone needs more.
const MAX_ACTIVATION_BYTES: u64 = 256 << 20;
/// Maximum tokens of a batch, unless one sequence has more; larger batches do not run faster.
const MAX_BATCH_TOKENS: usize = 8192;
/// Maximum sequences of a batch.
const MAX_BATCH_SEQUENCES: usize = 1024;
/// Default maximum sequence length. Longer ones cost memory that few inputs need.
const DEFAULT_MAX_SEQUENCE_LEN: usize = 2048;

/// A tokenized input sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncoderInput {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token type ids; empty for all zeros.
    pub types: Vec<u32>,
    /// Number of leading tokens that pooling skips.
    pub skip: usize,
}

/// Pending readback of output rows.
pub struct PendingRows {
    read: Readback,
    cols: usize,
}

impl PendingRows {
    /// Waits for the rows and returns them concatenated.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn wait(self) -> Result<Vec<f32>> {
        let rows = unpad_rows(&self.read.wait().await?, self.cols);
        check_finite(&rows)?;
        Ok(rows)
    }
}

/// A loaded encoder model.
pub struct EncoderModel {
    /// The device.
    pub gpu: Rc<Gpu>,
    /// config.json.
    pub config: LoadConfig,
    /// Storage precision of the weights that the checkpoint does not quantize.
    pub precision: Precision,
    /// Bytes on the device.
    pub bytes: MemoryUse,
    /// Time spent in each phase of the load.
    pub load: LoadTimes,
    /// Maximum tokens of a sequence.
    pub max_sequence_len: usize,
    /// Maximum tokens of a batch.
    pub max_batch_tokens: usize,
    /// Maximum sequences of a batch.
    pub max_batch_sequences: usize,
    positions: PositionScheme,
    runner: GraphRunner,
    /// The graph without fusions, which adapters extend.
    plain: Graph,
    options: RunOptions,
    step: Step,
    /// The steps of the loaded adapters.
    adapters: RefCell<SortedMap<OverlayId, Rc<Step>>>,
    vocab: usize,
    output: Dim,
}

impl EncoderModel {
    /// Loads an encoder from opened files. `longest` is the sequence limit given by the model's own
    /// files; `options.max_context` overrides it.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        mut files: ModelFiles,
        head: &EncoderHead,
        longest: Option<usize>,
        options: RunOptions,
    ) -> Result<Self> {
        let mut whole = Stopwatch::start();
        let EncoderGraph {
            graph: plain,
            positions,
        } = files.take_encoder_graph(head)?;
        let ModelFiles {
            config,
            checkpoint,
            weights: stored,
            store,
            ..
        } = files;
        let planned = PlannedGraph::stateless(&plain, &stored, gpu.caps(), &options)?;
        let usual = DEFAULT_MAX_SEQUENCE_LEN.min(arch::max_positions(&config));
        let longest = options
            .max_context
            .or(longest)
            .unwrap_or(usual)
            .clamp(1, positions.max_tokens);
        let (tokens, longest) = batch_limits(
            &plan_batch(&planned, gpu.caps(), 64, 1)?.plan,
            longest,
            gpu.caps().max_weight_buffer(),
        );
        let sequences = MAX_BATCH_SEQUENCES.min(tokens);
        let from = WeightFiles {
            source,
            checkpoint: &checkpoint,
            stored: &stored,
        };
        let key = ProgramKey::rows(tokens, true);
        let plan = |planned: &_| {
            let plan = plan_batch(planned, gpu.caps(), tokens, sequences)?;
            Ok(LoadPlans::one(key, plan))
        };
        // No matmul has a single row, so there is nothing to tune.
        let tasks = LoadTasks::none();
        let (mut runner, plans, mut load) =
            GraphRunner::load(&gpu, from, planned, &store, &plan, tasks).await?;
        let before = gpu.resource_counts().bytes;
        let PlannedGraph { graph, .. } = &*runner.planned;
        own_buffers(
            &gpu,
            graph,
            (tokens, sequences, longest),
            &mut runner.shared,
        )?;
        let output = graph.value(graph.hidden).rows;
        runner.add_programs(&gpu, plans)?;
        let step = runner.step(&gpu, &Buffers::new(), key)?;
        gpu.check().await?;
        let bytes = MemoryUse {
            weights: runner.weight_bytes(),
            activations: gpu.resource_counts().bytes - before,
            ..MemoryUse::default()
        };
        load.peak_bytes = load.peak_bytes.max(gpu.resource_counts().bytes);
        let vocab = config
            .get("vocab_size")
            .and_then(Value::as_u64)
            .unwrap_or(0) as usize;
        let mut encoder = Self {
            gpu: Rc::new(gpu),
            config,
            precision: options.overrides.precision,
            bytes,
            load,
            max_sequence_len: longest,
            max_batch_tokens: tokens,
            max_batch_sequences: sequences,
            positions,
            runner,
            plain,
            options,
            step,
            adapters: RefCell::default(),
            vocab,
            output,
        };
        encoder.write_ropes();
        encoder.load.total_ms = whole.lap();
        Ok(encoder)
    }

    /// The fused graph.
    pub fn graph(&self) -> &Graph {
        &self.runner.planned.graph
    }

    /// How the weights are stored.
    pub fn weights(&self) -> &WeightPlans {
        &self.runner.planned.weights
    }

    /// Columns of an output row.
    pub fn cols(&self) -> usize {
        self.step.output_cols
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Number of parameters of the checkpoint.
    pub fn parameters(&self) -> u64 {
        self.runner.planned.parameters()
    }

    /// Dispatches of a batch.
    pub fn dispatches(&self) -> usize {
        self.step.dispatches()
    }

    fn write_ropes(&self) {
        for (index, spec) in self.runner.planned.graph.ropes.iter().enumerate() {
            if let Some(buffer) = self.runner.shared.get(&Slot::Rope(index)) {
                // Sequences of a batch differ in length: length-dependent RoPE uses its short form.
                self.gpu.write(
                    buffer,
                    0,
                    bytemuck::cast_slice(&spec.table(0, self.max_sequence_len, 1)),
                );
            }
        }
    }

    /// Loads an adapter: its weights, and the kernels of the step that uses it. Pass the result to
    /// [`Self::submit_with`]. With `merge`, and for DoRA, the adapter has copies of the matrices that it
    /// updates: no further dispatches, but more memory.
    ///
    /// # Errors
    /// `UnsupportedOption` for other kinds of adapters, for matrices that the model does not have,
    /// and for a model with act-order; errors of the source or the device.
    pub async fn load_adapter(&self, source: &Source, merge: bool) -> Result<OverlayId> {
        let base = AdapterBase {
            gpu: &self.gpu,
            config: &self.config,
            options: &self.options,
            runner: &self.runner,
            plain: &|| Ok(self.plain.clone()),
            // A layer over BERT's first token, which embeddings do not use.
            unused_module: Some("pooler"),
        };
        let LoadedAdapter {
            overlay, planned, ..
        } = base.load(source, merge).await?;
        let [tokens, sequences] = [self.max_batch_tokens, self.max_batch_sequences];
        let plan = plan_batch(&planned, self.gpu.caps(), tokens, sequences)?;
        self.runner.compile(&self.gpu, &plan.plan).await?;
        let key = ProgramKey::rows(tokens, true).with_overlay(Some(overlay));
        self.runner.add_programs(&self.gpu, vec![(key, plan)])?;
        let step = self.runner.step(&self.gpu, &Buffers::new(), key)?;
        self.gpu.check().await?;
        self.adapters.borrow_mut().insert(overlay, Rc::new(step));
        Ok(overlay)
    }

    /// Frees an adapter; batches that it was submitted with still complete.
    pub fn unload_adapter(&self, adapter: OverlayId) {
        if self.adapters.borrow_mut().remove(&adapter).is_some() {
            self.runner.remove_overlay(adapter);
        }
    }

    /// Submits sequences as one batch. Await the rows with [`PendingRows::wait`]; more batches can be
    /// submitted meanwhile.
    ///
    /// # Errors
    /// `SequenceTooLong` when a sequence or the batch is too long; `Request` for an empty batch, an
    /// empty sequence or an id outside the vocabulary.
    pub fn submit(&self, texts: &[&EncoderInput]) -> Result<PendingRows> {
        self.submit_with(texts, None)
    }

    /// Submits sequences as [`Self::submit`] does, with an adapter.
    ///
    /// # Errors
    /// As [`Self::submit`]; `Internal` for an adapter that is not loaded.
    pub fn submit_with(
        &self,
        texts: &[&EncoderInput],
        adapter: Option<OverlayId>,
    ) -> Result<PendingRows> {
        let own = match adapter {
            None => None,
            Some(id) => {
                let step = self.adapters.borrow().get(&id).cloned();
                Some(step.ok_or_else(|| Error::Internal(format!("{id:?} is not loaded")))?)
            }
        };
        let step = own.as_deref().unwrap_or(&self.step);
        let tokens = self.check_batch(texts)?;
        let mut batch = PackedBatch::default();
        for text in texts {
            batch.push(text, self.positions);
        }
        let write = |slot: Slot, words: &[u32]| -> Result<()> {
            let buffer = self
                .runner
                .shared
                .get(&slot)
                .ok_or_else(|| Error::Internal(format!("no buffer for {slot:?}")))?;
            self.gpu.write(buffer, 0, bytemuck::cast_slice(words));
            Ok(())
        };
        write(Slot::Ids, &batch.ids)?;
        write(Slot::Positions, &batch.positions)?;
        write(Slot::Types, &batch.types)?;
        write(Slot::SequenceSpans, &batch.segments)?;
        write(Slot::PoolSpans, &batch.spans)?;
        let counts = StepSizes {
            rows: tokens,
            sequences: texts.len(),
        };
        for dim in [Dim::TOKENS, Dim::Sequences] {
            write(Slot::Cursor(dim), &state_words(0, dim.eval(counts), 0, 0))?;
        }
        let grids = step.grids_for(counts);
        self.gpu.submit(&[step.with_grids(&grids)])?;
        let rows = self.output.eval(counts);
        let cols = self.cols();
        let read = self
            .gpu
            .start_read(&step.output, 0, rows_bytes(rows, cols))?;
        Ok(PendingRows { read, cols })
    }

    /// Times each dispatch of a batch of one sequence.
    pub async fn profile(&self, tokens: usize) -> Result<StepTimes> {
        let text = EncoderInput {
            ids: vec![0; tokens.min(self.max_sequence_len)],
            ..EncoderInput::default()
        };
        self.submit(&[&text])?.wait().await?;
        self.step
            .profile(&self.gpu, tokens.min(self.max_sequence_len))
            .await
    }

    /// Validates a batch and returns its number of tokens.
    fn check_batch(&self, texts: &[&EncoderInput]) -> Result<usize> {
        let refuse = |reason: String| {
            Err(Error::Request {
                parameter: "ids".into(),
                reason,
            })
        };
        if texts.is_empty() || texts.iter().any(|t| t.ids.is_empty()) {
            return refuse("no tokens. Pass at least one token for each sequence.".into());
        }
        if let Some(text) = texts.iter().find(|t| t.ids.len() > self.max_sequence_len) {
            return Err(Error::SequenceTooLong {
                what: "a sequence",
                tokens: text.ids.len(),
                limit: self.max_sequence_len,
                hint: "Shorten it, or split it into several sequences.",
            });
        }
        if self.vocab > 0
            && let Some(id) = texts
                .iter()
                .flat_map(|t| &t.ids)
                .find(|id| **id as usize >= self.vocab)
        {
            return refuse(format!(
                "id {id} is outside the vocabulary of {} tokens. Use the model's own tokenizer.",
                self.vocab
            ));
        }
        let tokens: usize = texts.iter().map(|t| t.ids.len()).sum();
        if texts.len() > self.max_batch_sequences {
            return refuse(format!(
                "the batch has {} sequences, but at most {} are supported. Split it into smaller batches.",
                texts.len(),
                self.max_batch_sequences
            ));
        }
        if tokens > self.max_batch_tokens {
            return Err(Error::SequenceTooLong {
                what: "the batch",
                tokens,
                limit: self.max_batch_tokens,
                hint: "Split it into smaller batches.",
            });
        }
        Ok(tokens)
    }
}

/// The packed words of a batch.
#[derive(Default)]
struct PackedBatch {
    ids: Vec<u32>,
    positions: Vec<u32>,
    types: Vec<u32>,
    segments: Vec<u32>,
    spans: Vec<u32>,
}

impl PackedBatch {
    fn push(&mut self, text: &EncoderInput, positions: PositionScheme) {
        let first = self.ids.len() as u32;
        let end = first + text.ids.len() as u32;
        let mut next = positions.first as u32;
        for (index, id) in text.ids.iter().enumerate() {
            let kind = text
                .types
                .get(index)
                .copied()
                .filter(|t| (*t as usize) < positions.token_types);
            self.ids.push(*id);
            self.types.push(kind.unwrap_or(0));
            self.segments.extend([first, end]);
            if positions.padding == Some(*id) {
                self.positions.push(*id);
            } else {
                self.positions.push(next);
                next += 1;
            }
        }
        // If the prompt covers the whole sequence, all tokens are pooled.
        let skip = if text.skip < text.ids.len() {
            text.skip as u32
        } else {
            0
        };
        self.spans.extend([first + skip, end]);
    }
}

/// Plans a step over packed sequences.
fn plan_batch(
    planned: &PlannedGraph,
    caps: &Caps,
    tokens: usize,
    sequences: usize,
) -> Result<StepPlan> {
    let rows = StepKind::Packed { tokens, sequences };
    planned.plan(caps, &planned.graph, rows, tokens)
}

/// Returns (maximum tokens of a batch, of a sequence), derived from the plan for 64 tokens.
fn batch_limits(plan: &crate::plan::Plan, longest: usize, max_buffer: u64) -> (usize, usize) {
    let per_token = plan.bytes().div_ceil(64).max(1);
    let largest = plan
        .activations
        .iter()
        .copied()
        .chain([plan.roped_queries, plan.output])
        .max()
        .unwrap_or(0);
    let fits = (max_buffer / largest.div_ceil(64).max(1)) as usize;
    let by_budget = ((MAX_ACTIVATION_BYTES / per_token) as usize).min(MAX_BATCH_TOKENS);
    let tokens = by_budget.max(longest).min(fits).max(1);
    (tokens, longest.min(tokens))
}

/// Creates the buffers that a batch is written to, and the RoPE tables.
fn own_buffers(
    gpu: &Gpu,
    graph: &Graph,
    (tokens, texts, longest): (usize, usize, usize),
    shared: &mut Buffers,
) -> Result<()> {
    let tokens = tokens as u64;
    let texts = texts as u64;

    let sizes = [
        (Slot::Ids, tokens * 4),
        (Slot::Positions, tokens * 4),
        (Slot::Types, tokens * 4),
        (Slot::SequenceSpans, tokens * 8),
        (Slot::PoolSpans, texts * 8),
        (Slot::CURSOR, STATE_BYTES),
        (Slot::Cursor(Dim::Sequences), STATE_BYTES),
    ];
    for (slot, size) in sizes {
        shared.insert(slot, gpu.buffer("batch", size, BufferUsage::Storage)?);
    }
    rope_buffers(gpu, graph, longest, shared, |_| true)
}
