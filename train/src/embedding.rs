//! Trains LoRA adapters of embedding models by a contrastive loss over pairs of texts.

use crate::adapter::FEATURE_EXTRACTION;
use crate::checkpointing::Checkpointing;
use crate::dataset::split_evaluation;
use crate::embedding_data::{EmbeddingExample, EmbeddingPair, embedding_pairs};
use crate::lora::{LoraGraph, LoraOptions, LoraTrainer, TrainProgress};
use crate::schedule::{EpochSteps, even_parts};
use crate::trainer::contrastive::{Contrastive, ContrastiveBatch, ContrastiveOptions};
use crate::trainer::{StepReport, TrainMemory};
use jerboa::gpu::Gpu;
use jerboa::hub::Source;
use jerboa::ir::Graph;
use jerboa::task::{EmbedderFiles, Task, task_of};
use jerboa::{Error, Result, arch};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Default factor of the cosine similarities, as in sentence-transformers.
pub const DEFAULT_SCALE: f32 = 20.0;

/// A dataset of pairs.
#[derive(Debug, Clone, Default)]
pub struct EmbeddingData {
    /// Pairs to train on, and to hold out of.
    pub pairs: Vec<EmbeddingExample>,
    /// Pairs that only measure the loss; empty for a share of `pairs`.
    pub evaluation: Vec<EmbeddingExample>,
    /// That share.
    pub share: f32,
}

/// A training whose model is loaded.
pub struct EmbeddingSetup {
    /// The trainer.
    pub trainer: EmbeddingTrainer,
    /// Pairs to train on.
    pub pairs: Vec<EmbeddingPair>,
    /// Pairs that only measure the loss.
    pub evaluation: Vec<EmbeddingPair>,
    /// Tokens of the longest sequence.
    pub max_length: usize,
}

impl EmbeddingSetup {
    /// Opens a model, tokenizes the data, and loads the model on the device that `open_gpu` opens.
    /// With `is_forced`, a model whose files imply another task is used too.
    ///
    /// # Errors
    /// `Request` for a model that does not embed, or that embeds images too, and for
    /// `Checkpointing::Always`; errors of the tokenizer; as [`EmbeddingTrainer::load`].
    pub async fn open(
        source: &Source,
        base: &str,
        data: &EmbeddingData,
        (options, scale): (LoraOptions, f32),
        is_forced: bool,
        open_gpu: impl AsyncFnOnce() -> Result<Gpu>,
    ) -> Result<Self> {
        options.check()?;
        if options.checkpointing == Checkpointing::Always {
            return Err(Error::Request {
                parameter: "checkpointing".into(),
                reason: "it does not apply to embedding models. Leave it out, or use a smaller 'maxLength' to save memory.".into(),
            });
        }
        let embedder = EmbedderFiles::open(source, base, is_forced).await?;
        if arch::joint_embedding(&embedder.files.config).is_some() {
            return Err(Error::UnsupportedOption {
                architecture: embedder.files.config.class().into(),
                option: "training one encoder of a model that embeds texts and images".into(),
                hint: "Use an embedding model of texts.".into(),
            });
        }
        let limit = embedder.max_length.unwrap_or(usize::MAX);
        let limit = limit.min(embedder.positions.max_tokens);
        let tokenizer = embedder.text.tokenizer()?;
        let tokenize = |pairs: &[EmbeddingExample]| {
            let most = options.max_length.min(limit);
            embedding_pairs(&embedder.config, tokenizer, pairs, most)
        };
        let all = tokenize(&data.pairs)?;
        let separate = tokenize(&data.evaluation)?;
        let (pairs, evaluation) = match separate.is_empty() {
            true => split_evaluation(all, data.share),
            false => (all, separate),
        };
        let sequences = || {
            pairs
                .iter()
                .chain(&evaluation)
                .flat_map(EmbeddingPair::sequences)
        };
        let longest = sequences().map(|input| input.ids.len()).max();
        let options = LoraOptions {
            max_length: longest.unwrap_or(0).max(2),
            ..options
        };
        let all = pairs.iter().chain(&evaluation);
        let most = max_sequences(all, options.batch_size);
        let max_length = options.max_length;
        let gpu = Rc::new(open_gpu().await?);
        let trainer = EmbeddingTrainer::load(gpu, source, embedder, base, options, (scale, most));
        Ok(Self {
            trainer: trainer.await?,
            pairs,
            evaluation,
            max_length,
        })
    }
}

/// An embedding model with the adapter that it learns.
pub struct EmbeddingTrainer {
    lora: LoraTrainer,
    contrastive: Contrastive,
    options: LoraOptions,
}

impl EmbeddingTrainer {
    /// Loads the weights of a model and adds an adapter that does not change it yet. A step has at
    /// most `max_sequences` texts of `options.batch_size` pairs; `scale` multiplies the cosine
    /// similarities. `base` names the model in the adapter's settings.
    ///
    /// # Errors
    /// As [`LoraTrainer::load`]; `Request` for a scale that is not above 0.
    pub async fn load(
        gpu: Rc<Gpu>,
        source: &Source,
        mut embedder: EmbedderFiles,
        base: &str,
        mut options: LoraOptions,
        (scale, max_sequences): (f32, usize),
    ) -> Result<Self> {
        if !scale.is_finite() || scale <= 0.0 {
            return Err(Error::Request {
                parameter: "scale".into(),
                reason: "it must be above 0".into(),
            });
        }
        // GradCache already runs a micro-batch forward again before its backward pass.
        options.checkpointing = Checkpointing::Unsupported;
        let head = embedder.config.head();
        // The adapter names modules as the family does, whatever the checkpoint puts before them.
        let modules = arch::encoder_graph(&embedder.files.config, &head)?.graph;
        let encoder = embedder.files.take_encoder_graph(&head)?;
        let plain = encoder.graph;
        let parts = |graph: &Graph| -> Vec<String> {
            let parts = graph.weights.iter().flat_map(|weight| &weight.parts);
            parts.map(|(name, _)| name.clone()).collect()
        };
        // Dense layers after pooling are modules of sentence-transformers, which peft does not wrap.
        let is_own = |name: &String| {
            let mut dense = embedder.config.dense.iter();
            !dense.any(|layer| name.starts_with(&format!("{}/", layer.path)))
        };
        let names = parts(&plain).into_iter().zip(parts(&modules));
        let names = names.filter(|(_, module)| is_own(module));
        // `AutoModel` has the layers of a decoder without its outer module.
        let names = names.map(|(name, module)| match module.strip_prefix("model.") {
            Some(inner) => [name, inner.to_owned()],
            None => [name, module],
        });
        let contrastive = ContrastiveOptions {
            scale,
            positions: encoder.positions,
            max_anchors: options.batch_size,
            max_sequences,
        };
        let cols = plain.value(plain.root(plain.hidden).0).cols;
        let graph = LoraGraph {
            names: names.collect(),
            plain,
            items: max_sequences,
            loss_bytes: contrastive.bytes(cols),
            task_type: FEATURE_EXTRACTION,
        };
        let files = &embedder.files;
        let mut lora =
            LoraTrainer::load_graph(gpu, source, files, base, options.clone(), graph).await?;
        Ok(Self {
            contrastive: Contrastive::new(lora.trainer(), contrastive)?,
            lora,
            options,
        })
    }

    /// Device memory by use.
    pub fn memory(&self) -> TrainMemory {
        self.lora.memory()
    }

    /// The adapter's weights, to read and to replace.
    pub fn lora(&self) -> &LoraTrainer {
        &self.lora
    }

    /// Trains one step on pairs.
    ///
    /// # Errors
    /// As [`Contrastive::step`].
    pub async fn step(&mut self, pairs: &[&EmbeddingPair], rate: f32) -> Result<StepReport> {
        let batch = batch_of(pairs);
        self.contrastive
            .step(self.lora.trainer(), &batch, rate)
            .await
    }

    /// Computes the mean loss of pairs, in batches of the size of a step: the negatives of a query are
    /// those of its batch.
    ///
    /// # Errors
    /// As [`Contrastive::evaluate`].
    pub async fn evaluate(&mut self, pairs: &[EmbeddingPair]) -> Result<f32> {
        let mut sum = 0.0;
        for part in even_parts(pairs.len(), self.options.batch_size) {
            let own: Vec<&EmbeddingPair> = pairs[part].iter().collect();
            let batch = batch_of(&own);
            let loss = self.contrastive.evaluate(self.lora.trainer(), &batch);
            sum += f64::from(loss.await?) * own.len() as f64;
        }
        Ok((sum / pairs.len().max(1) as f64) as f32)
    }

    /// Computes the embeddings of the queries of pairs, then those of their positives and negatives,
    /// one after another. They are not normalized.
    ///
    /// # Errors
    /// As [`Contrastive::evaluate`].
    pub async fn embeddings(&mut self, pairs: &[&EmbeddingPair]) -> Result<Vec<f32>> {
        let batch = batch_of(pairs);
        self.contrastive
            .embeddings(self.lora.trainer(), &batch)
            .await
    }

    /// Starts a run over pairs; [`EmbeddingRun::step`] goes on with it.
    ///
    /// # Errors
    /// `Request` for data in which a query is compared with no other text.
    pub fn start(&self, pairs: Vec<EmbeddingPair>) -> Result<EmbeddingRun> {
        let fault = |parameter: &str, reason: &str| {
            Err(Error::Request {
                parameter: parameter.into(),
                reason: reason.into(),
            })
        };
        let without = pairs.iter().any(|pair| pair.negatives.is_empty());
        if pairs.is_empty() || pairs.len() == 1 && without {
            return fault(
                "dataset",
                "a query must be compared with other texts than its own. Add pairs, or 'negatives'.",
            );
        }
        if self.options.batch_size == 1 && without {
            return fault(
                "batchSize",
                "it is 1, so that pairs without 'negatives' are compared with nothing. Use at least 2.",
            );
        }
        Ok(EmbeddingRun {
            steps: self.options.even_steps(pairs.len()),
            pairs,
        })
    }

    /// Trains all epochs. `progress` runs after each step and may end the run early.
    ///
    /// # Errors
    /// Errors of [`Self::start`] and of a step.
    pub async fn train(
        &mut self,
        pairs: Vec<EmbeddingPair>,
        progress: &mut dyn FnMut(TrainProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut run = self.start(pairs)?;
        while let Some(done) = run.step(self).await? {
            if progress(done).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// All epochs over some pairs, step by step.
#[derive(Debug)]
pub struct EmbeddingRun {
    pairs: Vec<EmbeddingPair>,
    steps: EpochSteps,
}

impl EmbeddingRun {
    /// Steps of the run.
    pub fn steps(&self) -> usize {
        self.steps.schedule.steps
    }

    /// Trains the next step; `None` at the end. The steps of an epoch have equally many pairs, give or
    /// take one: a last step of few pairs would have few negatives.
    ///
    /// # Errors
    /// Errors of [`EmbeddingTrainer::step`].
    pub async fn step(&mut self, trainer: &mut EmbeddingTrainer) -> Result<Option<TrainProgress>> {
        let Some(next) = self.steps.next() else {
            return Ok(None);
        };
        let own = next.items.iter().map(|index| &self.pairs[*index]);
        let own: Vec<&EmbeddingPair> = own.collect();
        let report = trainer.step(&own, next.learning_rate).await?;
        let tokens = own.iter().map(|pair| pair.tokens()).sum();
        Ok(Some(TrainProgress::new(&next, report, tokens)))
    }
}

/// The inputs of a step: all queries, all positives, all negatives.
fn batch_of<'a>(pairs: &[&'a EmbeddingPair]) -> ContrastiveBatch<'a> {
    let positives = pairs.iter().map(|pair| &pair.positive);
    let negatives = pairs.iter().flat_map(|pair| &pair.negatives);
    ContrastiveBatch {
        anchors: pairs.iter().map(|pair| &pair.query).collect(),
        candidates: positives.chain(negatives).collect(),
    }
}

/// An upper bound of the sequences of a step of `batch_size` of these pairs.
fn max_sequences<'a>(pairs: impl Iterator<Item = &'a EmbeddingPair>, batch_size: usize) -> usize {
    let mut all = 0;
    let mut largest = 0;
    for pair in pairs {
        let count = pair.sequences().count();
        all += count;
        largest = largest.max(count);
    }
    all.min(largest.saturating_mul(batch_size))
}

/// Refuses data that does not fit a model's task: `wanted`, or else the one that its files imply.
///
/// # Errors
/// `Request` for pairs of an embedding model and a text model, for other data and an embedding model, and for models of other
/// tasks; errors of the files or the source.
pub async fn check_task(
    source: &Source,
    name: &str,
    has_pairs: bool,
    wanted: Option<Task>,
) -> Result<()> {
    let task = match wanted {
        Some(task) => task,
        None => task_of(source, name).await?,
    };
    let model = task.spec().model;
    let reason = match (task, has_pairs) {
        (Task::Embed, true) | (Task::Generate, false) => return Ok(()),
        (Task::Embed, false) => format!(
            "{name} is {model}, which learns from pairs with 'query' and 'positive'. Give those."
        ),
        (Task::Generate, true) => format!(
            "{name} is {model}, which learns from texts, conversations and preference pairs, not from pairs with 'query' and \
             'positive'. Use an embedding model, or load it with task 'embed'."
        ),
        (_, _) => {
            format!("{name} is {model}, which cannot be trained. Use a text or an embedding model.")
        }
    };
    Err(Error::Request {
        parameter: "dataset".into(),
        reason,
    })
}
