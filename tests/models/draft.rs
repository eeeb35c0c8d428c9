//! A draft model changes only the number of steps: ids are equal with and without, greedy and
//! sampled, whatever it proposes.

use super::speculation::assert_states_match;
use super::{exact, greedy, halves, start, with_kv};
use jerboa::exec::{DecodeLoop, DecodeParams, DraftSession, Model, RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions};
use jerboa::kernels::attention::Kv;
use jerboa::sample::{Sampler, SamplingParams};
use jerboa_tests::golden::{Golden, golden};
use pollster::block_on;
use std::rc::Rc;

/// Result of a generation.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    pub tokens: Vec<u32>,
    pub drafted: usize,
    pub accepted: usize,
}

/// What to generate.
#[derive(Clone)]
pub(super) struct Ask<'a> {
    pub prompt: &'a [u32],
    pub params: SamplingParams,
    pub seed: u64,
    pub stops: &'a [u32],
    pub budget: usize,
}

impl<'a> Ask<'a> {
    pub fn greedy(prompt: &'a [u32], budget: usize) -> Self {
        Self {
            prompt,
            params: SamplingParams::default(),
            seed: 0,
            stops: &[],
            budget,
        }
    }
}

pub(super) fn generate(
    model: &mut Session,
    mut draft: Option<&mut DraftSession>,
    ask: &Ask<'_>,
) -> Found {
    block_on(async {
        let mut sampler = Sampler::new(ask.params.clone(), model.vocab(), ask.seed)?;
        sampler.start(ask.prompt);
        let pipeline = model.prepare_sampling(&sampler, false).await?;
        let pipeline = pipeline.expect("sampling on the GPU");
        if let Some(draft) = &mut draft {
            assert!(draft.prepare(model, &pipeline, &sampler).await?);
        }
        model.prefill_reusing_prefix(ask.prompt, &|| Ok(())).await?;
        let params = DecodeParams {
            stops: ask.stops,
            pipeline,
            draft,
            ..DecodeParams::greedy(ask.prompt.len(), ask.budget)
        };
        let mut decode = DecodeLoop::start(model, params)?;
        let mut tokens = Vec::new();
        loop {
            let next = decode.next(model).await?;
            if next.is_empty() {
                break;
            }
            tokens.extend(next);
        }
        let (drafted, accepted) = decode.draft_counts();
        decode.finish(model).await?;
        Ok::<_, jerboa::Error>(Found {
            tokens,
            drafted,
            accepted,
        })
    })
    .expect("a generation")
}

/// A draft that proposes in every step.
pub(super) fn draft(model: &Rc<Model>, target: &mut Session) -> DraftSession {
    let mut draft = block_on(DraftSession::new(model, target)).expect("a draft");
    draft.draft_always = true;
    draft
}

/// Targets: a window, windows of some layers, norms of heads, biases, RoPE scaling by length, layers
/// without RoPE, experts, quantized weights, each kind of recurrent state.
const TARGETS: [&str; 14] = [
    "models/mistral",
    "models/qwen3",
    "models/gemma3",
    "models/llama_bias",
    "models/llama_dynamic",
    "models/phi3_longrope",
    "models/smollm3",
    "models/mixtral",
    "quant/qwen3_gptq",
    "models/gemma4",
    "models/qwen3_5",
    "models/lfm2",
    "models/granite_hybrid",
    "models/falcon_h1",
];

/// Drafts of the same vocabulary.
const DRAFTS: [&str; 4] = [
    "models/llama",
    "models/mistral",
    "models/llama_dynamic",
    "models/gemma3",
];

#[test]
fn greedy_ids_are_those_without_a_draft() {
    let full = DeviceOptions::default();
    let cases = [
        (exact(), Kv::F32),
        (
            DeviceOptions {
                subgroups: false,
                ..exact()
            },
            Kv::Packed,
        ),
        (full, halves()),
    ];
    for (index, name) in TARGETS.iter().enumerate() {
        let (device, kv) = &cases[index % cases.len()];
        let (mut model, golden) = start(name, device, with_kv(*kv));
        let ids = golden.ids("input_ids");
        let expected = greedy(&mut model, &ids, 40);
        let own = model.model().clone();
        if !own.is_recurrent() {
            // The model itself: all proposals are accepted, but for rounding.
            let mut itself = draft(&own, &mut model);
            let found = generate(&mut model, Some(&mut itself), &Ask::greedy(&ids, 40));
            assert_eq!(found.tokens, expected, "{name} with itself, {kv:?}");
            let share = found.accepted as f64 / found.drafted.max(1) as f64;
            assert!(share > 0.8, "{name} with itself: {found:?}");
        }
        let (other, _) = start(DRAFTS[index % DRAFTS.len()], device, with_kv(*kv));
        let mut other = draft(other.model(), &mut model);
        let found = generate(&mut model, Some(&mut other), &Ask::greedy(&ids, 40));
        assert_eq!(found.tokens, expected, "{name} with another, {kv:?}");
        assert!(found.drafted > 0, "{name}");
        // Never right.
        let (wrong, _) = start("models/llama", device, with_kv(*kv));
        let mut wrong = draft(wrong.model(), &mut model);
        wrong.force_acceptance(0.0);
        let found = generate(&mut model, Some(&mut wrong), &Ask::greedy(&ids, 40));
        assert_eq!(found.tokens, expected, "{name} with wrong proposals");
        assert!(found.accepted == 0 && found.drafted >= 39, "{found:?}");
    }
}

#[test]
fn sampled_ids_are_those_without_a_draft() {
    let default = SamplingParams::default();
    let requests = [
        SamplingParams {
            greedy: false,
            temperature: 0.8,
            ..default.clone()
        },
        SamplingParams {
            greedy: false,
            temperature: 1.3,
            top_k: 20,
            top_p: 0.9,
            ..default.clone()
        },
        SamplingParams {
            greedy: false,
            temperature: 1.0,
            top_k: 0,
            min_p: 0.05,
            repetition_penalty: 1.3,
            frequency_penalty: 0.2,
            presence_penalty: 0.5,
            ..default.clone()
        },
        SamplingParams {
            repetition_penalty: 1.4,
            frequency_penalty: 0.3,
            ..default.clone()
        },
        SamplingParams {
            greedy: false,
            temperature: 0.9,
            logit_bias: [(13, -100.0), (32, 3.0)].into(),
            ..default
        },
    ];
    for (name, other) in [
        ("models/qwen3", "models/llama"),
        ("models/mistral", "models/qwen3"),
        ("models/lfm2", "models/llama"),
    ] {
        let (mut model, golden) = start(name, &exact(), with_kv(Kv::F32));
        let ids = golden.ids("input_ids");
        let own = model.model().clone();
        let mut itself = (!own.is_recurrent()).then(|| draft(&own, &mut model));
        let (other, _) = start(other, &exact(), with_kv(Kv::F32));
        let mut other = draft(other.model(), &mut model);
        for (number, params) in requests.iter().enumerate() {
            for seed in 1..=1 + u64::from(number == 1) {
                let ask = Ask {
                    params: params.clone(),
                    seed,
                    ..Ask::greedy(&ids, 40)
                };
                let expected = generate(&mut model, None, &ask).tokens;
                if let Some(itself) = &mut itself {
                    let found = generate(&mut model, Some(itself), &ask);
                    assert_eq!(found.tokens, expected, "{name} {number} {seed}, itself");
                    let share = found.accepted as f64 / found.drafted.max(1) as f64;
                    assert!(share > 0.9, "{name} {number} {seed}: {share}");
                }
                let found = generate(&mut model, Some(&mut other), &ask);
                assert_eq!(found.tokens, expected, "{name} {number} {seed}, another");
                assert!(found.drafted > 0);
            }
        }
    }
}

/// Two likely tokens, on which the models often agree: after any number of accepted tokens recurrent
/// states are those of a prompt of the same tokens.
#[test]
fn recurrent_states_take_the_accepted_tokens() {
    for name in ["models/qwen3_5", "models/lfm2", "models/granite_hybrid"] {
        let (mut model, golden) = start(name, &exact(), with_kv(Kv::F32));
        let ids = golden.ids("input_ids");
        let (other, _) = start("models/llama", &exact(), with_kv(Kv::F32));
        let mut other = draft(other.model(), &mut model);
        let mut rejected = 0;
        for budget in [9, 20, 37] {
            let ask = Ask {
                params: SamplingParams {
                    greedy: false,
                    temperature: 2.0,
                    logit_bias: [(13, 60.0), (32, 60.0)].into(),
                    ..SamplingParams::default()
                },
                ..Ask::greedy(&ids, budget)
            };
            let expected = generate(&mut model, None, &ask).tokens;
            model.clear();
            let found = generate(&mut model, Some(&mut other), &ask);
            assert_eq!(found.tokens, expected, "{name} {budget}");
            assert!(found.accepted > 1, "{name}: {found:?}");
            rejected += found.drafted - found.accepted;
            let case = format!("{name} {budget}");
            assert_states_match(&mut model, &ids, &found.tokens, &case);
        }
        assert!(rejected > 0, "{name}");
    }
}

#[test]
fn stops_and_limits_end_at_any_proposal() {
    let (mut model, golden) = start("models/llama_bias", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let free = greedy(&mut model, &ids, 40);
    let own = model.model().clone();
    for length in [1, 4, 7] {
        let mut itself = draft(&own, &mut model);
        itself.fix_length(length);
        for at in (0..40).step_by(3) {
            let stops = [255, free[at]];
            let end = free.iter().position(|t| stops.contains(t)).expect("a stop");
            let ask = Ask {
                stops: &stops,
                ..Ask::greedy(&ids, 40)
            };
            let found = generate(&mut model, Some(&mut itself), &ask);
            assert_eq!(found.tokens, free[..=end], "stop at {end}, {length}");
        }
        for budget in 1..20 {
            let found = generate(&mut model, Some(&mut itself), &Ask::greedy(&ids, budget));
            assert_eq!(found.tokens, free[..budget], "budget {budget}, {length}");
        }
    }
}

/// The caches of both models hold their last positions.
#[test]
fn a_context_is_filled_to_its_end() {
    for name in ["models/mistral", "models/qwen3"] {
        let ids = Golden::read(&golden(name).join("golden.safetensors")).ids("input_ids");
        for (room, own_room) in [(0, 0), (1, 1), (5, 5), (40, 40), (40, 12)] {
            let options = |room| RunOptions {
                max_context: Some(ids.len() + room),
                ..with_kv(Kv::F32)
            };
            let (mut model, _) = start(name, &exact(), options(room));
            let expected = greedy(&mut model, &ids, 100);
            assert_eq!(expected.len(), room + 1, "{name}");
            // A draft model of a shorter context proposes no more tokens at its end.
            let (small, _) = start(name, &exact(), options(own_room));
            let mut small = draft(small.model(), &mut model);
            let found = generate(&mut model, Some(&mut small), &Ask::greedy(&ids, 100));
            assert_eq!(found.tokens, expected, "{name}, {room}, {own_room}");
        }
    }
}

/// A chat goes on, goes back and changes: both caches follow.
#[test]
fn later_prompts_reuse_both_caches() {
    for name in ["models/gemma3", "models/qwen3"] {
        let (mut plain, golden) = start(name, &exact(), with_kv(Kv::F32));
        let (mut model, _) = start(name, &exact(), with_kv(Kv::F32));
        let (other, _) = start("models/mistral", &exact(), with_kv(Kv::F32));
        let own = model.model().clone();
        let ids = golden.ids("input_ids");
        for mut draft in [draft(&own, &mut model), draft(other.model(), &mut model)] {
            let mut text = ids.clone();
            for turn in 0..6 {
                let expected = greedy(&mut plain, &text, 25);
                let found = generate(&mut model, Some(&mut draft), &Ask::greedy(&text, 25));
                assert_eq!(found.tokens, expected, "{name}, turn {turn}");
                text.extend(found.tokens);
                if turn % 3 == 2 {
                    // Another answer from the middle.
                    text.truncate(ids.len() + 11);
                }
                text.extend([5 + turn, 9, 40]);
            }
        }
    }
}

#[test]
fn two_sessions_of_a_model_have_drafts_of_their_own() {
    let (mut first, golden) = start("models/qwen3", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let turned: Vec<u32> = ids.iter().rev().copied().collect();
    let expected = [
        greedy(&mut first, &ids, 50),
        greedy(&mut first, &turned, 50),
    ];
    let mut second = Session::new(first.model()).expect("a session");
    let (other, _) = start("models/qwen3", &exact(), with_kv(Kv::F32));
    let mut drafts = [
        draft(other.model(), &mut first),
        draft(other.model(), &mut second),
    ];
    let mut sampler = Sampler::new(Ask::greedy(&ids, 1).params, first.vocab(), 0).expect("greedy");
    sampler.start(&ids);
    block_on(async {
        let [of_first, of_second] = &mut drafts;
        let mut found = [Vec::new(), Vec::new()];
        first.prefill(&ids, 0).await?;
        second.prefill(&turned, 0).await?;
        for (session, draft) in [(&first, &mut *of_first), (&second, &mut *of_second)] {
            let greedy = DecodeParams::greedy(0, 0).pipeline;
            assert!(draft.prepare(session, &greedy, &sampler).await?);
        }
        let mut decodes = [
            DecodeLoop::start(
                &mut first,
                DecodeParams {
                    draft: Some(of_first),
                    ..DecodeParams::greedy(ids.len(), 50)
                },
            )?,
            DecodeLoop::start(
                &mut second,
                DecodeParams {
                    draft: Some(of_second),
                    ..DecodeParams::greedy(turned.len(), 50)
                },
            )?,
        ];
        for _ in 0..60 {
            found[0].extend(decodes[0].next(&mut first).await?);
            found[1].extend(decodes[1].next(&mut second).await?);
        }
        assert_eq!(found, expected);
        let accepted = decodes.each_ref().map(|decode| decode.draft_counts().1);
        assert!(accepted.iter().all(|count| *count > 20), "{accepted:?}");
        let [a, b] = decodes;
        a.finish(&mut first).await?;
        b.finish(&mut second).await
    })
    .expect("two generations");
}

#[test]
fn proposals_follow_the_controller() {
    let (mut model, golden) = start("models/llama_bias", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let expected = greedy(&mut model, &ids, 180);
    let own = model.model().clone();
    for (other, always) in [(false, false), (true, false), (false, true)] {
        let (another, _) = start("models/qwen3", &exact(), with_kv(Kv::F32));
        let proposer = if other { another.model() } else { &own };
        let mut draft = block_on(DraftSession::new(proposer, &mut model)).expect("a draft");
        draft.draft_always = always;
        let found = generate(&mut model, Some(&mut draft), &Ask::greedy(&ids, 180));
        assert_eq!(found.tokens, expected);
        assert!(found.drafted > 0, "a trial");
        // Poor proposals are soon given up.
        assert!(!other || found.drafted < 120, "{}", found.drafted);
    }
}

#[test]
fn forced_acceptance_accepts_that_share() {
    let (mut model, golden) = start("models/llama", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let (other, _) = start("models/qwen3", &exact(), with_kv(Kv::F32));
    for chance in [0.5, 0.9, 1.0] {
        let mut draft = draft(other.model(), &mut model);
        draft.force_acceptance(chance);
        draft.fix_length(1);
        let found = generate(&mut model, Some(&mut draft), &Ask::greedy(&ids, 200));
        assert_eq!(found.tokens.len(), 200);
        let share = found.accepted as f64 / found.drafted as f64;
        assert!((share - chance).abs() < 0.12, "{chance}: {share}");
    }
}

#[test]
fn steps_with_proposals_create_no_objects() {
    let (mut model, golden) = start("models/qwen3", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let own = model.model().clone();
    let mut itself = draft(&own, &mut model);
    generate(&mut model, Some(&mut itself), &Ask::greedy(&ids, 60));
    let made = model.gpu().resource_counts();
    let again = generate(&mut model, Some(&mut itself), &Ask::greedy(&ids, 60));
    assert!(again.accepted > 0);
    let after = model.gpu().resource_counts();
    let objects = |c: jerboa::gpu::ResourceCounts| (c.buffers, c.pipelines, c.bind_groups, c.bytes);
    assert_eq!(objects(after), objects(made));
}

#[test]
fn draft_models_that_cannot_be_rolled_back_are_refused() {
    let (mut dense, _) = start("models/llama", &exact(), with_kv(Kv::F32));
    let (recurrent, _) = start("models/qwen3_5", &exact(), with_kv(Kv::F32));
    let error = block_on(DraftSession::new(recurrent.model(), &mut dense))
        .err()
        .expect("a refusal");
    assert_eq!(error.code(), "unsupported_option");
    let text = error.to_string();
    assert!(
        text.contains("The draft model Qwen3_5ForCausalLM has recurrent"),
        "{text}"
    );
}
