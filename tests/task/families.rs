//! Answers of families with other memory than full caches: stopped within a batch of steps,
//! aborted, regenerated, forked. Also the cost of an int8 cache.

use super::{character, request, run, stories_with, tiny_with};
use jerboa::exec::{PrecisionOptions, RunOptions};
use jerboa::hub::AbortFlag;
use jerboa::kernels::attention::Kv;
use jerboa::task::{ChatModel, FinishReason};
use jerboa_tests::golden::{Golden, golden};
use pollster::block_on;
use serde_json::{Value, json};

fn tiny(name: &str) -> (ChatModel, Golden) {
    let golden = Golden::read(&golden(&format!("models/{name}")).join("golden.safetensors"));
    (tiny_with(name, None, json!([]), None), golden)
}

fn text(ids: &[u32]) -> String {
    ids.iter().copied().map(character).collect()
}

fn greedy(ids: &[u32], max: usize, stop: &[&str]) -> Value {
    json!({ "ids": ids, "temperature": 0, "maxTokens": max, "ignoreEos": true, "stop": stop })
}

#[test]
fn answers_are_stopped_aborted_regenerated_and_forked() {
    for name in ["lfm2", "gemma3", "qwen3_5"] {
        let (mut model, golden) = tiny(name);
        let (ids, answer) = (golden.ids("input_ids"), golden.ids("greedy"));
        let full = |model: &mut ChatModel, after: &str| {
            assert_eq!(
                run(model, greedy(&ids, 32, &[])).ids,
                answer,
                "{name}, {after}"
            );
        };
        full(&mut model, "at first");
        // Two tokens whose first adjacent occurrence is within a batch.
        let first = |at: &usize| {
            answer
                .windows(2)
                .position(|two| two == &answer[*at..at + 2])
                == Some(*at)
        };
        let at = (6..20).find(first).expect("a new pair of tokens");
        let stopped = run(&mut model, greedy(&ids, 32, &[&text(&answer[at..at + 2])]));
        assert_eq!(
            (stopped.finish_reason, &stopped.text),
            (FinishReason::Stop, &text(&answer[..at])),
            "{name}"
        );
        // Steps that ran ahead of the stop do not affect later ones.
        let so_far = [&ids[..], &answer[..at]].concat();
        assert_eq!(
            run(&mut model, greedy(&so_far, 32 - at, &[])).ids,
            answer[at..],
            "{name}, gone on after a stop"
        );
        full(&mut model, "regenerated");
        let abort = AbortFlag::new();
        let mut seen = 0;

        let aborted = block_on(
            model.generate(&request(greedy(&ids, 180, &[])), &abort, |event| {
                seen += event.ids.len();
                if seen >= 5 {
                    abort.abort();
                }
            }),
        );
        let aborted = aborted.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(aborted.finish_reason, FinishReason::Abort, "{name}");
        let common = aborted.ids.len().min(32);
        assert_eq!(aborted.ids[..common], answer[..common], "{name}");
        full(&mut model, "after an abort");
        // The fork continues from here while the original does something else.
        let mut fork = model.fork().expect("a fork");
        let other: Vec<u32> = ids.iter().rev().copied().collect();
        run(&mut model, greedy(&other, 9, &[]));
        let half = [&ids[..], &answer[..12]].concat();
        assert_eq!(
            run(&mut fork, greedy(&half, 20, &[])).ids,
            answer[12..],
            "{name}, forked"
        );
        full(&mut model, "with a fork");
    }
}

/// Perplexity of the story, of more than 2,000 tokens, with an int8 cache against an f16 cache.
#[test]
fn int8_kv_perplexity_matches_f16() {
    let story = std::fs::read_to_string(golden("stories260K/story.txt")).expect("story.txt");
    let [halves, eight] = [Kv::Packed, Kv::Int8].map(|kv| {
        let overrides = PrecisionOptions {
            kv_type: Some(kv),
            ..PrecisionOptions::default()
        };
        let mut model = stories_with(
            512,
            RunOptions {
                prefill_chunk: 128,
                overrides,
                ..RunOptions::default()
            },
        );
        block_on(model.perplexity(&story)).expect("a perplexity")
    });
    println!("{halves:?}, with 8 bits {eight:?}");
    assert!(halves.1 > 2000, "{} tokens", halves.1);
    assert!(
        (eight.0 / halves.0 - 1.0).abs() < 0.005,
        "{} becomes {}",
        halves.0,
        eight.0
    );
}
