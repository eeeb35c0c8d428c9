//! Steps over preference pairs: direct preference optimization (arXiv 2305.18290), as TRL's
//! `DPOTrainer` computes it with `loss_type="sigmoid"`.

use crate::batch::{PackedRows, PreferencePair};
use crate::tape::{TapeEnd, TrainLoss};
use crate::trainer::{StepReport, Trainer};
use jerboa::{Error, Result};

/// Means over pairs. The reward of an answer is beta times its log-probability less that by the
/// reference model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreferenceMetrics {
    /// Loss: -log sigmoid of the reward margin.
    pub loss: f32,
    /// Reward of the chosen answer less that of the rejected one.
    pub reward_margin: f32,
    /// Share of pairs whose chosen answer has the larger reward.
    pub reward_accuracy: f32,
}

impl PreferenceMetrics {
    /// The mean of several means, each with its number of pairs.
    fn mean(parts: &[(Self, usize)]) -> Self {
        let pairs: usize = parts.iter().map(|(_, pairs)| pairs).sum();
        let mean = |value: fn(&Self) -> f32| {
            let sums = parts
                .iter()
                .map(|(part, n)| f64::from(value(part)) * *n as f64);
            (sums.sum::<f64>() / pairs.max(1) as f64) as f32
        };
        Self {
            loss: mean(|part| part.loss),
            reward_margin: mean(|part| part.reward_margin),
            reward_accuracy: mean(|part| part.reward_accuracy),
        }
    }
}

impl Trainer {
    /// Splits pairs into micro-batches, in order. Both sequences of a pair are in the same one.
    pub fn split_pairs<'a>(&self, pairs: &'a [PreferencePair]) -> Vec<&'a [PreferencePair]> {
        self.split_by(pairs, PreferencePair::tokens)
    }

    fn beta(&self) -> Result<f32> {
        match self.options().loss {
            TrainLoss::Preference { beta } => Ok(beta),
            TrainLoss::CrossEntropy => Err(Error::Internal("this trainer is not for pairs".into())),
        }
    }

    fn pack_pairs(&self, batches: &[&[PreferencePair]]) -> Result<(Vec<PackedRows>, usize)> {
        let [vocab, max_tokens] = [self.vocab()?, self.options().max_tokens];
        let all = batches.iter().flat_map(|batch| batch.iter());
        let mut sequences = all.clone().flat_map(PreferencePair::sequences);
        if sequences.any(|sequence| sequence.labels() == 0) {
            return Err(Error::Request {
                parameter: "batch".into(),
                reason: "an answer of a pair has no tokens. Use a larger 'maxLength'.".into(),
            });
        }
        let pack = |batch: &&[PreferencePair]| PackedRows::pack_pairs(batch, max_tokens, vocab);
        let packed = batches.iter().map(pack).collect::<Result<Vec<_>>>()?;
        Ok((packed, all.count()))
    }

    fn metrics(
        &self,
        [loss, chosen, rejected, preferred]: [f32; 4],
        pairs: usize,
    ) -> Result<PreferenceMetrics> {
        let pairs = pairs.max(1) as f32;
        Ok(PreferenceMetrics {
            loss: loss / pairs,
            reward_margin: self.beta()? * (chosen - rejected) / pairs,
            reward_accuracy: preferred / pairs,
        })
    }

    /// Trains one step: the gradients of all micro-batches together, then the update.
    ///
    /// # Errors
    /// `Request` for a micro-batch that is too large, an answer without tokens, or a loss that is
    /// not finite; `Internal` for a trainer with another loss; device errors.
    pub async fn step_pairs(
        &mut self,
        batches: &[&[PreferencePair]],
        rate: f32,
    ) -> Result<(StepReport, PreferenceMetrics)> {
        self.beta()?;
        let (packed, pairs) = self.pack_pairs(batches)?;
        self.begin_step(pairs, rate);
        let [_, gradient_norm, _, _, sums @ ..] =
            self.run(TapeEnd::Gradients, &packed, true).await?;
        let metrics = self.metrics(sums, pairs)?;
        Ok((self.report(metrics.loss, gradient_norm, rate)?, metrics))
    }

    /// Computes the gradients of a micro-batch without an update, for [`Self::gradient`].
    ///
    /// # Errors
    /// As [`Self::step_pairs`].
    pub async fn compute_pair_gradients(
        &mut self,
        batch: &[PreferencePair],
    ) -> Result<PreferenceMetrics> {
        self.beta()?;
        let (packed, pairs) = self.pack_pairs(&[batch])?;
        self.write_hyper(pairs, 0.0);
        let [_, _, _, _, sums @ ..] = self.run(TapeEnd::Gradients, &packed, false).await?;
        self.metrics(sums, pairs)
    }

    /// Computes the means of pairs, in as many micro-batches as needed.
    ///
    /// # Errors
    /// As [`Self::step_pairs`].
    pub async fn evaluate_pairs(&mut self, pairs: &[PreferencePair]) -> Result<PreferenceMetrics> {
        self.beta()?;
        let mut parts = Vec::new();
        for batch in self.split_pairs(pairs) {
            let (packed, count) = self.pack_pairs(&[batch])?;
            let [_, _, _, _, sums @ ..] = self.run(TapeEnd::Loss, &packed, false).await?;
            parts.push((self.metrics(sums, count)?, count));
        }
        Ok(PreferenceMetrics::mean(&parts))
    }

    /// Computes the log-probabilities of both answers of each pair of a micro-batch by the model as
    /// it is: those of the reference, if it is the reference model.
    ///
    /// # Errors
    /// As [`Self::step_pairs`].
    pub async fn log_probabilities(&mut self, batch: &[PreferencePair]) -> Result<Vec<[f32; 2]>> {
        self.beta()?;
        let pair = |pair: &PreferencePair| PreferencePair {
            reference: [0.0; 2],
            ..pair.clone()
        };
        let batch: Vec<PreferencePair> = batch.iter().map(pair).collect();
        let (packed, pairs) = self.pack_pairs(&[&batch])?;
        self.run(TapeEnd::Loss, &packed, false).await?;
        let results = self.pair_results(pairs).await?;
        let log_ratios = |[_, chosen, rejected, _]: [f32; 4]| [chosen, rejected];
        Ok(results.into_iter().map(log_ratios).collect())
    }
}
