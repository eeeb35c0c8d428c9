//! Runs over data of either kind: sequences, or preference pairs.

use crate::batch::{PreferencePair, TrainSequence};
use crate::dataset::split_evaluation;
use crate::dpo::PreferenceRun;
use crate::lora::{LoraRun, LoraTrainer, TrainProgress};
use crate::preference::PreferenceMetrics;
use crate::preference_data::TrainData;
use jerboa::Result;

/// What a run trains on, and what only measures.
#[derive(Debug, Clone, PartialEq)]
pub enum RunData {
    /// Sequences.
    Sequences {
        /// Those to train on.
        train: Vec<TrainSequence>,
        /// Those that only measure the loss.
        evaluation: Vec<TrainSequence>,
    },
    /// Pairs.
    Pairs {
        /// Those to train on.
        train: Vec<PreferencePair>,
        /// Those that only measure the loss.
        evaluation: Vec<PreferencePair>,
    },
}

impl RunData {
    /// Holds out a `share` of the data: see [`split_evaluation`].
    pub fn split(data: TrainData, share: f32) -> Self {
        match data {
            TrainData::Sequences(all) => {
                let (train, evaluation) = split_evaluation(all, share);
                Self::Sequences { train, evaluation }
            }
            TrainData::Pairs(all) => {
                let (train, evaluation) = split_evaluation(all, share);
                Self::Pairs { train, evaluation }
            }
        }
    }

    /// Data with what measures it; `None` if they are of different kinds.
    pub fn of(data: TrainData, evaluation: TrainData) -> Option<Self> {
        match (data, evaluation) {
            (TrainData::Sequences(train), TrainData::Sequences(evaluation)) => {
                Some(Self::Sequences { train, evaluation })
            }
            (TrainData::Pairs(train), TrainData::Pairs(evaluation)) => {
                Some(Self::Pairs { train, evaluation })
            }
            _ => None,
        }
    }

    /// All sequences, those of pairs too.
    pub fn sequences(&self) -> Vec<&TrainSequence> {
        match self {
            Self::Sequences { train, evaluation } => train.iter().chain(evaluation).collect(),
            Self::Pairs { train, evaluation } => {
                let pairs = train.iter().chain(evaluation);
                pairs.flat_map(PreferencePair::sequences).collect()
            }
        }
    }

    /// Sequences or pairs to train on, and those that only measure the loss.
    pub fn counts(&self) -> [usize; 2] {
        match self {
            Self::Sequences { train, evaluation } => [train.len(), evaluation.len()],
            Self::Pairs { train, evaluation } => [train.len(), evaluation.len()],
        }
    }

    /// Tokens of an epoch, with sequences cut off at `max_length`.
    pub fn tokens(&self, max_length: usize) -> usize {
        let length = |sequence: &TrainSequence| sequence.ids.len().min(max_length);
        match self {
            Self::Sequences { train, .. } => train.iter().map(length).sum(),
            Self::Pairs { train, .. } => {
                let both = train.iter().flat_map(PreferencePair::sequences);
                both.map(length).sum()
            }
        }
    }
}

/// The measurement of what is not trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss of the labels, or of the pairs.
    pub loss: f32,
    /// Means of the pairs, in a run over pairs.
    pub preference: Option<PreferenceMetrics>,
}

/// All epochs over some data, step by step.
#[derive(Debug)]
pub enum TrainRun {
    /// Over sequences.
    Sequences {
        /// The steps.
        run: LoraRun,
        /// Sequences that only measure the loss.
        evaluation: Vec<TrainSequence>,
    },
    /// Over pairs.
    Pairs(PreferenceRun),
}

impl LoraTrainer {
    /// Starts a run over data of the kind that the options' loss takes.
    ///
    /// # Errors
    /// As [`Self::start`] and [`Self::start_pairs`].
    pub fn start_data(&self, data: RunData) -> Result<TrainRun> {
        Ok(match data {
            RunData::Sequences { train, evaluation } => TrainRun::Sequences {
                run: self.start(&train)?,
                evaluation,
            },
            RunData::Pairs { train, evaluation } => {
                TrainRun::Pairs(self.start_pairs(&train, &evaluation)?)
            }
        })
    }
}

impl TrainRun {
    /// Steps of the run.
    pub fn steps(&self) -> usize {
        match self {
            Self::Sequences { run, .. } => run.steps(),
            Self::Pairs(run) => run.steps(),
        }
    }

    /// Prepares the next micro-batch of pairs: see [`PreferenceRun::prepare`]. Returns whether some
    /// are left; steps and evaluations prepare what is left.
    ///
    /// # Errors
    /// As [`PreferenceRun::prepare`].
    pub async fn prepare(&mut self, lora: &mut LoraTrainer) -> Result<bool> {
        match self {
            Self::Sequences { .. } => Ok(false),
            Self::Pairs(run) => run.prepare(lora).await,
        }
    }

    /// Trains the next step; `None` at the end.
    ///
    /// # Errors
    /// As [`LoraRun::step`] and [`PreferenceRun::step`].
    pub async fn step(&mut self, lora: &mut LoraTrainer) -> Result<Option<TrainProgress>> {
        match self {
            Self::Sequences { run, .. } => run.step(lora).await,
            Self::Pairs(run) => run.step(lora).await,
        }
    }

    /// Measures what is not trained on; `None` if there is nothing.
    ///
    /// # Errors
    /// As [`LoraTrainer::evaluate`] and [`PreferenceRun::evaluate`].
    pub async fn evaluate(&mut self, lora: &mut LoraTrainer) -> Result<Option<Evaluation>> {
        match self {
            Self::Sequences { evaluation, .. } if evaluation.is_empty() => Ok(None),
            Self::Sequences { evaluation, .. } => Ok(Some(Evaluation {
                loss: lora.evaluate(evaluation).await?,
                preference: None,
            })),
            Self::Pairs(run) => {
                let metrics = run.evaluate(lora).await?;
                Ok(metrics.map(|metrics| Evaluation {
                    loss: metrics.loss,
                    preference: Some(metrics),
                }))
            }
        }
    }
}
