//! A LoRA of SmolLM2-135M, compared with peft's on the same weights
//! (tests/golden/scripts/make_real_lora.py): losses, and logits with peft's and with the engine's
//! adapter.

use super::{Report, facts, ids, repository};
use jerboa::exec::{ModelFiles, PrecisionOptions};
use jerboa::gpu::DeviceOptions;
use jerboa_tests::golden::{hashed, open};
use jerboa_tests::relative_l2;
use jerboa_train::adapter::{CONFIG_FILE, LoraAdapter, WEIGHTS_FILE};
use jerboa_train::batch::TrainSequence;
use jerboa_train::lora::{LoraOptions, LoraTrainer};
use pollster::block_on;
use serde_json::{Value, json};
use std::path::Path;
use std::rc::Rc;

/// As in make_real_lora.py.
const REPO: &str = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF";
const LEARNING_RATE: f32 = 4e-3;
const EVALUATION_STEPS: usize = 3;
const STRIDE: usize = 63;
/// Largest relative difference of a loss.
const LOSS_LIMIT: f64 = 0.02;

/// The trainer of make_real_lora.py, over the weights as the file stores them.
fn trainer() -> LoraTrainer {
    let options = LoraOptions {
        rank: 8,
        alpha: 16.0,
        targets: vec!["q_proj".into(), "v_proj".into()],
        batch_size: 1,
        max_length: 64,
        precision: PrecisionOptions::default(),
        ..LoraOptions::default()
    };
    let loaded = block_on(async {
        let gpu = Rc::new(jerboa_tests::open(&DeviceOptions::default()));
        let source = open(&repository(REPO)).await?;
        let files = ModelFiles::open(&source, None).await?;
        LoraTrainer::load(gpu, &source, &files, REPO, options).await
    });
    loaded.unwrap_or_else(|error| panic!("{REPO}: {error}"))
}

/// Sets A to hashed numbers and B to `second` times hashed ones.
fn set_factors(lora: &LoraTrainer, second: f32) {
    let mut adapter = block_on(lora.adapter()).expect("an adapter");
    for tensor in &mut adapter.tensors {
        let [rows, cols] = tensor.shape;
        let scale = if tensor.name.contains("lora_A") {
            1.0 / (cols as f32).sqrt()
        } else {
            second
        };
        tensor.values = hashed(&tensor.name, rows * cols, scale, 0.0);
    }
    lora.set_adapter(&adapter).expect("the same matrices");
}

/// The logits of a sequence's last row.
fn last_logits(lora: &mut LoraTrainer, ids: &[u32]) -> Vec<f32> {
    let logits = block_on(lora.trainer().logits(ids)).expect("logits");
    let vocab = logits.len() / ids.len();
    logits[logits.len() - vocab..].to_vec()
}

fn sequences(value: &Value) -> Vec<TrainSequence> {
    let lists = value.as_array().expect("sequences").iter();
    lists.map(|own| TrainSequence::whole(ids(own))).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).expect("numbers")
}

/// Compares logits with every 63rd of the reference.
fn compare_logits(report: &mut Report, what: &str, found: &[f32], expected: &Value, limit: f64) {
    let found: Vec<f32> = found.iter().copied().step_by(STRIDE).collect();
    let expected: Vec<f32> = numbers(expected).iter().map(|v| *v as f32).collect();
    let error = relative_l2(&found, &expected);
    let value = format!("relative L2 {error:.1e}");
    report.check(what, error < limit, &value);
}

/// Compares losses with the reference.
fn compare_losses(report: &mut Report, what: &str, found: &[f32], expected: &Value) {
    let expected = numbers(expected);
    let error = found
        .iter()
        .zip(&expected)
        .map(|(found, expected)| (f64::from(*found) / expected - 1.0).abs())
        .fold(0.0, f64::max);
    let value = format!("{found:.4?}, relative difference up to {error:.1e}");
    let is_same = found.len() == expected.len() && error < LOSS_LIMIT;
    report.check(what, is_same, &value);
}

/// Writes what `make_real_lora.py DIR --check FOLDER` loads into peft.
fn save(folder: &Path, adapter: &LoraAdapter, ids: &[u32], logits: &[f32]) {
    std::fs::create_dir_all(folder).expect("a folder");
    let logits = json!({ "ids": ids, "logits": logits }).to_string();
    for (name, bytes) in [
        (CONFIG_FILE, adapter.config().into_bytes()),
        (WEIGHTS_FILE, adapter.safetensors()),
        ("logits.json", logits.into_bytes()),
    ] {
        std::fs::write(folder.join(name), bytes).expect(name);
    }
}

#[test]
fn smollm2_lora() {
    let facts = facts("smollm2-lora");
    let mut report = Report::new("smollm2-lora");
    let [train, held] = ["sequences", "held"].map(|key| sequences(&facts[key]));
    let mut lora = trainer();
    set_factors(&lora, 0.02);
    let logits = last_logits(&mut lora, &train[0].ids);
    compare_logits(
        &mut report,
        "logits with one adapter",
        &logits,
        &facts["hashed"],
        1e-3,
    );

    set_factors(&lora, 0.0);
    let evaluate = |lora: &mut LoraTrainer| block_on(lora.evaluate(&held)).expect("a loss");
    let mut evaluations = vec![evaluate(&mut lora)];
    let mut losses = Vec::new();
    for (index, sequence) in train.iter().enumerate() {
        let batch = std::slice::from_ref(sequence);
        let step = block_on(lora.step(batch, LEARNING_RATE)).expect("a step");
        losses.push(step.loss);
        if (index + 1) % EVALUATION_STEPS == 0 {
            evaluations.push(evaluate(&mut lora));
        }
    }
    compare_losses(
        &mut report,
        "losses of the steps",
        &losses,
        &facts["losses"],
    );
    compare_losses(
        &mut report,
        "evaluation losses",
        &evaluations,
        &facts["evaluations"],
    );
    let fall = evaluations[0] - evaluations[evaluations.len() - 1];
    report.check(
        "the evaluation loss falls",
        fall > 0.2,
        &format!("by {fall:.3}"),
    );

    let logits = last_logits(&mut lora, &train[0].ids);
    compare_logits(
        &mut report,
        "logits after the training",
        &logits,
        &facts["trained"],
        2e-2,
    );
    let adapter = block_on(lora.adapter()).expect("an adapter");
    let shapes: serde_json::Map<String, Value> = adapter
        .tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), json!(tensor.shape)))
        .collect();
    report.check(
        "the tensors that peft saves",
        Value::Object(shapes) == facts["tensors"],
        &format!("{} tensors", adapter.tensors.len()),
    );
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smollm2-lora");
    save(&folder, &adapter, &train[0].ids, &logits);
    println!(
        "adapter for make_real_lora.py --check: {}",
        folder.display()
    );
    report.finish();
}
