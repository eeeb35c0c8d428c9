//! Encoder models: packs sequences into one batch and reads back one embedding (or one row a token) for each.

use super::decide::{Layouts, fused};
use super::files::Files;
use super::load::{Compiled, Wanted, load_compiled};
use super::load_times::{Lap, LoadTimes};
use super::model::Bytes;
use super::options::{Precision, RunOptions};
use super::step::{Buffers, Prepared, STATE_BYTES, Step, StepTimes, finite, rope_buffers, rows_bytes, state, unpadded};
use crate::arch::{self, Head, Positions};
use crate::format::{Float, Layout};
use crate::gpu::{Backend, Buffer, Gpu, Readback, Usage};
use crate::hub::Source;
use crate::ir::{Counts, Dim, Graph};
use crate::kernels::attention::Kv;
use crate::plan::{PlanOptions, RowsMode, Slot, WeightPlans, lower};
use crate::{Error, Result};
use serde_json::Value;
use std::rc::Rc;

/// Maximum bytes of activations, unless one sequence alone needs more.
const BUDGET: u64 = 256 << 20;
/// Maximum tokens of a batch, unless one sequence has more; larger batches do not run faster.
const MOST_TOKENS: usize = 8192;
/// Maximum sequences of a batch.
const MOST_TEXTS: usize = 1024;
/// Default maximum sequence length. Longer ones cost memory that few inputs need.
const LONGEST: usize = 2048;

/// A tokenized input sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token type ids; empty for all zeros.
    pub types: Vec<u32>,
    /// Number of leading tokens that pooling skips.
    pub skip: usize,
}

/// Pending readback of output rows.
pub struct Outputs {
    read: Readback,
    cols: usize,
}

impl Outputs {
    /// Waits for the rows and returns them concatenated.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn wait(self) -> Result<Vec<f32>> {
        let rows = unpadded(&self.read.wait().await?, self.cols);
        finite(&rows)?;
        Ok(rows)
    }
}

/// A loaded encoder model.
pub struct Encoder {
    /// The device.
    pub gpu: Rc<Gpu>,
    /// config.json.
    pub config: Value,
    /// The fused graph.
    pub graph: Graph,
    /// How the weights are stored.
    pub weights: WeightPlans,
    /// Storage precision of the weights that the checkpoint does not quantize.
    pub precision: Precision,
    /// Bytes on the device.
    pub bytes: Bytes,
    /// Time spent in each phase of the load.
    pub load: LoadTimes,
    /// Maximum tokens of a sequence.
    pub longest: usize,
    /// Maximum tokens of a batch.
    pub most_tokens: usize,
    /// Maximum sequences of a batch.
    pub most_texts: usize,
    positions: Positions,
    step: Step,
    shared: Buffers,
    vocab: usize,
    output: Dim,
}

impl Encoder {
    /// Loads an encoder from opened files. `longest` is the sequence limit given by the model's own files;
    /// `options.max_context` overrides it.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        files: Files,
        head: &Head,
        longest: Option<usize>,
        options: RunOptions,
    ) -> Result<Self> {
        let mut whole = Lap::start();
        let config = files.full_config();
        let Files { checkpoint, weights: stored, .. } = files;
        let kept = options.overrides;
        let arch::Encoder { mut graph, positions } = arch::encoder(&config, head)?;
        arch::match_names(&mut graph, stored.iter().map(|w| w.name.as_str()));
        let layouts = Layouts::new(&graph, kept);
        let layout_of =
            |name: &str| stored.get(name, "").map_or(Layout::Dense(Float::F32), |w| layouts.of(w, graph.kind_of(name)));
        let order_of = |name: &str| stored.get(name, "").ok().and_then(|w| w.order.clone());
        let limit = gpu.caps().max_weight_buffer().min(options.max_weight_buffer.unwrap_or(u64::MAX));
        let (graph, weights, _) = fused(&graph, options.fusions, &layout_of, &order_of, limit)?;
        let plan = |tokens: usize, texts: usize| {
            let (caps, rows) = (gpu.caps(), RowsMode::Packed { tokens, sequences: texts });
            lower(
                &graph,
                PlanOptions {
                    rows,
                    caps,
                    weights: &weights,
                    kv: Kv::F32,
                    capacity: tokens,
                    states: &[],
                    fuse_heads: false,
                },
            )
        };
        let usual = LONGEST.min(arch::most_positions(&config));
        let longest = options.max_context.or(longest).unwrap_or(usual).clamp(1, positions.most);
        let (most_tokens, longest) = sizes(&plan(64, 1)?, longest, gpu.caps().max_weight_buffer());
        let most_texts = MOST_TEXTS.min(most_tokens);
        let wanted =
            Wanted { gpu: &gpu, graph: &graph, plans: &weights, source, checkpoint: &checkpoint, stored: &stored };
        // No matmul has a single row, so there is nothing to tune.
        let (tune, plan) = (Box::pin(async { Ok(()) }), || Ok(vec![plan(most_tokens, most_texts)?]));
        let Compiled { mut plans, pipelines, buffers: mut shared, times: mut load } =
            load_compiled(wanted, tune, &plan, Box::pin(async { Ok(()) })).await?;
        let weight_bytes = shared.values().map(Buffer::size).sum();
        let before = gpu.created().bytes;
        own_buffers(&gpu, &graph, most_tokens, most_texts, longest, &mut shared)?;
        let plan = plans.pop().ok_or_else(|| Error::Internal("the encoder has no plan".into()))?;
        let prepared = Prepared::new(&gpu, "encode", plan, true)?;
        let step = Step::new(&gpu, "encode", &prepared, &[&shared], &pipelines, 1)?;
        gpu.check().await?;
        let bytes = Bytes { weights: weight_bytes, kv: 0, activations: gpu.created().bytes - before };
        load.peak_bytes = load.peak_bytes.max(gpu.created().bytes);
        let vocab = config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0) as usize;
        let output = graph.value(graph.hidden).rows;
        let mut encoder = Self {
            gpu: Rc::new(gpu),
            config,
            graph,
            weights,
            precision: kept.precision,
            bytes,
            load,
            longest,
            most_tokens,
            most_texts,
            positions,
            step,
            shared,
            vocab,
            output,
        };
        encoder.write_ropes();
        encoder.load.total_ms = whole.lap();
        Ok(encoder)
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
        self.weights.values().map(|w| (w.rows * w.cols) as u64).sum()
    }

    /// Dispatches of a batch.
    pub fn dispatches(&self) -> usize {
        self.step.dispatches()
    }

    fn write_ropes(&self) {
        for (index, spec) in self.graph.ropes.iter().enumerate() {
            if let Some(buffer) = self.shared.get(&Slot::Rope(index)) {
                // Sequences of a batch differ in length: length-dependent RoPE uses its short form.
                self.gpu.write(buffer, 0, bytemuck::cast_slice(&spec.table(0, self.longest, 1)));
            }
        }
    }

    /// Submits sequences as one batch. Await the rows with [`Outputs::wait`]; more batches can be submitted meanwhile.
    ///
    /// # Errors
    /// `ContextFull` when a sequence or the batch is too long; `Request` for an empty batch, an empty sequence or an id
    /// outside the vocabulary.
    pub fn submit(&self, texts: &[&Tokens]) -> Result<Outputs> {
        let tokens = self.check(texts)?;
        let mut batch = Batch::default();
        for text in texts {
            batch.push(text, self.positions);
        }
        let write = |slot: Slot, words: &[u32]| -> Result<()> {
            let buffer = self.shared.get(&slot).ok_or_else(|| Error::Internal(format!("no buffer for {slot:?}")))?;
            self.gpu.write(buffer, 0, bytemuck::cast_slice(words));
            Ok(())
        };
        write(Slot::Ids, &batch.ids)?;
        write(Slot::Positions, &batch.positions)?;
        write(Slot::Types, &batch.types)?;
        write(Slot::Segments, &batch.segments)?;
        write(Slot::Spans, &batch.spans)?;
        let counts = Counts { rows: tokens, sequences: texts.len() };
        for dim in [Dim::TOKENS, Dim::Sequences] {
            write(Slot::Cursor(dim), &state(0, dim.of(counts), 0, 0))?;
        }
        let grids = self.step.grids_for(counts);
        self.gpu.submit(&[self.step.with_grids(&grids)])?;
        let rows = self.output.of(counts);
        let cols = self.cols();
        let read = self.gpu.read_later(&self.step.output, 0, rows_bytes(rows, cols))?;
        Ok(Outputs { read, cols })
    }

    /// Times each dispatch of a batch of one sequence.
    pub async fn profile(&self, tokens: usize) -> Result<StepTimes> {
        let text = Tokens { ids: vec![0; tokens.min(self.longest)], ..Tokens::default() };
        self.submit(&[&text])?.wait().await?;
        self.step.profile(&self.gpu, tokens.min(self.longest)).await
    }

    /// Validates a batch and returns its number of tokens.
    fn check(&self, texts: &[&Tokens]) -> Result<usize> {
        let refuse = |reason: String| Err(Error::Request { parameter: "ids".into(), reason });
        if texts.is_empty() || texts.iter().any(|t| t.ids.is_empty()) {
            return refuse("no tokens. Pass at least one token for each sequence.".into());
        }
        if let Some(text) = texts.iter().find(|t| t.ids.len() > self.longest) {
            return Err(Error::ContextFull { tokens: text.ids.len(), limit: self.longest });
        }
        if self.vocab > 0
            && let Some(id) = texts.iter().flat_map(|t| &t.ids).find(|id| **id as usize >= self.vocab)
        {
            return refuse(format!(
                "id {id} is outside the vocabulary of {} tokens. Use the model's own tokenizer.",
                self.vocab
            ));
        }
        let tokens: usize = texts.iter().map(|t| t.ids.len()).sum();
        if tokens > self.most_tokens || texts.len() > self.most_texts {
            return Err(Error::ContextFull { tokens, limit: self.most_tokens });
        }
        Ok(tokens)
    }
}

/// The packed words of a batch.
#[derive(Default)]
struct Batch {
    ids: Vec<u32>,
    positions: Vec<u32>,
    types: Vec<u32>,
    segments: Vec<u32>,
    spans: Vec<u32>,
}

impl Batch {
    fn push(&mut self, text: &Tokens, positions: Positions) {
        let first = self.ids.len() as u32;
        let end = first + text.ids.len() as u32;
        let mut next = positions.first as u32;
        for (index, id) in text.ids.iter().enumerate() {
            let kind = text.types.get(index).copied().filter(|t| (*t as usize) < positions.types);
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
        let skip = if text.skip < text.ids.len() { text.skip as u32 } else { 0 };
        self.spans.extend([first + skip, end]);
    }
}

/// Returns (maximum tokens of a batch, of a sequence), derived from the plan for 64 tokens.
fn sizes(plan: &crate::plan::Plan, longest: usize, max_buffer: u64) -> (usize, usize) {
    let per_token = plan.bytes().div_ceil(64).max(1);
    let largest = plan.activations.iter().copied().chain([plan.rotated, plan.output]).max().unwrap_or(0);
    let fits = (max_buffer / largest.div_ceil(64).max(1)) as usize;
    let by_budget = ((BUDGET / per_token) as usize).min(MOST_TOKENS);
    let tokens = by_budget.max(longest).min(fits).max(1);
    (tokens, longest.min(tokens))
}

/// Creates the buffers that a batch is written to, and the RoPE tables.
fn own_buffers(
    gpu: &Gpu,
    graph: &Graph,
    tokens: usize,
    texts: usize,
    longest: usize,
    shared: &mut Buffers,
) -> Result<()> {
    let (tokens, texts) = (tokens as u64, texts as u64);
    let sizes = [
        (Slot::Ids, tokens * 4),
        (Slot::Positions, tokens * 4),
        (Slot::Types, tokens * 4),
        (Slot::Segments, tokens * 8),
        (Slot::Spans, texts * 8),
        (Slot::CURSOR, STATE_BYTES),
        (Slot::Cursor(Dim::Sequences), STATE_BYTES),
    ];
    for (slot, size) in sizes {
        shared.insert(slot, gpu.buffer("batch", size, Usage::Storage)?);
    }
    rope_buffers(gpu, graph, longest, shared, |_| true)
}
