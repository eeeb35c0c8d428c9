//! Activation checkpointing: the bits of losses, gradients and weights, and the memory.

use super::lora::{stories, trainer};
use super::models::{NO_UPDATE, sequences, train_all};
use jerboa::arch;
use jerboa::exec::ModelFiles;
use jerboa_tests::golden::{Golden, golden, open};
use jerboa_train::batch::TrainSequence;
use jerboa_train::checkpointing::{Checkpointing, Segments};
use jerboa_train::kernels::update::Optimizer;
use jerboa_train::lora::LoraOptions;
use jerboa_train::tape::with_logits_of_all_rows;
use jerboa_train::trainer::{TrainMemory, TrainerOptions};
use pollster::block_on;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All weights of models: head norms, windows, soft caps, short convolutions with biases, tied
/// embeddings.
#[test]
fn losses_gradients_and_weights_have_the_same_bits() {
    for name in ["llama", "qwen3", "gemma3", "lfm2_bias"] {
        let file = Golden::read(&golden(&format!("train/{name}.safetensors")));
        let batch = sequences(&file, "");
        let run = |checkpointing: bool| {
            let options = TrainerOptions {
                optimizer: Optimizer::ADAMW,
                checkpointing,
                ..NO_UPDATE
            };
            let mut trainer = train_all(&golden(&format!("models/{name}")), options);
            let mut found = Vec::new();
            for _ in 0..3 {
                // Two micro-batches, whose gradients add.
                let parts = [&batch[..2], &batch[2..]];
                let report = block_on(trainer.step(&parts, 1e-2)).expect("a step");
                found.push(bits(&[report.loss, report.gradient_norm]));
            }
            for id in trainer.trained().clone() {
                let gradient = block_on(trainer.gradient(id)).expect("a gradient");
                let weight = block_on(trainer.weight(id)).expect("a weight");
                found.extend([bits(&gradient), bits(&weight)]);
            }
            let evaluated = block_on(trainer.evaluate(&batch)).expect("a loss");
            let logits = block_on(trainer.logits(&batch[0].ids)).expect("logits");
            found.extend([bits(&[evaluated]), bits(&logits)]);
            found
        };
        let [stored, recomputed] = [false, true].map(run);
        assert_eq!(stored.len(), recomputed.len());
        for (index, (stored, recomputed)) in stored.iter().zip(&recomputed).enumerate() {
            assert!(stored == recomputed, "{name}: result {index} differs");
        }
    }
}

#[test]
fn adapters_have_the_same_bits_in_less_memory() {
    for name in ["", "phi2", "gpt2", "gemma2", "granite", "gpt_neox"] {
        let folder = match name {
            "" => stories(),
            name => golden(&format!("models/{name}")),
        };
        let run = |checkpointing: Checkpointing| {
            let options = LoraOptions {
                rank: 4,
                max_length: 24,
                batch_size: 3,
                checkpointing,
                ..LoraOptions::default()
            };
            let mut lora = trainer(&folder, options).expect("a trainer");
            let sequence = |first: u32| TrainSequence::whole((first..first + 20).collect());
            let batch = [sequence(5), sequence(9), sequence(40)];
            let losses: Vec<f32> = (0..4)
                .map(|_| block_on(lora.step(&batch, 1e-2)).expect("a step").loss)
                .collect();
            let adapter = block_on(lora.adapter()).expect("an adapter");
            (lora.memory(), bits(&losses), adapter)
        };
        let (stored, losses, adapter) = run(Checkpointing::Never);
        let (memory, same_losses, same_adapter) = run(Checkpointing::Always);
        assert_eq!(losses, same_losses, "{name}");
        assert!(adapter == same_adapter, "{name}: the adapters differ");
        assert_eq!([stored.checkpointing, memory.checkpointing], [false, true]);
        // The golden models have two layers, stories260K five.
        let limit = if name.is_empty() { 0.6 } else { 0.95 };
        let ratio = memory.activations as f64 / stored.activations as f64;
        assert!(ratio < limit, "{name}: {ratio} of the activations");
    }
}

/// A boundary stores one value: the residual stream after attention or after the MLP.
#[test]
fn segments_end_where_only_the_residual_stream_goes_on() {
    let files = block_on(async { ModelFiles::open(&open(&stories()).await?, None).await });
    let graph = arch::graph(&files.expect("a model").config).expect("a graph");
    let graph = with_logits_of_all_rows(graph);
    for boundaries in 1..5 {
        let segments = Segments::between_boundaries(&graph, boundaries);
        assert_eq!(segments.stored.len(), segments.nodes.len() - 1);
        for value in &segments.stored {
            let name = &graph.value(*value).name;
            let is_residual = name.ends_with("residual") || name.ends_with("embed_tokens");
            assert!(is_residual || name == "model.norm", "{name} is stored");
        }
        let mut next = 0;
        for nodes in &segments.nodes {
            assert_eq!(nodes.start, next);
            next = nodes.end;
        }
        assert_eq!(next, graph.nodes.len(), "every node is in a segment");
    }
    assert_eq!(Segments::whole(&graph).nodes.len(), 1);
}

#[test]
fn a_run_checkpoints_before_its_micro_batches_get_small() {
    let fit = |checkpointing: Checkpointing, max_memory: Option<u64>| {
        let options = LoraOptions {
            rank: 4,
            max_length: 256,
            max_memory,
            checkpointing,
            ..LoraOptions::default()
        };
        trainer(&stories(), options).map(|lora| lora.memory())
    };
    let whole = fit(Checkpointing::Auto, None).expect("a trainer");
    assert!(!whole.checkpointing, "not without need");
    let others = whole.trained + whole.frozen;
    let with = |activations: u64| Some(others + activations);
    let half = fit(Checkpointing::Auto, with(whole.activations / 2)).expect("half");
    assert_eq!(
        (half.checkpointing, half.activations),
        (false, whole.activations / 2),
        "1,024 tokens are a useful size"
    );
    let auto = fit(Checkpointing::Auto, with(whole.activations / 6)).expect("a sixth");
    let never = fit(Checkpointing::Never, with(whole.activations / 6)).expect("256 tokens");
    let always = fit(Checkpointing::Always, None).expect("a trainer");
    assert_eq!((auto.checkpointing, never.checkpointing), (true, false));
    let tokens = |memory: TrainMemory, of: TrainMemory| 2048 * memory.activations / of.activations;
    assert_eq!(tokens(never, whole), 256);
    assert_eq!(tokens(auto, always), 512, "{auto:?} of {always:?}");
    // Too little for one sequence without checkpointing.
    let short = with(whole.activations / 10);
    assert!(
        fit(Checkpointing::Auto, short)
            .expect("a tenth")
            .checkpointing
    );
    let error = fit(Checkpointing::Never, short).expect_err("too large");
    let told = error.to_string();
    assert!(told.contains("Set 'checkpointing' to 'auto'"), "{told}");
    let error = fit(Checkpointing::Auto, with(whole.activations / 40)).expect_err("too large");
    let told = error.to_string();
    assert!(told.contains("MB with checkpointing"), "{told}");
    assert!(told.contains("'maxLength' below 256"), "{told}");
    for name in ["auto", "true", "false"] {
        assert!(Checkpointing::from_name(name).is_ok());
    }
    let error = Checkpointing::from_name("on").expect_err("no value");
    assert!(
        error.to_string().contains("'auto', true or false"),
        "{error}"
    );
}
