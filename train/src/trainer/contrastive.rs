//! Trains weights of an encoder by a contrastive loss over the embeddings of a step: InfoNCE with
//! in-batch negatives (arXiv 1807.03748), as sentence-transformers' `MultipleNegativesRankingLoss`.
//! Each anchor must be more similar to its own candidate than to all others of the step.
//!
//! The loss needs all embeddings of the step at once. Steps that exceed a micro-batch run as
//! GradCache does (arXiv 2101.06983): a forward pass of each micro-batch, the loss with the gradients
//! of all embeddings, then the backward pass of each micro-batch after another forward pass. The last
//! micro-batch needs no second forward pass. All of it is one submit.

use super::{StepReport, Trainer};
use crate::batch::PackedRows;
use crate::kernel::TrainLaunch;
use crate::kernels::matmul::{WeightRows, linear, linear_input, linear_weight};
use crate::kernels::norm::NormShape;
use crate::kernels::{contiguous, fill, loss};
use crate::tape::{MatchBuffer, Tape, TrainBuffer};
use jerboa::arch::PositionScheme;
use jerboa::exec::EncoderInput;
use jerboa::format::{Float, WeightLayout};
use jerboa::gpu::{Backend, BufferUsage, Command, Program};
use jerboa::ir::{Embed, IdSource, Op, StepSizes, ValueId};
use jerboa::kernels::matmul::WeightPlanes;
use jerboa::kernels::view::View;
use jerboa::{Error, Result, SortedMap};

/// Layout of the scaled embeddings, which a matmul reads as a weight.
const SCALED: WeightLayout = WeightLayout::Dense(Float::F32);
/// Added to the mean square of an embedding, so that a zero has a direction.
const EPS: f32 = 1e-12;
/// Programs of micro-batches that are stored; more are recorded again.
const MAX_PROGRAMS: usize = 64;

/// The inputs of a step. Candidate `i` is the positive of anchor `i`; further candidates are
/// negatives of all anchors.
#[derive(Debug, Clone, Default)]
pub struct ContrastiveBatch<'a> {
    /// Anchors, such as queries.
    pub anchors: Vec<&'a EncoderInput>,
    /// At least as many candidates.
    pub candidates: Vec<&'a EncoderInput>,
}

impl ContrastiveBatch<'_> {
    /// Anchors and candidates.
    pub fn sequences(&self) -> usize {
        self.anchors.len() + self.candidates.len()
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> usize {
        let all = self.anchors.iter().chain(&self.candidates);
        all.map(|input| input.ids.len()).sum()
    }
}

/// How embeddings are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContrastiveOptions {
    /// Multiplies the cosine similarities: 1 / temperature.
    pub scale: f32,
    /// Position ids of the encoder's input.
    pub positions: PositionScheme,
    /// Maximum anchors of a step.
    pub max_anchors: usize,
    /// Maximum anchors and candidates of a step.
    pub max_sequences: usize,
}

impl ContrastiveOptions {
    /// Bytes of the buffers of the loss over embeddings of `cols` columns.
    pub fn bytes(&self, cols: usize) -> u64 {
        let sizes = self.buffers(cols);
        sizes.iter().map(|(_, words)| *words as u64 * 4).sum()
    }

    /// The buffers of the loss and their 32-bit words.
    fn buffers(&self, cols: usize) -> [(MatchBuffer, usize); 6] {
        let padded = SCALED.padded_cols(cols);
        let sequences = self.max_sequences;
        [
            (MatchBuffer::Embeddings, sequences * cols),
            (MatchBuffer::Gradients, sequences * cols),
            (MatchBuffer::Scaled, sequences * padded),
            (MatchBuffer::ScaledGradients, sequences * padded),
            (MatchBuffer::Stats, sequences * 2),
            (MatchBuffer::Scores, self.max_anchors * sequences),
        ]
    }
}

/// The packed rows of a micro-batch.
#[derive(Debug)]
struct EncoderRows {
    ids: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<[u32; 2]>,
    pool_spans: Vec<[u32; 2]>,
}

impl EncoderRows {
    /// Packs sequences one after another, then padding up to the rows of few programs.
    fn pack(inputs: &[&EncoderInput], scheme: PositionScheme) -> Self {
        let mut packed = Self {
            ids: Vec::new(),
            positions: Vec::new(),
            spans: Vec::new(),
            pool_spans: Vec::new(),
        };
        for input in inputs {
            let first = packed.ids.len() as u32;
            let end = first + input.ids.len() as u32;
            let mut next = scheme.first as u32;
            for id in &input.ids {
                packed.ids.push(*id);
                packed.spans.push([first, end]);
                if scheme.padding == Some(*id) {
                    packed.positions.push(*id);
                } else {
                    packed.positions.push(next);
                    next += 1;
                }
            }
            // As the engine: a prompt that is the whole sequence is pooled.
            let is_partial = input.skip < input.ids.len();
            let skip = if is_partial { input.skip as u32 } else { 0 };
            packed.pool_spans.push([first + skip, end]);
        }
        let rows = packed.ids.len();
        for row in rows..PackedRows::capacity(rows) {
            packed.ids.push(0);
            packed.positions.push(0);
            packed.spans.push([row as u32, row as u32 + 1]);
        }
        packed
    }

    fn sizes(&self) -> StepSizes {
        StepSizes {
            rows: self.ids.len(),
            sequences: self.pool_spans.len(),
        }
    }

    /// The words of its inputs, in the order of [`Self::inputs`].
    fn words(&self) -> impl Iterator<Item = u32> {
        let ids = self.ids.iter().chain(&self.positions);
        let spans = self.spans.as_flattened().iter();
        let all = ids.chain(spans).chain(self.pool_spans.as_flattened());
        all.copied()
    }

    /// The buffers of its inputs and their bytes.
    fn inputs(&self) -> [(TrainBuffer, u64); 4] {
        let StepSizes { rows, sequences } = self.sizes();
        let [rows, sequences] = [rows, sequences].map(|count| count as u64 * 4);
        [
            (TrainBuffer::Ids, rows),
            (TrainBuffer::Positions, rows),
            (TrainBuffer::Spans, 2 * rows),
            (TrainBuffer::PoolSpans, 2 * sequences),
        ]
    }

    fn bytes(&self) -> u64 {
        self.inputs().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepEnd {
    /// Embeddings and loss.
    Loss,
    /// The gradients of all weights too.
    Gradients,
    /// The updated weights too.
    Update,
}

/// The contrastive training of an encoder's weights with a [`Trainer`].
pub struct Contrastive {
    options: ContrastiveOptions,
    /// Forward and backward pass by tokens and sequences of a micro-batch.
    passes: SortedMap<(usize, usize), [Program; 2]>,
    /// The loss by anchors, candidates, and whether gradients follow.
    losses: SortedMap<(usize, usize, bool), Program>,
    output: ValueId,
    cols: usize,
    vocab: usize,
}

impl Contrastive {
    /// Adds the buffers of the loss to a trainer of an encoder's graph, whose output is one row per
    /// sequence.
    ///
    /// # Errors
    /// `Internal` for a graph without token embeddings; device errors.
    pub fn new(trainer: &mut Trainer, options: ContrastiveOptions) -> Result<Self> {
        let graph = &trainer.graph;
        let (output, _) = graph.root(graph.hidden);
        let cols = graph.value(output).cols;
        let table = graph.nodes.iter().find_map(|node| match node.op {
            Op::Embed(Embed {
                table,
                ids: IdSource::Tokens,
                ..
            }) => Some(table),
            _ => None,
        });
        let table = table
            .ok_or_else(|| Error::Internal(format!("{} embeds no tokens", trainer.graph.name)))?;
        let vocab = trainer.graph.weight(table).rows();
        let rows = PackedRows::capacity(trainer.options.max_tokens);
        let matched = options.buffers(cols);
        let matched = matched.map(|(buffer, words)| (TrainBuffer::Match(buffer), words));
        let own = [
            (TrainBuffer::Types, rows),
            (TrainBuffer::PoolSpans, 2 * rows),
            (TrainBuffer::OutputGradient, cols * rows),
            (TrainBuffer::Labels, options.max_anchors),
            (TrainBuffer::RowLosses, options.max_anchors),
        ];
        for (key, words) in matched.into_iter().chain(own) {
            let bytes = words.max(1) as u64 * 4;
            let buffer = trainer
                .gpu
                .buffer("embeddings", bytes, BufferUsage::Storage)?;
            trainer.buffers.insert(key, buffer);
        }
        let words = |words: &[u32]| bytemuck::cast_slice(words).to_vec();
        // Text has the first token type, and candidate i is the label of anchor i.
        let labels: Vec<u32> = (0..options.max_anchors as u32).collect();
        for (key, bytes) in [
            (TrainBuffer::Types, words(&vec![0; rows])),
            (TrainBuffer::Labels, words(&labels)),
        ] {
            trainer.gpu.write(&trainer.buffers[&key], 0, &bytes);
        }
        for (index, spec) in trainer.graph.ropes.iter().enumerate() {
            // As the engine: sequences differ in length, so length-dependent RoPE uses its short form.
            let table = spec.table(0, rows, 1);
            let buffer = &trainer.buffers[&TrainBuffer::Rope(index)];
            trainer.gpu.write(buffer, 0, bytemuck::cast_slice(&table));
        }
        Ok(Self {
            options,
            passes: SortedMap::new(),
            losses: SortedMap::new(),
            output,
            cols,
            vocab,
        })
    }

    /// Trains one step.
    ///
    /// # Errors
    /// `Request` for a batch that is too large, an empty sequence, an id outside the vocabulary, or a
    /// loss that is not finite; device errors.
    pub async fn step(
        &mut self,
        trainer: &mut Trainer,
        batch: &ContrastiveBatch<'_>,
        rate: f32,
    ) -> Result<StepReport> {
        let count = batch.anchors.len();
        self.check(trainer, batch)?;
        trainer.begin_step(count, rate);
        let [loss, norm] = self.run(trainer, batch, StepEnd::Update).await?;
        trainer.report(loss / count as f32, norm, rate)
    }

    /// Computes the gradients of a step without an update, for [`Trainer::gradient`]. Returns the mean
    /// loss.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn compute_gradients(
        &mut self,
        trainer: &mut Trainer,
        batch: &ContrastiveBatch<'_>,
    ) -> Result<f32> {
        let count = batch.anchors.len();
        self.check(trainer, batch)?;
        trainer.write_hyper(count, 0.0);
        let [loss, ..] = self.run(trainer, batch, StepEnd::Gradients).await?;
        Ok(loss / count as f32)
    }

    /// Computes the mean loss of the anchors.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn evaluate(
        &mut self,
        trainer: &mut Trainer,
        batch: &ContrastiveBatch<'_>,
    ) -> Result<f32> {
        self.check(trainer, batch)?;
        let [loss, ..] = self.run(trainer, batch, StepEnd::Loss).await?;
        Ok(loss / batch.anchors.len() as f32)
    }

    /// Computes the embeddings of a batch, anchors first, `[sequences, cols]`. They are not
    /// normalized.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn embeddings(
        &mut self,
        trainer: &mut Trainer,
        batch: &ContrastiveBatch<'_>,
    ) -> Result<Vec<f32>> {
        self.evaluate(trainer, batch).await?;
        let buffer = &trainer.buffers[&TrainBuffer::Match(MatchBuffer::Embeddings)];
        let bytes = (batch.sequences() * self.cols * 4) as u64;
        let bytes = trainer.gpu.read(buffer, 0, bytes).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn check(&self, trainer: &Trainer, batch: &ContrastiveBatch<'_>) -> Result<()> {
        let refuse = |reason: String| {
            Err(Error::Request {
                parameter: "batch".into(),
                reason,
            })
        };
        let [anchors, candidates] = [batch.anchors.len(), batch.candidates.len()];
        if anchors == 0 || candidates < anchors {
            return refuse(format!(
                "it has {anchors} anchors and {candidates} candidates. Give each anchor its positive."
            ));
        }
        let ContrastiveOptions {
            max_anchors,
            max_sequences,
            ..
        } = self.options;
        if anchors > max_anchors || batch.sequences() > max_sequences {
            return refuse(format!(
                "it has {anchors} anchors of {} sequences, but the trainer supports at most {max_anchors} of {max_sequences}. \
                 Use a smaller batch.",
                batch.sequences()
            ));
        }
        for input in batch.anchors.iter().chain(&batch.candidates) {
            let limit = trainer
                .options
                .max_tokens
                .min(self.options.positions.max_tokens);
            let tokens = input.ids.len();
            if !(1..=limit).contains(&tokens) {
                return refuse(format!(
                    "a sequence has {tokens} tokens, but the trainer supports 1 to {limit}. Use a smaller 'maxLength'."
                ));
            }
            if let Some(id) = input.ids.iter().find(|id| **id as usize >= self.vocab) {
                return refuse(format!(
                    "token {id} is outside the vocabulary of {} tokens. Use the tokenizer of this model.",
                    self.vocab
                ));
            }
        }
        Ok(())
    }

    /// Splits sequences into micro-batches, in order.
    fn pack(&self, trainer: &Trainer, batch: &ContrastiveBatch<'_>) -> Vec<EncoderRows> {
        let all = batch.anchors.iter().chain(&batch.candidates);
        let all: Vec<&EncoderInput> = all.copied().collect();
        let micro_batches = trainer.split_by(&all, |input| input.ids.len());
        let pack = |inputs: &[&EncoderInput]| EncoderRows::pack(inputs, self.options.positions);
        micro_batches.into_iter().map(pack).collect()
    }

    /// Runs a step; returns the sum of the losses and the norm of the gradients.
    async fn run(
        &mut self,
        trainer: &mut Trainer,
        batch: &ContrastiveBatch<'_>,
        end: StepEnd,
    ) -> Result<[f32; 2]> {
        let micro_batches = self.pack(trainer, batch);
        if self.passes.len() + micro_batches.len() > MAX_PROGRAMS {
            self.passes = SortedMap::new();
        }
        for micro_batch in &micro_batches {
            self.prepare_pass(trainer, micro_batch.sizes()).await?;
        }
        let key = (
            batch.anchors.len(),
            batch.candidates.len(),
            end != StepEnd::Loss,
        );
        self.prepare_loss(trainer, key).await?;
        let words: Vec<u32> = micro_batches.iter().flat_map(EncoderRows::words).collect();
        let bytes = words.len() as u64 * 4;
        if bytes > trainer.inbox.size() {
            trainer.inbox = trainer.gpu.buffer("inputs", bytes, BufferUsage::Storage)?;
        }
        trainer
            .gpu
            .write(&trainer.inbox, 0, bytemuck::cast_slice(&words));

        let trainer = &*trainer;
        let mut work = vec![run_of(&trainer.clear)];
        let matched = |buffer| &trainer.buffers[&TrainBuffer::Match(buffer)];
        let embedding = self.cols as u64 * 4;
        let output = trainer.buffer(TrainBuffer::Value(self.output));
        // The first byte of each micro-batch's inputs and of its embeddings.
        let mut starts = Vec::with_capacity(micro_batches.len());
        let mut start = [0, 0];
        for micro_batch in &micro_batches {
            starts.push(start);
            start[0] += micro_batch.bytes();
            start[1] += micro_batch.sizes().sequences as u64 * embedding;
        }
        for (micro_batch, [inputs, embeddings]) in micro_batches.iter().zip(&starts) {
            let size = micro_batch.sizes();
            work.extend(input_copies(trainer, micro_batch, *inputs));
            work.push(run_of(&self.passes[&(size.rows, size.sequences)][0]));
            work.push(Command::Copy {
                from: (&output, 0),
                to: (matched(MatchBuffer::Embeddings), *embeddings),
                size: size.sequences as u64 * embedding,
            });
        }
        work.push(run_of(&self.losses[&key]));
        if end != StepEnd::Loss {
            let all = micro_batches.iter().zip(&starts).enumerate();
            for (index, (micro_batch, [inputs, embeddings])) in all.rev() {
                let size = micro_batch.sizes();
                let [forward, backward] = &self.passes[&(size.rows, size.sequences)];
                // The last one's values are still there.
                if index + 1 < micro_batches.len() {
                    work.extend(input_copies(trainer, micro_batch, *inputs));
                    work.push(run_of(forward));
                }
                work.push(Command::Copy {
                    from: (matched(MatchBuffer::Gradients), *embeddings),
                    to: (&trainer.buffers[&TrainBuffer::OutputGradient], 0),
                    size: size.sequences as u64 * embedding,
                });
                work.push(run_of(backward));
            }
        }
        if end == StepEnd::Update {
            work.push(run_of(&trainer.update));
        }
        let [loss, gradient_norm, ..] = trainer.submit(work).await?;
        Ok([loss, gradient_norm])
    }

    /// Compiles and records the passes of a micro-batch.
    async fn prepare_pass(&mut self, trainer: &mut Trainer, size: StepSizes) -> Result<()> {
        let key = (size.rows, size.sequences);
        if self.passes.contains_key(&key) {
            return Ok(());
        }
        let (tape, forward) =
            Tape::record_encoder(&trainer.graph, &trainer.plans, &trainer.trained, size)?;
        let mut launches = tape.launches;
        let backward = launches.split_off(forward);
        let passes = [
            trainer.record("encoder", launches).await?,
            trainer.record("encoder gradients", backward).await?,
        ];
        self.passes.insert(key, passes);
        Ok(())
    }

    async fn prepare_loss(
        &mut self,
        trainer: &mut Trainer,
        key: (usize, usize, bool),
    ) -> Result<()> {
        if !self.losses.contains_key(&key) {
            let launches = self.loss_launches(key);
            let program = trainer.record("contrastive loss", launches).await?;
            self.losses.insert(key, program);
        }
        Ok(())
    }

    /// The loss of all embeddings: cross-entropy of the similarities, with the positives as labels.
    fn loss_launches(
        &self,
        (anchors, candidates, has_gradients): (usize, usize, bool),
    ) -> Vec<TrainLaunch<TrainBuffer>> {
        use TrainBuffer::{Hyper, Labels, Loss, RowLosses};
        let cols = self.cols;
        let padded = SCALED.padded_cols(cols);
        let sequences = anchors + candidates;
        let of = TrainBuffer::Match;
        let view = |buffer, first: usize| View {
            buffer: of(buffer),
            offset: (first * padded) as u32,
            stride: padded as u32,
        };
        // An RMSNorm scales an embedding to the length √cols: alpha takes both lengths back.
        let scaled = NormShape {
            rows: sequences,
            groups: 1,
            cols,
            layer: false,
            gain: None,
            bias: None,
            offset: 0.0,
            eps: EPS,
            stats: of(MatchBuffer::Stats),
        };
        let alpha = self.options.scale / cols as f32;
        let embeddings = contiguous(of(MatchBuffer::Embeddings), cols);
        let scores = contiguous(of(MatchBuffer::Scores), candidates);
        let rows = WeightRows {
            planes: WeightPlanes {
                layout: SCALED,
                rows: sequences as u32,
                cols: cols as u32,
                q: of(MatchBuffer::Scaled),
                s: None,
            },
            first: anchors,
            count: candidates,
        };
        let own = view(MatchBuffer::Scaled, 0);
        let hyper = has_gradients.then_some(Hyper);
        let size = [anchors, candidates];
        let mut launches = vec![
            scaled.forward(&embeddings, &own),
            linear(&rows, anchors, alpha, &own, None, &scores),
            loss::cross_entropy(size, &scores, Labels, RowLosses, hyper),
            loss::add_losses(anchors, RowLosses, Loss),
        ];
        if !has_gradients {
            return launches;
        }
        let [of_anchors, of_candidates] =
            [0, anchors].map(|first| view(MatchBuffer::ScaledGradients, first));
        let gradient = contiguous(of(MatchBuffer::Gradients), cols);
        launches.extend([
            fill(sequences * padded, of(MatchBuffer::ScaledGradients)),
            linear_input(&rows, anchors, alpha, &scores, &of_anchors, false),
            linear_weight(
                [anchors, candidates, cols],
                alpha,
                &scores,
                &own,
                &of_candidates,
            ),
            scaled.input(&embeddings, &of_anchors, &gradient, false),
        ]);
        launches
    }
}

fn run_of(program: &Program) -> Command<'_> {
    Command::Run {
        program,
        grids: None,
    }
}

/// Copies the inputs of a micro-batch from the inbox.
fn input_copies<'a>(
    trainer: &'a Trainer,
    rows: &EncoderRows,
    mut at: u64,
) -> impl Iterator<Item = Command<'a>> + use<'a> {
    rows.inputs().into_iter().map(move |(buffer, size)| {
        let start = at;
        at += size;
        Command::Copy {
            from: (&trainer.inbox, start),
            to: (&trainer.buffers[&buffer], 0),
            size,
        }
    })
}
