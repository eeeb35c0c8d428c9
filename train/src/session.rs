//! A training of a text or embedding model: the trainer, its run, and what only measures the loss.

use crate::adapter::LoraAdapter;
use crate::embedding::{EmbeddingRun, EmbeddingSetup, EmbeddingTrainer};
use crate::embedding_data::EmbeddingPair;
use crate::lora::{LoraTrainer, TrainProgress};
use crate::run::{Evaluation, RunData, TrainRun};
use crate::trainer::TrainMemory;
use jerboa::Result;

/// What a training will do and take, known before its first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainPlan {
    /// Steps of all epochs.
    pub steps: usize,
    /// Sequences or pairs to train on.
    pub items: usize,
    /// Sequences or pairs that only measure the loss.
    pub evaluation_items: usize,
    /// Tokens of an epoch.
    pub tokens: usize,
    /// Tokens of the longest sequence.
    pub max_length: usize,
    /// Device memory.
    pub memory: TrainMemory,
}

/// A training of a text or embedding model, step by step.
pub enum TrainSession {
    /// A text model: sequences or preference pairs.
    Text {
        /// The model with its adapter.
        trainer: Box<LoraTrainer>,
        /// The steps.
        run: TrainRun,
    },
    /// An embedding model: pairs of a query and a positive.
    Embedding {
        /// The model with its adapter.
        trainer: Box<EmbeddingTrainer>,
        /// The steps.
        run: EmbeddingRun,
        /// Pairs that only measure the loss.
        evaluation: Vec<EmbeddingPair>,
    },
}

impl TrainSession {
    /// Starts the training of a text model, from the weights of `resume` if there is one.
    ///
    /// # Errors
    /// As [`LoraTrainer::set_adapter`] and [`LoraTrainer::start_data`].
    pub fn text(
        trainer: LoraTrainer,
        data: RunData,
        resume: Option<&LoraAdapter>,
    ) -> Result<(Self, TrainPlan)> {
        if let Some(adapter) = resume {
            trainer.set_adapter(adapter)?;
        }
        let [items, evaluation_items] = data.counts();
        let max_length = trainer.options.max_length;
        let tokens = data.tokens(max_length);
        let run = trainer.start_data(data)?;
        let plan = TrainPlan {
            steps: run.steps(),
            items,
            evaluation_items,
            tokens,
            max_length,
            memory: trainer.memory(),
        };
        let trainer = Box::new(trainer);
        Ok((Self::Text { trainer, run }, plan))
    }

    /// Starts the training of an embedding model, from the weights of `resume` if there is one.
    ///
    /// # Errors
    /// As [`LoraTrainer::set_adapter`] and [`EmbeddingTrainer::start`].
    pub fn embedding(
        setup: EmbeddingSetup,
        resume: Option<&LoraAdapter>,
    ) -> Result<(Self, TrainPlan)> {
        let EmbeddingSetup {
            trainer,
            pairs,
            evaluation,
            max_length,
        } = setup;
        if let Some(adapter) = resume {
            trainer.lora().set_adapter(adapter)?;
        }
        let items = pairs.len();
        let tokens = pairs.iter().map(EmbeddingPair::tokens).sum();
        let run = trainer.start(pairs)?;
        let plan = TrainPlan {
            steps: run.steps(),
            items,
            evaluation_items: evaluation.len(),
            tokens,
            max_length,
            memory: trainer.memory(),
        };
        let session = Self::Embedding {
            trainer: Box::new(trainer),
            run,
            evaluation,
        };
        Ok((session, plan))
    }

    /// Prepares the next micro-batch of preference pairs: see [`TrainRun::prepare`]. Returns whether
    /// some are left.
    ///
    /// # Errors
    /// As [`TrainRun::prepare`].
    pub async fn prepare(&mut self) -> Result<bool> {
        match self {
            Self::Text { trainer, run } => run.prepare(trainer).await,
            Self::Embedding { .. } => Ok(false),
        }
    }

    /// Trains the next step; `None` at the end.
    ///
    /// # Errors
    /// As [`TrainRun::step`] and [`EmbeddingRun::step`].
    pub async fn step(&mut self) -> Result<Option<TrainProgress>> {
        match self {
            Self::Text { trainer, run } => run.step(trainer).await,
            Self::Embedding { trainer, run, .. } => run.step(trainer).await,
        }
    }

    /// Measures what is not trained on; `None` if there is nothing.
    ///
    /// # Errors
    /// As [`TrainRun::evaluate`] and [`EmbeddingTrainer::evaluate`].
    pub async fn evaluate(&mut self) -> Result<Option<Evaluation>> {
        match self {
            Self::Text { trainer, run } => run.evaluate(trainer).await,
            Self::Embedding { evaluation, .. } if evaluation.is_empty() => Ok(None),
            Self::Embedding {
                trainer,
                evaluation,
                ..
            } => Ok(Some(Evaluation {
                loss: trainer.evaluate(evaluation).await?,
                preference: None,
            })),
        }
    }

    /// Reads the adapter.
    ///
    /// # Errors
    /// Device errors.
    pub async fn adapter(&self) -> Result<LoraAdapter> {
        match self {
            Self::Text { trainer, .. } => trainer.adapter().await,
            Self::Embedding { trainer, .. } => trainer.lora().adapter().await,
        }
    }
}
