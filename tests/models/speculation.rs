//! Speculative decoding changes only the number of steps: ids are equal with and without, for every
//! cache and feature.

use super::{exact, greedy, halves, start, with_kv};
use jerboa::exec::{DecodeLoop, DecodeParams, PromptLookup, RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions};
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, golden, load};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;

/// A window, norms of heads, biases, RoPE scaling by length, layers without RoPE, quantized
/// weights, each kind of recurrent state.
const MODELS: [&str; 12] = [
    "models/mistral",
    "models/qwen3",
    "models/llama_bias",
    "models/llama_dynamic",
    "models/phi3_longrope",
    "models/smollm3",
    "quant/qwen3_gptq",
    "models/llama_linear",
    "models/qwen3_5",
    "models/lfm2",
    "models/granite_hybrid",
    "models/falcon_h1",
];

/// Result of a generation.
#[derive(Debug, PartialEq)]
struct Found {
    tokens: Vec<u32>,
    drafted: usize,
    accepted: usize,
}

impl Found {
    /// Steps after the prompt.
    fn steps(&self) -> usize {
        self.tokens.len() - 1 - self.accepted
    }
}

fn decode(
    model: &mut Session,
    context: &[u32],
    stops: &[u32],
    budget: usize,
    always: bool,
) -> Found {
    decode_predicted(model, context, &[], stops, budget, always)
}

/// With a predicted answer.
fn decode_predicted(
    model: &mut Session,
    context: &[u32],
    prediction: &[u32],
    stops: &[u32],
    budget: usize,
    always: bool,
) -> Found {
    block_on(async {
        model.prepare_speculation().await.expect("speculation");
        model.prefill(context, 0).await.expect("prefill");
        let lookup = Some(PromptLookup {
            context,
            prediction,
            draft_always: always,
        });
        let start = DecodeParams {
            stops,
            lookup,
            ..DecodeParams::greedy(context.len(), budget)
        };
        let mut decode = DecodeLoop::start(model, start).expect("start");
        let mut tokens = Vec::new();
        loop {
            let next = decode.next(model).await.expect("decode");
            if next.is_empty() {
                break;
            }
            tokens.extend(next);
        }
        let (drafted, accepted) = decode.draft_counts();
        decode.finish(model).await.expect("finish");
        Found {
            tokens,
            drafted,
            accepted,
        }
    })
}

/// Prompts with and without repetition.
fn prompts(ids: &[u32]) -> Vec<Vec<u32>> {
    vec![
        ids.to_vec(),
        [ids, ids, &ids[..3]].concat(),
        ids[..1].repeat(20),
        ids[..1].to_vec(),
    ]
}

fn stories() -> Session {
    let folder = golden("../../www/public/models/stories260K");
    load(open(&DeviceOptions::default()), &folder, with_kv(Kv::F32)).expect("stories260K")
}

/// All ids of the reference: a prompt and 200 generated tokens.
fn story() -> Vec<u32> {
    let text = std::fs::read_to_string(golden("stories260K/golden.json")).expect("golden.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("json");
    json["ids"]
        .as_array()
        .expect("ids")
        .iter()
        .map(|v| v.as_u64().expect("id") as u32)
        .collect()
}

#[test]
fn speculation_gives_the_same_tokens_for_each_cache_and_feature() {
    let full = DeviceOptions::default();
    let cases = [
        (exact(), Kv::F32),
        (
            DeviceOptions {
                subgroups: false,
                ..exact()
            },
            Kv::F32,
        ),
        (exact(), Kv::Packed),
        (full.clone(), halves()),
        (
            DeviceOptions {
                subgroups: false,
                ..full
            },
            halves(),
        ),
        (
            DeviceOptions {
                subgroups: false,
                ..exact()
            },
            Kv::Packed,
        ),
    ];
    let mut accepted = 0;
    for (index, name) in MODELS.iter().enumerate() {
        // Each model with one of the cases, the first with all.
        for (case, (device, kv)) in cases.iter().enumerate() {
            if index > 0 && case != index % cases.len() {
                continue;
            }
            let (mut model, golden) = start(name, device, with_kv(*kv));
            for (number, prompt) in prompts(&golden.ids("input_ids")).into_iter().enumerate() {
                let expected = greedy(&mut model, &prompt, 40);
                let found = decode(&mut model, &prompt, &[], 40, true);
                assert_eq!(
                    found.tokens, expected,
                    "{name}, {kv:?}, prompt {number}, {device:?}"
                );
                accepted += found.accepted;
            }
        }
    }
    assert!(accepted > 100, "{accepted} drafts accepted");
}

/// Asserts that the states after an answer go on as those of a prompt of the same tokens, up to
/// rounding, and that all but the last token were in them.
pub(super) fn assert_states_match(model: &mut Session, ids: &[u32], answer: &[u32], case: &str) {
    let longer = [ids, answer, &ids[..5]].concat();
    let kept = block_on(model.prefill_reusing_prefix(&longer, &|| Ok(()))).expect("a turn");
    assert!(kept + 6 >= longer.len(), "{case}: {kept} tokens kept");
    let after = block_on(model.logits()).expect("logits");
    model.clear();
    block_on(model.prefill(&longer, 0)).expect("a prompt");
    let whole = block_on(model.logits()).expect("logits");
    let error = relative_l2(&after, &whole);
    assert!(error < 1e-5, "{case}: {error:e}");
}

/// After drafts of which some were rejected, recurrent states contain the accepted tokens only: at the
/// end of the budget, and at a stop token with more steps in flight.
#[test]
fn recurrent_states_go_on_after_rejected_drafts() {
    for name in ["models/qwen3_5", "models/lfm2", "models/nemotron_h"] {
        let (mut model, golden) = start(name, &exact(), with_kv(Kv::F32));
        let ids = golden.ids("input_ids");
        let expected = greedy(&mut model, &ids, 30);
        let mut prediction = expected.clone();
        for at in (4..30).step_by(7) {
            prediction[at] ^= 1;
        }
        // A token that is new late in the answer.
        let is_new = |at: &usize| !expected[..*at].contains(&expected[*at]);
        let late = (0..25).rfind(is_new).map(|at| expected[at]);
        for (stops, always) in [(None, true), (late, true), (None, false)] {
            model.clear();
            let stops = stops.as_slice();
            let found = decode_predicted(&mut model, &ids, &prediction, stops, 30, always);
            let end = expected.iter().position(|id| stops.contains(id));
            let expected = &expected[..end.map_or(30, |at| at + 1)];
            assert_eq!(found.tokens, expected, "{name}");
            if always {
                let rejected = found.drafted - found.accepted;
                assert!(found.accepted > 5 && rejected > 0, "{name}: {found:?}");
            }
            let case = format!("{name}, stops {stops:?}, {always}");
            assert_states_match(&mut model, &ids, &found.tokens, &case);
        }
    }
}

#[test]
fn a_repetitive_prompt_takes_fewer_steps_than_tokens() {
    let mut model = stories();
    let all = story();
    let reference = &all[all.len() - 200..];
    // The story so far, followed by its beginning.
    let prompt = [&all[..150], &all[..40]].concat();
    let expected = greedy(&mut model, &prompt, 60);
    let found = decode(&mut model, &prompt, &[], 60, true);
    assert_eq!(found.tokens, expected);
    assert!(
        found.accepted > 0 && found.drafted > found.accepted,
        "{found:?}"
    );
    let steps = found.steps();
    println!(
        "{} tokens in {steps} steps: {:.2} steps a token",
        found.tokens.len() - 1,
        steps as f64 / 59.0
    );
    assert!(steps < 45, "{steps} steps for 59 tokens");
    // Text without repetition gives the same ids too.
    let prompt = &all[..all.len() - 200];
    for always in [true, false] {
        assert_eq!(
            decode(&mut model, prompt, &[], 200, always).tokens,
            reference
        );
    }
}

#[test]
fn stop_tokens_end_generation_at_any_draft_position() {
    let mut model = stories();
    let all = story();
    let prompt = [&all[..60], &all[..40]].concat();
    let free = greedy(&mut model, &prompt, 40);
    assert!(
        decode(&mut model, &prompt, &[], 40, true).accepted > 0,
        "no draft would be cut"
    );
    for at in (0..40).step_by(3) {
        let stop = free[at];
        let end = free.iter().position(|t| *t == stop).expect("it is there");
        let found = decode(&mut model, &prompt, &[511, stop], 40, true);
        assert_eq!(found.tokens, free[..=end], "stop at {end}");
    }
    for budget in 1..20 {
        assert_eq!(
            decode(&mut model, &prompt, &[], budget, true).tokens,
            free[..budget],
            "budget {budget}"
        );
    }
}

/// The cache's last positions equal those of plain steps: nothing is written beyond them.
#[test]
fn a_context_is_filled_to_its_end() {
    for (name, kv) in [
        ("models/mistral", Kv::F32),
        ("models/qwen3", Kv::Packed),
        ("quant/qwen3_gptq", Kv::F32),
    ] {
        let ids = Golden::read(&golden(name).join("golden.safetensors")).ids("input_ids");
        let prompt = [&ids[..], &ids[..], &ids[..3]].concat();
        for room in [0, 1, 5, 30] {
            let options = RunOptions {
                max_context: Some(prompt.len() + room),
                ..with_kv(kv)
            };
            let (mut model, _) = start(name, &exact(), options);
            let expected = greedy(&mut model, &prompt, 100);
            assert_eq!(expected.len(), room + 1, "{name}");
            let last = |model: &mut Session| {
                // Runs the last position again, over the values that the generation left.
                let all = [&prompt[..], &expected[..]].concat();
                let pos = all.len() - 2;
                block_on(model.step(all[pos], pos)).expect("step");
                block_on(model.logits()).expect("logits")
            };
            let plain = last(&mut model);
            let found = decode(&mut model, &prompt, &[], 100, true);
            assert_eq!(found.tokens, expected, "{name}, {room}");
            let error = relative_l2(&last(&mut model), &plain);
            assert!(error < 1e-3, "{name}, {room}: {error:e}");
        }
    }
}

#[test]
fn speculation_steps_create_no_objects_and_memory_is_counted() {
    let mut model = stories();
    let all = story();
    let prompt = [&all[..150], &all[..40]].concat();
    let before = model.model().bytes();
    let alive = model.gpu().resource_counts().bytes;

    decode(&mut model, &prompt, &[], 50, true);
    let added = model.model().bytes().activations - before.activations;
    assert!(added >= model.vocab() as u64 * 8 * 4, "{added} bytes");
    // Only staging buffers were added.
    assert!(model.gpu().resource_counts().bytes >= alive + added);
    let made = model.gpu().resource_counts();
    assert_eq!(
        block_on(model.speculation_cost(16, 0))
            .expect("steps")
            .objects_created,
        0
    );
    for always in [true, false] {
        decode(&mut model, &prompt, &[], 50, always);
        let after = model.gpu().resource_counts();
        let objects =
            |c: jerboa::gpu::ResourceCounts| (c.buffers, c.pipelines, c.bind_groups, c.bytes);
        assert_eq!(objects(after), objects(made));
    }
}
