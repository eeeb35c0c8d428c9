//! The losses that tests/page/train.test.mjs expects of the training in a page, and refusals of what
//! does not fit the device.

use super::lora::{stories, trainer};
use jerboa::task::TextPipeline;
use jerboa_tests::golden::{golden, open};
use jerboa_train::batch::{PreferencePair, TrainSequence};
use jerboa_train::dataset::{split_evaluation, text_sequences};
use jerboa_train::lora::{LoraOptions, LoraTrainer};
use jerboa_train::preference::PreferenceMetrics;
use jerboa_train::preference_data::{TrainData, preference_pair};
use jerboa_train::run::{RunData, TrainRun};
use jerboa_train::schedule::Decay;
use pollster::block_on;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Set to write tests/golden/train/page.json.
pub const WRITE: &str = "JERBOA_WRITE_LOSSES";

pub fn options(given: &Value) -> LoraOptions {
    let number = |name: &str| given[name].as_f64().unwrap_or_else(|| panic!("{name}"));
    let defaults = match given["dpo"]["beta"].as_f64() {
        Some(beta) => LoraOptions::for_pairs(Some(beta as f32)),
        None => LoraOptions::default(),
    };
    LoraOptions {
        rank: number("rank") as usize,
        alpha: number("alpha") as f32,
        epochs: number("epochs") as usize,
        batch_size: number("batchSize") as usize,
        learning_rate: number("learningRate") as f32,
        decay: Decay::Cosine,
        max_length: number("maxLength") as usize,
        seed: number("seed") as u64,
        ..defaults
    }
}

/// The file of expected losses.
fn expected_losses() -> (PathBuf, Value) {
    let path = golden("train/page.json");
    let text = std::fs::read_to_string(&path).expect("the expected losses");
    (path, serde_json::from_str(&text).expect("JSON"))
}

/// Replaces the file's entries of a run when asked to; tests run at once.
fn write(path: &Path, of: impl FnOnce(&mut Value)) -> bool {
    static WRITING: Mutex<()> = Mutex::new(());
    let is_asked = std::env::var_os(WRITE).is_some();
    if is_asked {
        let _writing = WRITING.lock().expect("no other test failed");
        let (_, mut all) = expected_losses();
        of(&mut all);
        std::fs::write(path, format!("{all:#}\n")).expect("the file is written");
    }
    is_asked
}

#[track_caller]
fn close(found: f32, expected: &Value) {
    let expected = expected.as_f64().expect("a number");
    let difference = (f64::from(found) - expected).abs();
    assert!(
        difference < 1e-3,
        "{found}, not {expected}: {WRITE}=1 writes them"
    );
}

#[test]
fn losses_are_those_expected_of_a_page() {
    let (path, expected) = expected_losses();
    let given = &expected["options"];
    let pipeline = block_on(async { TextPipeline::open(&open(&stories()).await?).await });
    let document = expected["text"].as_str().expect("a text");
    let options = options(given);
    let all = text_sequences(
        &pipeline.expect("a tokenizer"),
        document,
        options.max_length,
    );
    let all = all.expect("sequences");
    let share = given["evaluation"].as_f64().expect("a share") as f32;
    let (train, held) = split_evaluation(all, share);
    let mut lora = trainer(&stories(), options).expect("a trainer");
    let before = block_on(lora.evaluate(&held)).expect("a loss");
    let mut losses = Vec::new();
    let mut progress = |done: jerboa_train::lora::TrainProgress| {
        losses.push(done.report.loss);
        ControlFlow::Continue(())
    };
    block_on(lora.train(&train, &mut progress)).expect("a run");
    let after = block_on(lora.evaluate(&held)).expect("a loss");
    let is_written = write(&path, |expected| {
        expected["evaluationSequences"] = json!(held.len());
        expected["losses"] = json!(losses);
        expected["before"] = json!(before);
        expected["after"] = json!(after);
    });
    if is_written {
        return;
    }
    assert_eq!(json!(held.len()), expected["evaluationSequences"]);
    let wanted = expected["losses"].as_array().expect("losses");
    assert_eq!(losses.len(), wanted.len());
    for (loss, expected) in losses.iter().zip(wanted) {
        close(*loss, expected);
    }
    close(before, &expected["before"]);
    close(after, &expected["after"]);
}

#[test]
fn preferences_are_those_expected_of_a_page() {
    let (path, expected) = expected_losses();
    let expected = &expected["dpo"];
    let options = options(&expected["options"]);
    let pipeline = block_on(async { TextPipeline::open(&open(&stories()).await?).await });
    let pipeline = pipeline.expect("a tokenizer");
    let pairs = expected["pairs"].as_array().expect("pairs").iter();
    let fault = |reason: &str| jerboa::Error::Internal(reason.into());
    let pairs = pairs.map(|pair| preference_pair(&pipeline, pair, fault));
    let pairs: Vec<PreferencePair> = pairs.collect::<jerboa::Result<_>>().expect("pairs");
    let share = expected["options"]["evaluation"].as_f64().expect("a share") as f32;
    let data = RunData::split(TrainData::Pairs(pairs), share);
    let mut lora = trainer(&stories(), options.with_length_of(data.sequences())).expect("one");
    let mut run = lora.start_data(data).expect("a run");
    let measure = |run: &mut TrainRun, lora: &mut LoraTrainer| {
        let found = block_on(run.evaluate(lora))
            .expect("metrics")
            .expect("held out pairs");
        found.preference.expect("metrics of pairs")
    };
    let before = measure(&mut run, &mut lora);
    let mut steps = Vec::new();
    while let Some(done) = block_on(run.step(&mut lora)).expect("a step") {
        steps.push(done.preference.expect("metrics of pairs"));
    }
    let after = measure(&mut run, &mut lora);
    assert!(
        before.reward_margin.abs() < 1e-4 && after.reward_margin > 0.5,
        "{after:?}"
    );
    assert_eq!(after.reward_accuracy, 1.0);
    let of = |metrics: &PreferenceMetrics| {
        json!([metrics.loss, metrics.reward_margin, metrics.reward_accuracy])
    };
    let is_written = write(&path, |all| {
        all["dpo"]["steps"] = steps.iter().map(of).collect();
        all["dpo"]["before"] = of(&before);
        all["dpo"]["after"] = of(&after);
    });
    if is_written {
        return;
    }
    let check = |found: &PreferenceMetrics, expected: &Value| {
        close(found.loss, &expected[0]);
        close(found.reward_margin, &expected[1]);
        close(found.reward_accuracy, &expected[2]);
    };
    let wanted = expected["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), wanted.len());
    for (found, expected) in steps.iter().zip(wanted) {
        check(found, expected);
    }
    check(&before, &expected["before"]);
    check(&after, &expected["after"]);
}

#[test]
fn the_micro_batch_shrinks_to_the_memory_until_a_sequence_does_not_fit() {
    let memory = |max_memory: Option<u64>, max_length: usize, rank: usize, targets: &[&str]| {
        let options = LoraOptions {
            rank,
            max_length,
            max_memory,
            targets: targets.iter().map(|name| name.to_string()).collect(),
            ..LoraOptions::default()
        };
        trainer(&stories(), options).map(|lora| lora.memory())
    };
    let all = memory(None, 64, 4, &[]).expect("a trainer");
    let less = memory(Some(all.total() / 2), 64, 4, &[]).expect("a smaller micro-batch");
    assert!(less.total() <= all.total() / 2, "{less:?} of {all:?}");
    assert_eq!((less.trained, less.frozen), (all.trained, all.frozen));
    let checkpointed = memory(Some(8 << 20), 512, 8, &[]).expect("one sequence");
    assert!(checkpointed.checkpointing && checkpointed.total() <= 8 << 20);
    let refused = |limit: u64, max_length: usize, rank: usize, targets: &[&str], advice: &str| {
        let error = memory(Some(limit), max_length, rank, targets).expect_err("too large");
        assert_eq!(error.code(), "out_of_memory");
        assert!(error.to_string().contains(advice), "{error}");
    };
    refused(5 << 20, 512, 8, &[], "'maxLength' below 512");
    refused(8 << 20, 16, 1024, &[], "'rank' below 1024");
    refused(1 << 19, 8, 8, &[], "fewer 'targets'");
    refused(1 << 19, 8, 1, &["q_proj"], "fewer bits");
}

#[test]
fn spread_sequences_measure_the_loss() {
    let sequences: Vec<TrainSequence> =
        (0..6).map(|id| TrainSequence::whole(vec![id; 3])).collect();
    for (count, share, expected) in [
        (6, 0.0, &[][..]),
        (6, 0.1, &[3]),
        (6, 0.5, &[1, 3, 5]),
        (6, 1.0, &[0, 1, 3, 4, 5]),
        (5, 0.4, &[1, 3]),
        (1, 0.5, &[]),
        (0, 0.5, &[]),
    ] {
        let (train, held) = split_evaluation(sequences[..count].to_vec(), share);
        let ids = |of: &[TrainSequence]| of.iter().map(|s| s.ids[0]).collect::<Vec<u32>>();
        assert_eq!(ids(&held), expected, "{share} of {count}");
        let others = (0..count as u32).filter(|id| !expected.contains(id));
        assert_eq!(ids(&train), others.collect::<Vec<u32>>());
    }
    let options = LoraOptions::default().with_length_of(&sequences);
    assert_eq!(options.max_length, 3);
}
