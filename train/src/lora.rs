//! Trains LoRA adapters (arXiv 2106.09685) of a text model, whose own weights stay as they are
//! stored: 4-bit and 8-bit weights too. The result is peft's format.

mod options;

pub use options::{DEFAULT_BETA, LoraOptions};

use crate::adapter::{AdapterTensor, CAUSAL_LM, LoraAdapter};
use crate::batch::TrainSequence;
use crate::preference::PreferenceMetrics;
use crate::random::uniform;
use crate::schedule::{EpochStep, EpochSteps};
use crate::trainer::{StepReport, TrainMemory, Trainer};
use jerboa::exec::{GraphWeights, ModelFiles};
use jerboa::gpu::{Backend, Gpu};
use jerboa::hub::Source;
use jerboa::ir::{Graph, LowRankUpdate, Op, WeightId, WeightKind, add_low_rank_updates};
use jerboa::{Error, Result, SortedSet, arch};
use std::ops::ControlFlow;
use std::rc::Rc;

/// What peft puts before the names of the model's tensors.
const PREFIX: &str = "base_model.model.";

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
