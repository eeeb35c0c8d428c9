//! Preference pairs (DPO): kernels, gradients and runs against PyTorch
//! (tests/golden/scripts/make_dpo.py).

use super::gradients::check;
use super::lora::{trainer, with_template};
use crate::{assert_close, run_as_each_device, unwritten, wide};
use jerboa::task::TextPipeline;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::{bytes, random, relative_l2};
use jerboa_train::adapter::{CONFIG_FILE, LoraAdapter, WEIGHTS_FILE};
use jerboa_train::batch::{PreferencePair, TrainSequence};
use jerboa_train::checkpointing::Checkpointing;
use jerboa_train::kernels::contiguous;
use jerboa_train::kernels::loss::IGNORED;
use jerboa_train::kernels::preference::PreferenceShape;
use jerboa_train::lora::{LoraOptions, LoraTrainer, TrainProgress};
use jerboa_train::preference::PreferenceMetrics;
use jerboa_train::preference_data::{TrainData, file_data, preference_pair};
use jerboa_train::reference::loss::cross_entropy;
use jerboa_train::reference::preference::{PairLoss, pair_loss};
use jerboa_train::schedule::Decay;
use jerboa_train::tape::TrainLoss;
use pollster::block_on;
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// The beta of make_dpo.py.
const BETA: f32 = 0.3;

/// The log-probability of an answer: the negative losses of its rows.
fn log_probability(losses: &[f64], span: &[u32]) -> f64 {
    -losses[span[0] as usize..span[1] as usize]
        .iter()
        .sum::<f64>()
}

#[test]
fn losses_of_pairs_and_their_gradients() {
    // Rows that no workgroup divides, a pair of one row each, and slots without a pair.
    let spans: [[u32; 4]; 5] = [
        [0, 70, 70, 201],
        [201, 202, 202, 203],
        [203, 210, 210, 215],
        [0; 4],
        [0; 4],
    ];
    let [rows, cols, pairs] = [217, 37, spans.len()];
    let logits: Vec<f32> = random(1, rows * cols).iter().map(|v| v * 4.0).collect();
    let labels: Vec<Option<u32>> = (0..rows as u32)
        .map(|row| (row % 5 != 3 && row < 215).then_some(row * 31 % cols as u32))
        .collect();
    let words: Vec<u32> = labels
        .iter()
        .map(|label| label.unwrap_or(IGNORED))
        .collect();
    let [losses, plain] = cross_entropy(&wide(&logits), &labels, cols, 1.0);
    let answers =
        |span: &[u32; 4]| [&span[..2], &span[2..]].map(|answer| log_probability(&losses, answer));
    // Log-ratios of either order, and so far apart that the sigmoid saturates.
    let offsets = [
        [0.5, -2.0],
        [-3.0, 0.0],
        [-900.0, 900.0],
        [7.0, 7.0],
        [7.0, 7.0],
    ];
    let references: Vec<[f32; 2]> = spans
        .iter()
        .zip(offsets)
        .map(|(span, offset)| {
            let own = answers(span);
            [0, 1].map(|answer: usize| own[answer] as f32 + offset[answer])
        })
        .collect();
    let before = [1.0f32, 2.0, 3.0, 4.0];
    let contents = [
        bytes(&logits),
        bytes(&words),
        unwritten(rows),
        bytes(&spans),
        bytes(&references),
        unwritten(pairs * 4),
        bytes(&before),
        bytes(&[0.125f32; 8]),
        bytes(&vec![0.0f32; rows]),
        bytes(&logits),
        unwritten(pairs * 4),
        bytes(&before),
    ];
    let shape = |results: usize, sums: usize| PreferenceShape {
        rows,
        cols,
        pairs,
        beta: 0.2,
        labels: 1,
        losses: 2,
        spans: 3,
        references: 4,
        results,
        sums,
    };
    let mut launches = shape(5, 6).launches(&contiguous(0, cols), None);
    launches.extend(shape(10, 11).launches(&contiguous(9, cols), Some([7, 8])));

    let mut results: Vec<[f64; 4]> = Vec::new();
    let mut scales = vec![0.0; rows];
    for (span, reference) in spans.iter().zip(&references) {
        if span[0] == span[1] {
            results.push([0.0; 4]);
            continue;
        }
        let PairLoss {
            loss,
            log_ratios: [chosen, rejected],
            gradient,
        } = pair_loss(answers(span), reference.map(f64::from), f64::from(0.2f32));
        let is_preferred = f64::from(u8::from(chosen > rejected));
        results.push([loss, chosen, rejected, is_preferred]);
        for (answer, slope) in [&span[..2], &span[2..]].into_iter().zip(gradient) {
            // A row's loss is the negative of its log-probability.
            scales[answer[0] as usize..answer[1] as usize].fill(-slope * 0.125);
        }
    }
    let gradient: Vec<f64> = plain
        .chunks_exact(cols)
        .zip(&scales)
        .flat_map(|(row, scale)| row.iter().map(move |g| g * scale))
        .collect();
    let sums: Vec<f64> = (0..4)
        .map(|c| f64::from(before[c]) + results.iter().map(|own| own[c]).sum::<f64>())
        .collect();
    let results = results.concat();
    for found in run_as_each_device(&launches, &contents) {
        assert_eq!(found[0], logits, "an evaluation changes the logits");
        assert_close("row losses", &found[2], &losses);
        for (result, sum) in [(5, 6), (10, 11)] {
            assert_close("results", &found[result], &results);
            assert_close("sums", &found[sum], &sums);
        }
        assert_close("row scales", &found[8], &scales);
        assert_close("gradient", &found[9], &gradient);
    }
}

#[test]
fn gradients_of_pairs_equal_central_differences() {
    for (beta, offset) in [(0.1, 0.0), (0.5, 3.0), (2.0, -4.0)] {
        let reference = [-7.0, -9.0];
        let x = [-7.5 + offset, -8.0];
        let found = pair_loss(x, reference, beta);
        check("pair", &x, &[1.0], &found.gradient, |x| {
            vec![pair_loss([x[0], x[1]], reference, beta).loss]
        });
    }
    let equal = pair_loss([-3.0, -5.0], [-3.0, -5.0], 0.1);
    assert!((equal.loss - 2f64.ln()).abs() < 1e-12);
    let far = pair_loss([-1e4, 0.0], [0.0, 0.0], 1.0);
    assert_eq!((far.loss, far.gradient), (1e4, [-1.0, 1.0]));
}

fn options(checkpointing: Checkpointing) -> LoraOptions {
    LoraOptions {
        rank: 4,
        alpha: 8.0,
        max_length: 24,
        batch_size: 4,
        loss: TrainLoss::Preference { beta: BETA },
        checkpointing,
        ..LoraOptions::default()
    }
}

fn golden_file() -> Golden {
    Golden::read(&golden("train/dpo/golden.safetensors"))
}

/// The pairs of the golden file, without references.
fn pairs(file: &Golden) -> Vec<PreferencePair> {
    let mut sequences = super::models::sequences(file, "");
    for (sequence, first) in sequences.iter_mut().zip(file.ints("firsts")) {
        sequence.first_label = first as usize;
    }
    let pair = |both: &[TrainSequence]| PreferencePair::new(both[0].clone(), both[1].clone());
    sequences.chunks_exact(2).map(pair).collect()
}

fn golden_adapter() -> LoraAdapter {
    let read = |file: &str| {
        let path = golden("train/dpo/adapter").join(file);
        std::fs::read(path).expect("an adapter's file")
    };
    LoraAdapter::parse(&read(CONFIG_FILE), &read(WEIGHTS_FILE)).expect("peft's adapter")
}

/// The trainer of the tiny Llama with the golden adapter.
fn golden_trainer(options: LoraOptions) -> LoraTrainer {
    let lora = trainer(&golden("models/llama"), options).expect("a trainer");
    lora.set_adapter(&golden_adapter())
        .expect("the same matrices");
    lora
}

/// The pairs with references, by an adapter that continues.
fn prepared(lora: &mut LoraTrainer) -> Vec<PreferencePair> {
    let mut run = lora
        .start_pairs(&pairs(&golden_file()), &[])
        .expect("a run");
    while block_on(run.prepare(lora)).expect("references") {}
    run.pairs().to_vec()
}

#[test]
fn the_reference_is_the_model_without_its_adapter() {
    let mut lora = golden_trainer(options(Checkpointing::Auto));
    let pairs = prepared(&mut lora);
    let found: Vec<f32> = pairs.iter().flat_map(|pair| pair.reference).collect();
    let expected = golden_file().floats("reference");
    assert_close("reference", &found, &wide(&expected));
    let adapter = block_on(lora.adapter()).expect("an adapter");
    assert_eq!(adapter.tensors.len(), golden_adapter().tensors.len());
    for tensor in golden_adapter().tensors {
        let own = adapter.tensors.iter().find(|own| own.name == tensor.name);
        assert_eq!(own.expect("a tensor").values, tensor.values, "put back");
    }
    // A new adapter changes nothing: the policy is the reference, with the same bits.
    let mut lora = trainer(&golden("models/llama"), options(Checkpointing::Auto)).expect("one");
    let pairs = prepared(&mut lora);
    let metrics = block_on(lora.trainer().evaluate_pairs(&pairs)).expect("metrics");
    assert_eq!((metrics.reward_margin, metrics.reward_accuracy), (0.0, 0.0));
    assert!(
        (metrics.loss - std::f32::consts::LN_2).abs() < 1e-6,
        "{metrics:?}"
    );
}

#[test]
fn gradients_of_adapters_equal_those_of_pytorch() {
    let file = golden_file();
    for checkpointing in [Checkpointing::Never, Checkpointing::Always] {
        let mut lora = golden_trainer(options(checkpointing));
        let first = prepared(&mut lora)[..4].to_vec();
        let trainer = lora.trainer();
        let evaluated = block_on(trainer.evaluate_pairs(&first)).expect("metrics");
        let metrics = block_on(trainer.compute_pair_gradients(&first)).expect("gradients");
        assert_eq!(metrics, evaluated, "an evaluation has the same loss");
        let expected = file.floats("losses")[0];
        assert!(
            (metrics.loss - expected).abs() < 1e-5,
            "{metrics:?}, not {expected}"
        );
        let mut compared = 0;
        for id in trainer.trained().clone() {
            let gradient = block_on(trainer.gradient(id)).expect("a gradient");
            let name = &trainer.graph().weight(id).parts[0].0;
            let error = relative_l2(&gradient, &file.floats(&format!("grad.{name}")));
            assert!(error < 1e-4, "{name}: relative L2 {error:e}");
            compared += 1;
        }
        assert_eq!(compared, 28);
    }
}

#[test]
fn runs_over_pairs_equal_those_of_pytorch() {
    let file = golden_file();
    let [losses, margins, accuracies, held] =
        ["losses", "margins", "accuracies", "held"].map(|name| file.floats(name));
    let close = |found: f32, expected: f32, what: &str| {
        assert!(
            (found - expected).abs() < 1e-3,
            "{what}: {found}, not {expected}"
        );
    };
    let check = |metrics: &PreferenceMetrics, expected: [f32; 3], what: &str| {
        close(metrics.loss, expected[0], what);
        close(metrics.reward_margin, expected[1], what);
        assert_eq!(metrics.reward_accuracy, expected[2], "{what}");
    };
    for pairs_per_micro_batch in [1, 3, 4] {
        let mut lora = golden_trainer(options(Checkpointing::Auto));
        let pairs = prepared(&mut lora);
        for step in 0..losses.len() {
            let first = step * 4 % 8;
            let own = &pairs[first..first + 4];
            let batches: Vec<&[PreferencePair]> = own.chunks(pairs_per_micro_batch).collect();
            let found = block_on(lora.trainer().step_pairs(&batches, 3e-3));
            let (report, metrics) = found.expect("a step");
            assert_eq!(report.loss, metrics.loss);
            let expected = [losses[step], margins[step], accuracies[step]];
            check(&metrics, expected, &format!("step {step}"));
        }
        let metrics = block_on(lora.trainer().evaluate_pairs(&pairs[8..])).expect("metrics");
        check(&metrics, [held[0], held[1], held[2]], "held out");
    }
}

#[test]
fn a_run_over_pairs_repeats_and_prefers_the_chosen_answers() {
    let all = pairs(&golden_file());
    let run = |checkpointing: Checkpointing| {
        let options = LoraOptions {
            epochs: 6,
            batch_size: 3,
            learning_rate: 5e-3,
            decay: Decay::Constant,
            ..options(checkpointing)
        };
        let mut lora = trainer(&golden("models/llama"), options).expect("a trainer");
        let mut seen: Vec<TrainProgress> = Vec::new();
        let mut progress = |done: TrainProgress| {
            seen.push(done);
            ControlFlow::Continue(())
        };
        block_on(lora.train_pairs(&all, &mut progress)).expect("a run");
        (seen, block_on(lora.adapter()).expect("an adapter"))
    };
    let (seen, adapter) = run(Checkpointing::Never);
    assert_eq!(seen.len(), 24);
    let metrics = |index: usize| seen[index].preference.expect("metrics of pairs");
    assert_eq!(metrics(0).loss, seen[0].report.loss);
    assert!((metrics(0).loss - std::f32::consts::LN_2).abs() < 1e-6);
    assert_eq!(metrics(0).reward_margin, 0.0);
    let last = metrics(23);
    assert!(
        last.reward_accuracy == 1.0 && last.reward_margin > 1.0,
        "{last:?}"
    );
    assert!(last.loss < 0.5 * metrics(0).loss, "{last:?}");
    let (again, same) = run(Checkpointing::Always);
    assert_eq!(seen, again, "the same bits twice, with checkpointing too");
    assert!(adapter == same);
}

#[test]
fn pairs_that_do_not_fit_are_refused_or_dropped() {
    let sequence = |length: u32, first_label: usize| TrainSequence {
        ids: (3..3 + length).collect(),
        first_label,
    };
    let short = PreferencePair::new(sequence(5, 3), sequence(6, 3));
    let long = PreferencePair::new(sequence(40, 30), sequence(6, 3));
    let mut lora = golden_trainer(options(Checkpointing::Auto));
    let run = lora.start_pairs(&[short.clone(), long.clone()], std::slice::from_ref(&long));
    let mut run = run.expect("one pair is left");
    assert_eq!(run.steps(), 1);
    assert_eq!(block_on(run.evaluate(&mut lora)).expect("none"), None);
    let error = lora
        .start_pairs(std::slice::from_ref(&long), &[])
        .expect_err("no pair");
    assert!(error.to_string().contains("larger 'maxLength'"), "{error}");
    let many = vec![long; 5];
    let error = block_on(lora.trainer().step_pairs(&[&many], 1e-3));
    assert!(error.is_err_and(|e| e.to_string().contains("at most 192")));
    assert_eq!(lora.trainer().split_pairs(&many).len(), 2);
    let empty = PreferencePair::new(sequence(3, 3), sequence(6, 3));
    let error = block_on(lora.trainer().step_pairs(&[&[empty]], 1e-3));
    assert!(error.is_err_and(|e| e.to_string().contains("no tokens")));
    // Trainers have one loss.
    let whole = [TrainSequence::whole(vec![5, 6, 7])];
    assert!(block_on(lora.step(&whole, 1e-3)).is_err());
    let mut plain = trainer(
        &golden("models/llama"),
        LoraOptions {
            loss: TrainLoss::CrossEntropy,
            ..options(Checkpointing::Auto)
        },
    )
    .expect("a trainer");
    assert!(block_on(plain.trainer().step_pairs(&[&[short]], 1e-3)).is_err());
    for beta in [0.0, -1.0, f32::NAN] {
        let options = LoraOptions {
            loss: TrainLoss::Preference { beta },
            ..options(Checkpointing::Auto)
        };
        let error = options.check().expect_err("no beta");
        assert!(error.to_string().contains("beta"), "{error}");
    }
}

/// Checks the whole texts of a pair and what counts of them. Tokens may cross the end of the prompt,
/// so a few characters of it may count.
#[track_caller]
fn check_texts(text: &TextPipeline, pair: &PreferencePair, [prompt, answers @ ..]: [&str; 3]) {
    let tokenizer = text.tokenizer().expect("a tokenizer");
    for (sequence, answer) in pair.sequences().into_iter().zip(answers) {
        let whole = tokenizer.decode(&sequence.ids, true);
        assert_eq!(whole.trim(), format!("{prompt} {answer}"));
        let counted = tokenizer.decode(&sequence.ids[sequence.first_label..], true);
        let counted = counted.trim();
        assert!(counted.ends_with(answer), "{counted} for {answer}");
        assert!(counted.len() <= answer.len() + 4, "{counted} for {answer}");
    }
}

fn pair_of(text: &TextPipeline, item: &Value) -> jerboa::Result<PreferencePair> {
    preference_pair(text, item, |reason| jerboa::Error::Request {
        parameter: "pair".into(),
        reason: reason.into(),
    })
}

#[test]
fn pairs_come_in_the_formats_of_trl() {
    let text = with_template();
    let user = json!({ "role": "user", "content": "Who?" });
    let answer = |content: &str| json!({ "role": "assistant", "content": content });
    let [cat, dog] = [answer("The cat."), answer("The dog.")];
    let conversation = ["[user] Who?\n[assistant]", "The cat.", "The dog."];
    for (item, expected) in [
        (
            json!({ "prompt": "Who sat?", "chosen": " The cat.", "rejected": " The dog." }),
            ["Who sat?", "The cat.", "The dog."],
        ),
        // The prompt is what both begin with.
        (
            json!({ "chosen": "Who sat? Tom sat.", "rejected": "Who sat? A dog." }),
            ["Who sat?", "Tom sat.", "A dog."],
        ),
        (
            json!({ "prompt": [user], "chosen": [cat], "rejected": [dog] }),
            conversation,
        ),
        (
            json!({ "messages": [user], "chosen": [cat], "rejected": [dog] }),
            conversation,
        ),
        (
            json!({ "chosen": [user, cat], "rejected": [user, dog] }),
            conversation,
        ),
        // UltraFeedback's form: a text of the prompt next to whole conversations.
        (
            json!({ "prompt": "Who?", "chosen": [user, cat], "rejected": [user, dog], "score": 3 }),
            conversation,
        ),
        (
            json!({ "prompt": [user], "chosen": "The cat.", "rejected": "The dog." }),
            conversation,
        ),
        // All messages after the prompt count.
        (
            json!({ "prompt": [user], "chosen": [cat, user, cat], "rejected": [dog] }),
            [
                "[user] Who?\n[assistant]",
                "The cat.\n[user] Who?\n[assistant] The cat.",
                "The dog.",
            ],
        ),
    ] {
        let pair = pair_of(&text, &item).unwrap_or_else(|e| panic!("{item}: {e}"));
        check_texts(&text, &pair, expected);
    }
    // Strings end with the end token.
    let pair = json!({ "prompt": "Who?", "chosen": " Tom", "rejected": " Sue" });
    let pair = pair_of(&text, &pair).expect("a pair");
    let end = text.tokenizer().expect("a tokenizer").eos_ids().first();
    assert!(
        pair.sequences()
            .iter()
            .all(|sequence| sequence.ids.last() == end)
    );
}

#[test]
fn malformed_pairs_are_refused_by_line() {
    let text = with_template();
    let user = json!({ "role": "user", "content": "Who?" });
    let cat = json!({ "role": "assistant", "content": "The cat." });
    for (item, told) in [
        (json!({ "prompt": "a", "chosen": "b" }), "no 'rejected'"),
        (
            json!({ "prompt": "a", "rejected": "b", "chosen": null }),
            "no 'chosen'",
        ),
        (
            json!({ "prompt": "a", "chosen": "b", "rejected": "b" }),
            "are equal",
        ),
        (
            json!({ "prompt": "a", "chosen": " ", "rejected": "b" }),
            "'chosen' is empty",
        ),
        (
            json!({ "prompt": "a", "chosen": "c", "rejected": [] }),
            "'rejected' is empty",
        ),
        (
            json!({ "prompt": "a", "chosen": "c", "rejected": 3 }),
            "'rejected' must be a string",
        ),
        (
            json!({ "prompt": "a", "chosen": "c", "rejected": [cat] }),
            "must both be strings",
        ),
        (
            json!({ "prompt": 7, "chosen": "c", "rejected": "d" }),
            "prompt must be a string",
        ),
        (
            json!({ "prompt": "a", "messages": [user], "chosen": "c", "rejected": "d" }),
            "both 'prompt' and 'messages'",
        ),
        (
            json!({ "chosen": "c", "rejected": "d" }),
            "begin differently",
        ),
        (
            json!({ "chosen": [cat], "rejected": [user, cat] }),
            "begin differently",
        ),
        (
            json!({ "prompt": [], "chosen": "c", "rejected": "d" }),
            "begin differently",
        ),
        (
            json!({ "chosen": [user, cat], "rejected": [user, cat, user, cat] }),
            "'chosen' must end with a message with role 'assistant'",
        ),
        (
            json!({ "prompt": [user], "chosen": [cat], "rejected": [user] }),
            "'rejected' must end with a message with role 'assistant'",
        ),
    ] {
        let error = pair_of(&text, &item).expect_err(told).to_string();
        assert!(error.contains(told), "{item}: {error}");
    }
    let pair = r#"{"prompt": "Who?", "chosen": " Tom", "rejected": " Sue"}"#;
    let read = |lines: &[&str]| file_data(&text, "data.jsonl", &lines.join("\n"), 64);
    let data = read(&[pair, "", pair]).expect("pairs");
    assert!(matches!(data, TrainData::Pairs(pairs) if pairs.len() == 2));
    let data = read(&[r#"{"text": "Tom ran."}"#]).expect("sequences");
    assert!(matches!(data, TrainData::Sequences(all) if all.len() == 1));
    for (lines, told) in [
        (
            [pair, r#"{"text": "a"}"#],
            "line 2 of data.jsonl: expected a pair",
        ),
        (
            [r#"{"text": "a"}"#, pair],
            "line 2 of data.jsonl: pairs cannot follow",
        ),
        (
            [pair, r#"{"chosen": "a"}"#],
            "line 2 of data.jsonl: the pair has no 'rejected'",
        ),
        ([pair, "{"], "line 2 of data.jsonl: invalid JSON"),
    ] {
        let error = read(&lines).expect_err(told).to_string();
        assert!(error.contains(told), "{error}");
    }
}
