//! Runs over preference pairs: direct preference optimization (arXiv 2305.18290). The reference
//! model is the trained one without its adapter, so no second model is loaded.

use crate::batch::PreferencePair;
use crate::lora::{LoraTrainer, TrainProgress};
use crate::preference::PreferenceMetrics;
use crate::schedule::EpochSteps;
use jerboa::ir::WeightId;
use jerboa::{Error, Result};
use std::ops::{ControlFlow, Range};

/// All epochs over some pairs, step by step. [`Self::prepare`] precedes the first step.
#[derive(Debug)]
pub struct PreferenceRun {
    /// The pairs to train on, then those for evaluation.
    pairs: Vec<PreferencePair>,
    /// Pairs to train on.
    trained: usize,
    /// Pairs whose reference is known.
    prepared: usize,
    /// The factors B of the adapter, which [`Self::prepare`] replaces by zeros meanwhile.
    factors: Vec<(WeightId, Vec<f32>)>,
    steps: EpochSteps,
}

impl LoraTrainer {
    /// Starts a run over pairs; `evaluation` has those that only measure. Sequences are cut off at
    /// the maximum length; pairs with an answer beyond it are dropped.
    ///
    /// # Errors
    /// `Request` if no pair to train on is left.
    pub fn start_pairs(
        &self,
        train: &[PreferencePair],
        evaluation: &[PreferencePair],
    ) -> Result<PreferenceRun> {
        let fitting = |pairs: &[PreferencePair]| {
            let cut = |pair: &PreferencePair| {
                let [chosen, rejected] = pair.sequences().map(|sequence| self.cut(sequence));
                PreferencePair::new(chosen, rejected)
            };
            let has_answers = |pair: &PreferencePair| {
                let mut answers = pair.sequences().into_iter();
                answers.all(|sequence| sequence.labels() > 0)
            };
            let cut: Vec<PreferencePair> = pairs.iter().map(cut).filter(has_answers).collect();
            cut
        };
        let mut pairs = fitting(train);
        let trained = pairs.len();
        if trained == 0 {
            return Err(Error::Request {
                parameter: "dataset".into(),
                reason: "no pair has both answers within 'maxLength'. Use a larger 'maxLength', or shorter prompts.".into(),
            });
        }
        pairs.extend(fitting(evaluation));
        Ok(PreferenceRun {
            steps: self.options.steps(trained),
            pairs,
            trained,
            prepared: 0,
            factors: Vec::new(),
        })
    }

    /// Trains all epochs over pairs. `progress` runs after each step and may end the run early.
    ///
    /// # Errors
    /// As [`Self::start_pairs`]; errors of a step.
    pub async fn train_pairs(
        &mut self,
        pairs: &[PreferencePair],
        progress: &mut dyn FnMut(TrainProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut run = self.start_pairs(pairs, &[])?;
        while let Some(done) = run.step(self).await? {
            if progress(done).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl PreferenceRun {
    /// Steps of the run.
    pub fn steps(&self) -> usize {
        self.steps.schedule.steps
    }

    /// Computes the log-probabilities of the next micro-batch of pairs by the reference model: the
    /// model without its adapter, also when the run continues an earlier one. Returns whether pairs
    /// are left.
    ///
    /// # Errors
    /// Errors of [`crate::trainer::Trainer::log_probabilities`].
    pub async fn prepare(&mut self, lora: &mut LoraTrainer) -> Result<bool> {
        if self.prepared == self.pairs.len() {
            return Ok(false);
        }
        if self.factors.is_empty() {
            for id in lora.out_factors() {
                self.factors.push((id, lora.trainer.weight(id).await?));
            }
        }
        let left = &self.pairs[self.prepared..];
        let count = lora.trainer.split_pairs(left)[0].len();
        let batch = self.prepared..self.prepared + count;
        for (id, values) in &self.factors {
            lora.trainer.set_weight(*id, &vec![0.0; values.len()]);
        }
        let found = lora
            .trainer
            .log_probabilities(&self.pairs[batch.clone()])
            .await;
        for (id, values) in &self.factors {
            lora.trainer.set_weight(*id, values);
        }
        let pairs = self.pairs[batch.clone()].iter_mut();
        for (pair, reference) in pairs.zip(found?) {
            pair.reference = reference;
        }
        self.prepared = batch.end;
        if self.prepared == self.pairs.len() {
            self.factors.clear();
        }
        Ok(self.prepared < self.pairs.len())
    }

    /// Trains the next step; `None` at the end.
    ///
    /// # Errors
    /// Errors of [`Self::prepare`] and [`crate::trainer::Trainer::step_pairs`].
    pub async fn step(&mut self, lora: &mut LoraTrainer) -> Result<Option<TrainProgress>> {
        while self.prepare(lora).await? {}
        let Some(next) = self.steps.next() else {
            return Ok(None);
        };
        let own = |index: &usize| self.pairs[*index].clone();
        let batch: Vec<PreferencePair> = next.items.iter().map(own).collect();
        let trainer = &mut lora.trainer;
        let batches = trainer.split_pairs(&batch);
        let (report, metrics) = trainer.step_pairs(&batches, next.learning_rate).await?;
        let tokens = batch.iter().map(PreferencePair::tokens).sum();
        Ok(Some(TrainProgress {
            preference: Some(metrics),
            ..TrainProgress::new(&next, report, tokens)
        }))
    }

    /// Measures the pairs that are not trained on; `None` if there are none.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn evaluate(&mut self, lora: &mut LoraTrainer) -> Result<Option<PreferenceMetrics>> {
        while self.prepare(lora).await? {}
        let evaluation = &self.pairs[self.trained..];
        if evaluation.is_empty() {
            return Ok(None);
        }
        lora.trainer.evaluate_pairs(evaluation).await.map(Some)
    }

    /// The prepared pairs to train on, with their references.
    pub fn pairs(&self) -> &[PreferencePair] {
        let range: Range<usize> = 0..self.trained.min(self.prepared);
        &self.pairs[range]
    }
}
