//! Options of a run, their checks and defaults, and how a run fits the memory of a device.

use crate::batch::TrainSequence;
use crate::checkpointing::Checkpointing;
use crate::kernels::update::Optimizer;
use crate::schedule::{Decay, EpochSteps, Schedule, even_parts, full_parts};
use crate::tape::TrainLoss;
use crate::trainer::{MemoryEstimate, TrainMemory, Trainer, TrainerOptions};
use jerboa::device::Caps;
use jerboa::exec::PrecisionOptions;
use jerboa::ir::{Graph, WeightId};
use jerboa::plan::WeightPlans;
use jerboa::{Error, Result, SortedSet};

/// Maximum tokens of a micro-batch unless a sequence is longer.
const MAX_MICRO_BATCH_TOKENS: usize = 2048;
/// Tokens below which a smaller micro-batch costs more time than checkpointing: its matmuls no
/// longer fill a GPU.
const MIN_USEFUL_TOKENS: usize = 512;

/// DPO's beta unless another is set, as in TRL.
pub const DEFAULT_BETA: f32 = 0.1;
/// Default pairs per step of an embedding model: more are more negatives for each query.
const DEFAULT_EMBEDDING_PAIRS: usize = 32;

/// How an adapter is trained.
#[derive(Debug, Clone)]
pub struct LoraOptions {
    /// Rank of the updates.
    pub rank: usize,
    /// The updates are multiplied by alpha / rank.
    pub alpha: f32,
    /// Last names of the matrices to update, such as `q_proj`; empty for all matrices of the layers.
    pub targets: Vec<String>,
    /// Passes over the data.
    pub epochs: usize,
    /// Sequences or pairs per step.
    pub batch_size: usize,
    /// Highest learning rate.
    pub learning_rate: f32,
    /// How the learning rate goes on after the warm-up.
    pub decay: Decay,
    /// Share of all steps in which the learning rate rises.
    pub warm_up: f32,
    /// Weight decay.
    pub weight_decay: f32,
    /// Largest norm of all gradients; 0 for any.
    pub max_norm: f32,
    /// Maximum tokens of a sequence; further tokens are cut off.
    pub max_length: usize,
    /// Seed of the first weights and of the order of sequences.
    pub seed: u64,
    /// Storage precision of the model's weights.
    pub precision: PrecisionOptions,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Bytes of device memory to use at most; `None` for what the device is known to have.
    pub max_memory: Option<u64>,
    /// When the backward pass computes activations again to save memory.
    pub checkpointing: Checkpointing,
    /// The loss. [`TrainLoss::Preference`] trains on pairs: [`LoraTrainer::start_pairs`].
    pub loss: TrainLoss,
}

impl Default for LoraOptions {
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
            targets: Vec::new(),
            epochs: 1,
            batch_size: 8,
            learning_rate: 2e-4,
            decay: Decay::Linear,
            warm_up: 0.05,
            weight_decay: 0.0,
            max_norm: 1.0,
            max_length: 512,
            seed: 0,
            precision: PrecisionOptions::default(),
            optimizer: Optimizer::ADAMW,
            max_memory: None,
            checkpointing: Checkpointing::default(),
            loss: TrainLoss::default(),
        }
    }
}

impl LoraOptions {
    /// The defaults of a run over preference pairs: DPO with `beta`, by default [`DEFAULT_BETA`], and a lower
    /// learning rate, since its gradients move all tokens of an answer in one direction.
    pub fn for_pairs(beta: Option<f32>) -> Self {
        Self {
            learning_rate: 5e-5,
            loss: TrainLoss::Preference {
                beta: beta.unwrap_or(DEFAULT_BETA),
            },
            ..Self::default()
        }
    }

    /// The defaults of a run over pairs for an embedding model.
    pub fn for_embedding_pairs() -> Self {
        Self {
            batch_size: DEFAULT_EMBEDDING_PAIRS,
            ..Self::default()
        }
    }

    /// Tokens of the largest sequence, or of the largest pair.
    fn max_item_tokens(&self) -> usize {
        match self.loss {
            TrainLoss::CrossEntropy => self.max_length,
            TrainLoss::Preference { .. } => self.max_length.saturating_mul(2),
        }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// `Request` for a number out of bounds.
    pub fn check(&self) -> Result<()> {
        for (parameter, is_valid, bounds) in [
            (
                "rank",
                (1..=1024).contains(&self.rank),
                "between 1 and 1024",
            ),
            (
                "alpha",
                self.alpha.is_finite() && self.alpha > 0.0,
                "above 0",
            ),
            ("epochs", self.epochs > 0, "at least 1"),
            ("batchSize", self.batch_size > 0, "at least 1"),
            (
                "learningRate",
                self.learning_rate.is_finite() && self.learning_rate > 0.0,
                "above 0",
            ),
            (
                "warmUp",
                (0.0..=1.0).contains(&self.warm_up),
                "between 0 and 1",
            ),
            ("maxLength", self.max_length > 1, "at least 2"),
            (
                "beta",
                match self.loss {
                    TrainLoss::CrossEntropy => true,
                    TrainLoss::Preference { beta } => beta.is_finite() && beta > 0.0,
                },
                "above 0",
            ),
        ] {
            if !is_valid {
                return Err(Error::Request {
                    parameter: parameter.into(),
                    reason: format!("it must be {bounds}"),
                });
            }
        }
        Ok(())
    }

    /// Lowers the maximum length to the longest of some sequences: activations take memory by it.
    pub fn with_length_of<'a>(
        self,
        sequences: impl IntoIterator<Item = &'a TrainSequence>,
    ) -> Self {
        let longest = sequences
            .into_iter()
            .map(|sequence| sequence.ids.len())
            .max();
        Self {
            max_length: self.max_length.min(longest.unwrap_or(0).max(2)),
            ..self
        }
    }

    /// Finds how a run fits the device, and what it takes: the largest micro-batch; with
    /// `Checkpointing::Auto` a smaller one rather than checkpointing, but not below a useful size. A
    /// step has up to `items` sequences or preference pairs, and its loss takes `loss_bytes`.
    pub(super) fn fit(
        &self,
        graph: &Graph,
        plans: &WeightPlans,
        trained: &SortedSet<WeightId>,
        caps: &Caps,
        (items, loss_bytes): (usize, u64),
    ) -> Result<(TrainerOptions, TrainMemory)> {
        let min_tokens = self.max_item_tokens();
        let all = min_tokens.saturating_mul(items);
        let whole = all.min(MAX_MICRO_BATCH_TOKENS).max(min_tokens);
        let estimate = |checkpointing: bool| {
            let options = TrainerOptions {
                optimizer: self.optimizer,
                weight_decay: self.weight_decay,
                max_norm: self.max_norm,
                max_tokens: whole,
                checkpointing,
                loss: self.loss,
            };
            Ok((
                options,
                Trainer::estimate(graph.clone(), plans, trained, options)?,
            ))
        };
        let largest = |(options, memory): (TrainerOptions, MemoryEstimate)| {
            let mut max_tokens = whole;
            loop {
                let mut memory = memory.with_tokens(max_tokens);
                memory.activations += loss_bytes;
                let Some((what, needed, limit)) = self.excess(&memory, caps) else {
                    return Ok((
                        TrainerOptions {
                            max_tokens,
                            ..options
                        },
                        memory,
                    ));
                };
                if max_tokens == min_tokens {
                    return Err(Error::OutOfMemory {
                        what: what.into(),
                        needed,
                        limit,
                        hint: self.memory_advice(&memory),
                    });
                }
                max_tokens = (max_tokens / 2).max(min_tokens);
            }
        };
        match self.checkpointing {
            Checkpointing::Always => largest(estimate(true)?),
            Checkpointing::Never | Checkpointing::Unsupported => largest(estimate(false)?),
            Checkpointing::Auto => {
                let plain = largest(estimate(false)?);
                let plain_tokens = plain.as_ref().map_or(0, |(options, _)| options.max_tokens);
                if plain_tokens >= whole.min(MIN_USEFUL_TOKENS) {
                    return plain;
                }
                let checkpointed = largest(estimate(true)?);
                match &checkpointed {
                    Ok((options, _)) if options.max_tokens <= plain_tokens => plain,
                    _ => checkpointed,
                }
            }
        }
    }

    /// Returns what of a run exceeds the device: its name, bytes, and the limit.
    fn excess(&self, memory: &TrainMemory, caps: &Caps) -> Option<(&'static str, u64, u64)> {
        let all = self.max_memory.or(caps.estimated_memory);
        let all = all.unwrap_or(u64::MAX);
        [
            ("training", memory.total(), all),
            (
                "a buffer of the training",
                memory.largest,
                caps.max_weight_buffer(),
            ),
        ]
        .into_iter()
        .find(|(_, needed, limit)| needed > limit)
    }

    /// What makes the largest part of the memory smaller.
    fn memory_advice(&self, memory: &TrainMemory) -> String {
        let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
        let advice = if memory.activations >= memory.trained.max(memory.frozen) {
            let shorter = format!("a 'maxLength' below {}", self.max_length);
            match (memory.checkpointing, self.checkpointing) {
                (true, _) | (_, Checkpointing::Unsupported) => format!("Use {shorter}"),
                (false, Checkpointing::Never) => {
                    format!("Set 'checkpointing' to 'auto', or use {shorter}")
                }
                (false, _) => format!("Set 'checkpointing' to true, or use {shorter}"),
            }
        } else if memory.trained < memory.frozen {
            "Load the model with fewer bits ('weights': 'q4'), or a smaller model".into()
        } else if self.rank > Self::default().rank {
            format!("Use a 'rank' below {}", self.rank)
        } else {
            "Use fewer 'targets'".into()
        };
        let how = if memory.checkpointing {
            " with checkpointing"
        } else {
            ""
        };
        format!(
            "Activations take {} MB{how}, trained weights {} MB, the model {} MB. {advice}; if the device has more memory, \
             load the model with a larger 'maxMemory'.",
            megabytes(memory.activations),
            megabytes(memory.trained),
            megabytes(memory.frozen)
        )
    }

    /// Gives an allocation that failed the advice of a training.
    pub(super) fn with_memory_advice(&self, error: Error, memory: &TrainMemory) -> Error {
        match error {
            Error::OutOfMemory {
                what,
                needed,
                limit,
                ..
            } => Error::OutOfMemory {
                what,
                needed,
                limit,
                hint: self.memory_advice(memory),
            },
            other => other,
        }
    }

    /// Learning rates of a run over `sequences` sequences.
    pub fn schedule(&self, sequences: usize) -> Schedule {
        let steps = self.epochs * sequences.div_ceil(self.batch_size.max(1));
        Schedule {
            peak: self.learning_rate,
            warm_up: (steps as f32 * self.warm_up).ceil() as usize,
            steps,
            decay: self.decay,
        }
    }

    /// The steps of a run over `count` sequences or pairs.
    pub(crate) fn steps(&self, count: usize) -> EpochSteps {
        let parts = full_parts(count, self.batch_size);
        EpochSteps::new(parts, self.seed, self.schedule(count))
    }

    /// The steps of a run over `count` items, whose numbers of items differ by one at most.
    pub(crate) fn even_steps(&self, count: usize) -> EpochSteps {
        let parts = even_parts(count, self.batch_size);
        EpochSteps::new(parts, self.seed, self.schedule(count))
    }
}
