//! Gradients and training runs of whole models against PyTorch (tests/golden/scripts/make_train.py).

use jerboa::exec::{GraphWeights, ModelFiles, Precision, PrecisionOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::ir::{Graph, WeightId, WeightKind};
use jerboa::{SortedSet, arch};
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_tests::relative_l2;
use jerboa_train::batch::TrainSequence;
use jerboa_train::kernels::update::Optimizer;
use jerboa_train::schedule::{Decay, Schedule};
use jerboa_train::tape::TrainLoss;
use jerboa_train::trainer::{Trainer, TrainerOptions};
use pollster::block_on;
use std::path::Path;
use std::rc::Rc;

/// The trainer of all weights of a model, in f32.
pub(super) fn train_all(folder: &Path, options: TrainerOptions) -> Trainer {
    block_on(async {
        let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
        let source = open(folder).await.expect("a folder");
        let files = ModelFiles::open(&source, None).await.expect("a model");
        let graph = arch::graph(&files.config).expect("a graph");
        let overrides = PrecisionOptions {
            precision: Precision::F32,
            tables: Precision::F32,
            ..PrecisionOptions::default()
        };
        let plans = GraphWeights::plan(&gpu, &files, &graph, overrides).expect("plans");
        let weights = GraphWeights::load(&gpu, &source, &files, &graph, plans).await;
        let trained: SortedSet<WeightId> = graph.used_weights().into_iter().collect();
        let trainer = Trainer::new(gpu, graph, weights.expect("weights"), trained, options);
        trainer.await.expect("a trainer")
    })
}

pub(super) fn sequences(file: &Golden, prefix: &str) -> Vec<TrainSequence> {
    let ids = file.ints(&format!("{prefix}ids"));
    let mut ids = ids.into_iter().map(|id| id as u32);
    let lengths = file.ints(&format!("{prefix}lengths"));
    let take = |length: i32| TrainSequence::whole(ids.by_ref().take(length as usize).collect());
    lengths.into_iter().map(take).collect()
}

/// Every fifth element of a gradient and its norm, as the golden files have them.
pub(super) fn sampled(gradient: &[f32]) -> Vec<f32> {
    let norm = gradient
        .iter()
        .map(|g| f64::from(*g).powi(2))
        .sum::<f64>()
        .sqrt();
    let mut sampled: Vec<f32> = gradient.iter().copied().step_by(5).collect();
    sampled.push(norm as f32);
    sampled
}

/// Names and gradients of the checkpoint tensors of a weight.
pub(super) fn tensors(graph: &Graph, id: WeightId, gradient: &[f32]) -> Vec<(String, Vec<f32>)> {
    let weight = graph.weight(id);
    let mut first = 0;
    let part = |(name, rows): &(String, usize)| {
        let end = first + rows * weight.cols;
        let own = gradient[first..end].to_vec();
        first = end;
        (name.clone(), own)
    };
    weight.parts.iter().map(part).collect()
}

/// Compares the gradients of all trained weights with those of a golden file; those of tensors that
/// `is_zero` names, with zero. Returns the number of tensors.
pub(super) fn compare_gradients(
    what: &str,
    trainer: &Trainer,
    file: &Golden,
    is_zero: impl Fn(&str) -> bool,
) -> usize {
    let mut compared = 0;
    for id in trainer.trained().clone() {
        let gradient = block_on(trainer.gradient(id)).expect("a gradient");
        for (tensor, found) in tensors(trainer.graph(), id, &gradient) {
            let found = sampled(&found);
            let expected = file.floats(&format!("grad.{tensor}"));
            compared += 1;
            if is_zero(&tensor) {
                assert!(found.iter().all(|g| g.abs() < 1e-4), "{what}: {tensor}");
                continue;
            }
            let error = relative_l2(&found, &expected);
            assert!(error < 1e-4, "{what}: {tensor}: relative L2 {error:e}");
        }
    }
    compared
}

pub(super) const NO_UPDATE: TrainerOptions = TrainerOptions {
    optimizer: Optimizer::Sgd { momentum: 0.0 },
    weight_decay: 0.0,
    max_norm: 0.0,
    max_tokens: 64,
    checkpointing: false,
    loss: TrainLoss::CrossEntropy,
};

#[test]
fn gradients_of_models_equal_those_of_pytorch() {
    for name in ["llama", "qwen3", "gemma3", "lfm2_bias"] {
        let file = Golden::read(&golden(&format!("train/{name}.safetensors")));
        let mut batch = sequences(&file, "");
        for (sequence, first) in batch.iter_mut().zip(file.ints("firsts")) {
            sequence.first_label = first as usize;
        }
        let mut trainer = train_all(&golden(&format!("models/{name}")), NO_UPDATE);
        let evaluated = block_on(trainer.evaluate(&batch)).expect("a loss");
        let loss = block_on(trainer.compute_gradients(&batch)).expect("gradients");
        assert_eq!(loss, evaluated, "{name}: an evaluation has the same loss");
        let expected = file.floats("loss")[0];
        assert!(
            (loss - expected).abs() < 1e-4,
            "{name}: loss {loss}, not {expected}"
        );
        let compared = compare_gradients(name, &trainer, &file, |_| false);
        assert!(compared > 20, "{name}: {compared} tensors");
    }
}

/// A run over all weights of the tiny Llama.
struct TrainingRun {
    options: TrainerOptions,
    schedule: Schedule,
    /// Micro-batches of two sequences per step.
    per_step: usize,
}

impl TrainingRun {
    /// Losses of the first steps.
    fn losses(&self, steps: usize) -> Vec<f32> {
        let file = Golden::read(&golden("train/llama.safetensors"));
        let all = sequences(&file, "run.");
        let pairs: Vec<&[TrainSequence]> = all.chunks(2).collect();
        let mut trainer = train_all(&golden("models/llama"), self.options);
        let mut losses = Vec::with_capacity(steps);
        for step in 0..steps {
            let first = step * self.per_step;
            let own: Vec<&[TrainSequence]> = (first..first + self.per_step)
                .map(|index| pairs[index % pairs.len()])
                .collect();
            let report = block_on(trainer.step(&own, self.schedule.rate(step)));
            losses.push(report.expect("a step").loss);
        }
        losses
    }

    /// Compares 200 steps with PyTorch's, and the first of them with those of another run.
    #[track_caller]
    fn check(&self, name: &str, again: usize) {
        let found = self.losses(200);
        let file = Golden::read(&golden("train/llama.safetensors"));
        let expected = file.floats(name);
        assert_eq!(found.len(), expected.len());
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() < 1e-3,
                "{name}, step {step}: {found}, not {expected}"
            );
        }
        assert!(expected[199] < 0.05 * expected[0], "nothing was learned");
        let bits =
            |losses: &[f32]| -> Vec<u32> { losses.iter().map(|loss| loss.to_bits()).collect() };
        let repeated = bits(&self.losses(again));
        assert_eq!(
            bits(&found)[..again],
            repeated,
            "{name}: the same bits twice"
        );
    }
}

#[test]
fn two_hundred_steps_of_sgd() {
    let run = TrainingRun {
        options: TrainerOptions {
            optimizer: Optimizer::Sgd { momentum: 0.9 },
            max_tokens: 32,
            ..NO_UPDATE
        },
        schedule: Schedule::constant(0.02),
        per_step: 1,
    };
    run.check("sgd", 60);
}

#[test]
fn two_hundred_steps_of_adamw() {
    let run = TrainingRun {
        options: TrainerOptions {
            optimizer: Optimizer::ADAMW,
            weight_decay: 0.01,
            max_norm: 1.0,
            max_tokens: 32,
            ..NO_UPDATE
        },
        schedule: Schedule {
            peak: 1e-3,
            warm_up: 20,
            steps: 199,
            decay: Decay::Cosine,
        },
        per_step: 2,
    };
    run.check("adamw", 30);
}

#[test]
fn what_has_no_gradient_is_refused_by_name() {
    block_on(async {
        for (name, told) in [
            ("mixtral", "training through"),
            ("qwen3_next", "training through"),
        ] {
            let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
            let source = open(&golden(&format!("models/{name}")))
                .await
                .expect("a folder");
            let files = ModelFiles::open(&source, None).await.expect("a model");
            let graph = arch::graph(&files.config).expect("a graph");
            let overrides = PrecisionOptions::default();
            let plans = GraphWeights::plan(&gpu, &files, &graph, overrides).expect("plans");
            let weights = GraphWeights::load(&gpu, &source, &files, &graph, plans).await;
            let norms = graph.used_weights().into_iter();
            let trained = norms
                .filter(|id| graph.weight(*id).kind == WeightKind::Vector)
                .collect();
            let made =
                Trainer::new(gpu, graph, weights.expect("weights"), trained, NO_UPDATE).await;
            let error = made.err().expect(name);
            assert!(error.to_string().contains(told), "{name}: {error}");
        }
    });
}
