//! Trains LoRA adapters (arXiv 2106.09685) of a text model, whose own weights stay as they are
//! stored: 4-bit and 8-bit weights too. The result is peft's format.

use crate::adapter::{AdapterTensor, CAUSAL_LM, LoraAdapter};
use crate::batch::TrainSequence;
use crate::checkpointing::Checkpointing;
use crate::kernels::update::Optimizer;
use crate::preference::PreferenceMetrics;
use crate::random::uniform;
use crate::schedule::{Decay, EpochStep, EpochSteps, Schedule};
use crate::tape::TrainLoss;
use crate::trainer::{MemoryEstimate, StepReport, TrainMemory, Trainer, TrainerOptions};
use jerboa::device::Caps;
use jerboa::exec::{GraphWeights, ModelFiles, PrecisionOptions};
use jerboa::gpu::{Backend, Gpu};
use jerboa::hub::Source;
use jerboa::ir::{Graph, LowRankUpdate, Op, WeightId, WeightKind, add_low_rank_updates};
use jerboa::plan::WeightPlans;
use jerboa::{Error, Result, SortedSet, arch};
use std::ops::ControlFlow;
use std::rc::Rc;

/// What peft puts before the names of the model's tensors.
const PREFIX: &str = "base_model.model.";
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
    fn fit(
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
    fn with_memory_advice(&self, error: Error, memory: &TrainMemory) -> Error {
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
        EpochSteps::new(count, self.batch_size, self.seed, self.schedule(count))
    }
}

/// Progress of a run, after each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainProgress {
    /// Steps done.
    pub step: usize,
    /// Steps of the run.
    pub steps: usize,
    /// Epoch, from 0.
    pub epoch: usize,
    /// Loss and norm of the gradients.
    pub report: StepReport,
    /// Learning rate of the step.
    pub learning_rate: f32,
    /// Tokens of the step's sequences.
    pub tokens: usize,
    /// Means of the step's pairs, in a run over pairs.
    pub preference: Option<PreferenceMetrics>,
}

impl TrainProgress {
    /// The progress after a step over sequences.
    pub(crate) fn new(done: &EpochStep, report: StepReport, tokens: usize) -> Self {
        Self {
            step: done.step,
            steps: done.steps,
            epoch: done.epoch,
            report,
            learning_rate: done.learning_rate,
            tokens,
            preference: None,
        }
    }
}

/// A trained matrix: its name and its factors.
#[derive(Debug)]
struct LoraMatrix {
    update: LowRankUpdate,
    a: WeightId,
    b: WeightId,
    /// Inputs and outputs.
    size: [usize; 2],
}

/// The graph that an adapter is trained for.
pub(crate) struct LoraGraph {
    /// The graph without fusions.
    pub plain: Graph,
    /// What the adapter calls the model's matrices, by checkpoint name. Others are not trained.
    pub names: Vec<[String; 2]>,
    /// Maximum sequences or preference pairs of a step.
    pub items: usize,
    /// Bytes that the loss takes.
    pub loss_bytes: u64,
    /// peft's name of the model's task.
    pub task_type: &'static str,
}

/// A model with the adapter that it learns.
pub struct LoraTrainer {
    pub(crate) trainer: Trainer,
    matrices: Vec<LoraMatrix>,
    pub(crate) options: LoraOptions,
    memory: TrainMemory,
    /// Name of the model in adapter_config.json.
    base: String,
    transposed: bool,
    task_type: &'static str,
}

impl LoraTrainer {
    /// Loads the weights of a model and adds an adapter that does not change it yet. `base` names
    /// the model in the adapter's settings.
    ///
    /// # Errors
    /// `Request` for options out of bounds and for targets that the model lacks;
    /// `UnsupportedOption` for models with operations that have no gradient; `OutOfMemory`, before
    /// weights are downloaded, for what the device has no memory for; errors of the source or the
    /// device.
    pub async fn load(
        gpu: Rc<Gpu>,
        source: &Source,
        files: &ModelFiles,
        base: &str,
        options: LoraOptions,
    ) -> Result<Self> {
        let plain = arch::graph(&files.config)?;
        let names = plain.weights.iter().flat_map(|weight| &weight.parts);
        let graph = LoraGraph {
            names: names
                .map(|(name, _)| [name.clone(), name.clone()])
                .collect(),
            plain,
            items: options.batch_size,
            loss_bytes: 0,
            task_type: CAUSAL_LM,
        };
        Self::load_graph(gpu, source, files, base, options, graph).await
    }

    /// Loads the weights of a graph as [`Self::load`] does.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) async fn load_graph(
        gpu: Rc<Gpu>,
        source: &Source,
        files: &ModelFiles,
        base: &str,
        options: LoraOptions,
        graph: LoraGraph,
    ) -> Result<Self> {
        options.check()?;
        let LoraGraph {
            plain,
            names,
            items,
            loss_bytes,
            task_type,
        } = graph;
        let updates = updates_of(&plain, &names, files, &options)?;
        let plans = GraphWeights::plan(&gpu, files, &plain, options.precision)?;
        let (graph, taken) = add_low_rank_updates(plain.clone(), &updates);
        if taken != updates.len() {
            return Err(Error::Internal(format!(
                "{taken} of {} updates name a matmul",
                updates.len()
            )));
        }
        let matrices = updates
            .into_iter()
            .map(|update| matrix_of(&graph, update))
            .collect::<Result<Vec<LoraMatrix>>>()?;
        let factors = matrices.iter().flat_map(|matrix| [matrix.a, matrix.b]);
        let trained: SortedSet<WeightId> = factors.collect();
        let (trainer_options, memory) =
            options.fit(&graph, &plans, &trained, gpu.caps(), (items, loss_bytes))?;
        let trainer = async {
            let weights = GraphWeights::load(&gpu, source, files, &plain, plans).await?;
            Trainer::new(gpu.clone(), graph, weights, trained, trainer_options).await
        };
        let trainer = trainer.await;
        let trainer = trainer.map_err(|error| options.with_memory_advice(error, &memory))?;
        let made = Self {
            trainer,
            matrices,
            memory,
            base: base.into(),
            transposed: files.config.model_type() == "gpt2",
            task_type,
            options,
        };
        made.initialize();
        Ok(made)
    }

    /// Starts A with PyTorch's uniform distribution for linear layers, as peft does, and B with 0.
    fn initialize(&self) {
        for (index, matrix) in self.matrices.iter().enumerate() {
            let [inputs, outputs] = matrix.size;
            let rank = matrix.update.rank;
            let bound = 1.0 / (inputs as f32).sqrt();
            let values = uniform(rank * inputs, bound, self.options.seed, index);
            self.trainer.set_weight(matrix.a, &values);
            self.trainer
                .set_weight(matrix.b, &vec![0.0; outputs * rank]);
        }
    }

    /// Device memory by use.
    pub fn memory(&self) -> TrainMemory {
        self.memory
    }

    /// The trainer of the adapter's weights.
    pub fn trainer(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// Replaces the adapter's weights: to go on with an earlier one.
    ///
    /// # Errors
    /// `Request` for tensors of another model, rank or set of targets.
    pub fn set_adapter(&self, adapter: &LoraAdapter) -> Result<()> {
        for matrix in &self.matrices {
            let rank = matrix.update.rank;
            let [inputs, outputs] = matrix.size;
            for (name, id, shape) in [
                (&matrix.update.a, matrix.a, [rank, inputs]),
                (&matrix.update.b, matrix.b, [outputs, rank]),
            ] {
                let found = adapter.tensors.iter().find(|tensor| tensor.name == *name);
                let tensor = found.filter(|tensor| tensor.shape == shape);
                let tensor = tensor.ok_or_else(|| Error::Request {
                    parameter: "adapter".into(),
                    reason: format!(
                        "it has no tensor {name} of shape {} × {}. Use an adapter with the same rank and targets.",
                        shape[0], shape[1]
                    ),
                })?;
                self.trainer.set_weight(id, &tensor.values);
            }
        }
        Ok(())
    }

    /// Reads the adapter.
    ///
    /// # Errors
    /// Device errors.
    pub async fn adapter(&self) -> Result<LoraAdapter> {
        let mut tensors = Vec::with_capacity(2 * self.matrices.len());
        let mut targets: Vec<String> = Vec::new();
        for matrix in &self.matrices {
            let rank = matrix.update.rank;
            let [inputs, outputs] = matrix.size;
            for (name, id, shape) in [
                (&matrix.update.a, matrix.a, [rank, inputs]),
                (&matrix.update.b, matrix.b, [outputs, rank]),
            ] {
                tensors.push(AdapterTensor {
                    name: name.clone(),
                    shape,
                    values: self.trainer.weight(id).await?,
                });
            }
            let target = last_name(&matrix.update.matrix).to_owned();
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(LoraAdapter {
            rank: self.options.rank,
            alpha: self.options.alpha,
            base: self.base.clone(),
            targets,
            transposed: self.transposed,
            task_type: self.task_type.into(),
            tensors,
        })
    }

    /// The factor B of each matrix: without them, the adapter changes nothing.
    pub(crate) fn out_factors(&self) -> impl Iterator<Item = WeightId> {
        self.matrices.iter().map(|matrix| matrix.b)
    }

    /// Cuts off a sequence at the maximum length.
    pub(crate) fn cut(&self, sequence: &TrainSequence) -> TrainSequence {
        TrainSequence {
            ids: sequence.ids[..sequence.ids.len().min(self.options.max_length)].to_vec(),
            first_label: sequence.first_label,
        }
    }

    /// Cuts off sequences at the maximum length and drops those without labels.
    fn fitting(&self, sequences: &[TrainSequence]) -> Vec<TrainSequence> {
        let cut = sequences.iter().map(|sequence| self.cut(sequence));
        cut.filter(|sequence| sequence.labels() > 0).collect()
    }

    /// Trains one step on sequences, in as many micro-batches as needed.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub async fn step(&mut self, sequences: &[TrainSequence], rate: f32) -> Result<StepReport> {
        let batches = self.trainer.split(sequences);
        self.trainer.step(&batches, rate).await
    }

    /// Computes the mean loss of sequences.
    ///
    /// # Errors
    /// As [`Trainer::evaluate`].
    pub async fn evaluate(&mut self, sequences: &[TrainSequence]) -> Result<f32> {
        let fitting = self.fitting(sequences);
        let mut sum = 0.0;
        let mut all = 0;
        for batch in self.trainer.split(&fitting) {
            let labels: usize = batch.iter().map(TrainSequence::labels).sum();
            sum += f64::from(self.trainer.evaluate(batch).await?) * labels as f64;
            all += labels;
        }
        Ok((sum / all.max(1) as f64) as f32)
    }

    /// Starts a run over sequences; [`LoraRun::step`] goes on with it.
    ///
    /// # Errors
    /// `Request` for data without labels.
    pub fn start(&self, sequences: &[TrainSequence]) -> Result<LoraRun> {
        let sequences = self.fitting(sequences);
        if sequences.is_empty() {
            return Err(Error::Request {
                parameter: "dataset".into(),
                reason: "no token contributes to the loss. Add longer documents, or answers to the conversations.".into(),
            });
        }
        Ok(LoraRun {
            steps: self.options.steps(sequences.len()),
            sequences,
        })
    }

    /// Trains all epochs. `progress` runs after each step and may end the run early.
    ///
    /// # Errors
    /// `Request` for data without labels; errors of a step.
    pub async fn train(
        &mut self,
        sequences: &[TrainSequence],
        progress: &mut dyn FnMut(TrainProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut run = self.start(sequences)?;
        while let Some(done) = run.step(self).await? {
            if progress(done).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// All epochs over some sequences, step by step.
#[derive(Debug)]
pub struct LoraRun {
    sequences: Vec<TrainSequence>,
    steps: EpochSteps,
}

impl LoraRun {
    /// Steps of the run.
    pub fn steps(&self) -> usize {
        self.steps.schedule.steps
    }

    /// Trains the next step; `None` at the end.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`].
    pub async fn step(&mut self, trainer: &mut LoraTrainer) -> Result<Option<TrainProgress>> {
        let Some(next) = self.steps.next() else {
            return Ok(None);
        };
        let own = |index: &usize| self.sequences[*index].clone();
        let batch: Vec<TrainSequence> = next.items.iter().map(own).collect();
        let report = trainer.step(&batch, next.learning_rate).await?;
        let tokens = batch.iter().map(|sequence| sequence.ids.len()).sum();
        Ok(Some(TrainProgress::new(&next, report, tokens)))
    }
}

/// Returns the last part of a tensor's name before `.weight`.
fn last_name(tensor: &str) -> &str {
    let stem = tensor.strip_suffix(".weight").unwrap_or(tensor);
    stem.rsplit('.').next().unwrap_or(stem)
}

/// Returns the updates of the targets in a graph.
fn updates_of(
    graph: &Graph,
    names: &[[String; 2]],
    files: &ModelFiles,
    options: &LoraOptions,
) -> Result<Vec<LowRankUpdate>> {
    let mut updates: Vec<LowRankUpdate> = Vec::new();
    let mut known: Vec<&str> = Vec::new();
    for node in &graph.nodes {
        let Op::Linear(linear) = &node.op else {
            continue;
        };
        let weight = graph.weight(linear.weight);
        let [(name, _)] = &weight.parts[..] else {
            continue;
        };
        let Some([_, module]) = names.iter().find(|[stored, _]| stored == name) else {
            continue;
        };
        // The rows of an update would have to be ordered as those of the checkpoint.
        let is_ordered = arch::row_order(&files.config, name)?.is_some();
        if weight.kind != WeightKind::Matrix || is_ordered {
            continue;
        }
        let target = last_name(name);
        if !known.contains(&target) {
            known.push(target);
        }
        let is_target = options.targets.is_empty() || options.targets.iter().any(|t| t == target);
        if is_target && updates.iter().all(|update| update.matrix != *name) {
            let stem = module.strip_suffix(".weight").unwrap_or(module);
            updates.push(LowRankUpdate {
                matrix: name.clone(),
                a: format!("{PREFIX}{stem}.lora_A.weight"),
                b: format!("{PREFIX}{stem}.lora_B.weight"),
                rank: options.rank,
                scale: options.alpha / options.rank as f32,
                magnitude: None,
            });
        }
    }
    let missing = options
        .targets
        .iter()
        .find(|target| !known.contains(&&target[..]));
    match missing {
        Some(target) => Err(Error::Request {
            parameter: "targets".into(),
            reason: format!(
                "{} has no matrix '{target}' that can be trained. Use {}.",
                graph.name,
                known.join(", ")
            ),
        }),
        None => Ok(updates),
    }
}

fn matrix_of(graph: &Graph, update: LowRankUpdate) -> Result<LoraMatrix> {
    let find = |name: &str| {
        let found = graph
            .weights
            .iter()
            .position(|weight| weight.parts.len() == 1 && weight.parts[0].0 == name);
        found
            .map(WeightId)
            .ok_or_else(|| Error::Internal(format!("{name} is not in the graph")))
    };
    let a = find(&update.a)?;
    let b = find(&update.b)?;
    Ok(LoraMatrix {
        size: [graph.weight(a).cols, graph.weight(b).rows()],
        a,
        b,
        update,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_bounds_are_refused() {
        let options = LoraOptions {
            rank: 0,
            ..LoraOptions::default()
        };
        let error = options.check().expect_err("no rank");
        assert!(error.to_string().contains("rank"), "{error}");
        assert!(LoraOptions::default().check().is_ok());
        assert_eq!(LoraOptions::default().schedule(81).steps, 11);
    }
}
