//! KV caches in main memory: the same logits and ids as with all of them on the device, within the
//! memory that they may take there.

use super::draft::{Ask, draft, generate};
use super::saved::{restore, save};
use super::{exact, start, with_families, with_kv};
use jerboa::exec::{DecodeParams, PromptLookup, RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::plan::KvOffloadPlan;
use jerboa::sample::TokenConstraint;
use jerboa::task::{ChatModel, GenerateRequest};
use jerboa_tests::golden::{Golden, decode_to_end, go_on, golden, greedy, load};
use jerboa_tests::open;
use pollster::block_on;
use serde_json::json;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// Tokens of a prefill step.
const CHUNK: usize = 16;
/// Maximum tokens of a sequence.
const CONTEXT: usize = 220;

fn run_options(kv: Kv, limit: Option<u64>) -> RunOptions {
    RunOptions {
        kv_growth: 8,
        kv_memory: limit,
        prefill_chunk: CHUNK,
        max_context: Some(CONTEXT),
        ..with_kv(kv)
    }
}

/// The bytes that the states take at least; `None` if there are not several caches to offload.
fn least_bytes(session: &Session) -> Option<u64> {
    let all = KvOffloadPlan::new(session.model().states(), CHUNK, u64::MAX).expect("no limit");
    let least = KvOffloadPlan::new(session.model().states(), CHUNK, 0).expect_err("no room");
    (least < all.bytes).then_some(least)
}

/// A session with the whole cache on the device, one with as little as possible, a prompt, and the
/// limit. `None` for models without several KV caches.
fn sessions(name: &str, kv: Kv) -> Option<(Session, Session, Vec<u32>, u64)> {
    let (whole, golden) = start(name, &exact(), run_options(kv, None));
    let limit = least_bytes(&whole)?;
    let (part, _) = start(name, &exact(), run_options(kv, Some(limit)));
    let ids = golden.ids("input_ids").into_iter().cycle();
    let ids = ids.take(whole.capacity() * 3 / 5).collect();
    Some((whole, part, ids, limit))
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|value| value.to_bits()).collect()
}

fn check_family(name: &str) {
    let Some((mut whole, mut part, ids, limit)) = sessions(name, Kv::F32) else {
        return;
    };
    let mut logits = [&mut whole, &mut part].map(|session| {
        block_on(session.prefill(&ids, 0)).expect("prefill");
        bits(&block_on(session.logits()).expect("logits"))
    });
    assert!(
        logits[0] == logits[1],
        "{name}: other logits after the prompt"
    );
    assert_eq!(go_on(&mut part, 60), go_on(&mut whole, 60), "{name}");
    let bytes = part.model().bytes();
    assert!(bytes.kv <= limit, "{name}: {bytes:?}, limit {limit}");
    assert!(bytes.kv_in_main_memory > 0, "{name}: nothing was offloaded");
    // Another prompt with the same beginning, and one that fits again.
    for (held, count) in [(40, 20), (3, 2)] {
        let prompt: Vec<u32> = ids[..held].iter().chain(&ids[..count]).copied().collect();
        logits = [&mut whole, &mut part].map(|session| {
            block_on(session.prefill_reusing_prefix(&prompt, &|| Ok(()))).expect("prefill");
            bits(&block_on(session.logits()).expect("logits"))
        });
        assert!(
            logits[0] == logits[1],
            "{name}: other logits after a trim to {held}"
        );
        assert_eq!(go_on(&mut part, 20), go_on(&mut whole, 20), "{name} {held}");
    }
    part.clear();
    assert_eq!(
        greedy(&mut part, &ids[..5], 3),
        greedy(&mut whole, &ids[..5], 3),
        "{name}"
    );
    assert_eq!(
        part.model().bytes().kv_in_main_memory,
        0,
        "{name}: back on the device"
    );
}

macro_rules! offload_families {
    ($($limit:literal: $($name:ident,)*;)*) => {
        mod equal_the_whole_cache {
            $($(
                #[test]
                fn $name() {
                    super::check_family(stringify!($name));
                }
            )*)*
        }
    };
}
with_families!(offload_families);

#[test]
fn every_format_of_the_cache_can_be_offloaded() {
    for kv in [Kv::F32, Kv::F16, Kv::Packed, Kv::Int8] {
        let device = DeviceOptions::default();
        if kv == Kv::F16 && !open(&device).caps().f16 {
            continue;
        }
        let (mut whole, golden) = start("qwen3", &device, run_options(kv, None));
        let limit = least_bytes(&whole);
        let (mut part, _) = start("qwen3", &device, run_options(kv, limit));
        let ids: Vec<u32> = golden
            .ids("input_ids")
            .into_iter()
            .cycle()
            .take(130)
            .collect();
        let expected = greedy(&mut whole, &ids, 60);
        assert_eq!(greedy(&mut part, &ids, 60), expected, "{kv:?}");
        assert!(part.model().bytes().kv_in_main_memory > 0, "{kv:?}");
    }
}

#[test]
fn an_answer_goes_on_when_its_cache_no_longer_fits() {
    let (mut whole, mut part, ids, limit) = sessions("qwen3", Kv::F32).expect("several caches");
    let prompt = &ids[..12];
    let expected = greedy(&mut whole, prompt, 150);
    assert_eq!(greedy(&mut part, prompt, 150), expected);
    assert!(part.model().bytes().kv_in_main_memory > 0);
    assert!(part.model().bytes().kv <= limit);
    // With proposals for every token, right ones and wrong ones.
    part.clear();
    block_on(part.prepare_speculation()).expect("drafts");
    block_on(part.prefill(prompt, 0)).expect("prefill");
    let lookup = PromptLookup {
        context: prompt,
        prediction: &expected,
        draft_always: true,
    };
    let params = DecodeParams {
        lookup: Some(lookup),
        ..DecodeParams::greedy(prompt.len(), 150)
    };
    assert_eq!(block_on(decode_to_end(&mut part, params)), expected);
    // And with a draft model.
    let (proposer, _) = start("qwen3", &exact(), run_options(Kv::F32, None));
    part.clear();
    let mut draft = draft(proposer.model(), &mut part);
    let found = generate(&mut part, Some(&mut draft), &Ask::greedy(prompt, 150));
    assert_eq!(found.tokens, expected);
    assert!(found.drafted > 0);
}

#[test]
fn layers_that_fit_stay_on_the_device() {
    let (mut whole, _, ids, least) = sessions("smollm3", Kv::F32).expect("several caches");
    let expected = greedy(&mut whole, &ids, 60);
    let states = whole.model().states();
    let all = KvOffloadPlan::new(states, CHUNK, u64::MAX).expect("no limit");
    let mut offloaded = Vec::new();
    let mut limit = least;
    while limit < all.bytes {
        let plan = KvOffloadPlan::new(states, CHUNK, limit).expect("fits");
        offloaded.push(plan.offloaded.len());
        let (mut part, _) = start("smollm3", &exact(), run_options(Kv::F32, Some(limit)));
        assert_eq!(greedy(&mut part, &ids, 60), expected, "{plan:?}");
        assert!(part.model().bytes().kv <= limit, "{plan:?}");
        limit += states[0].bytes();
    }
    assert!(offloaded.is_sorted_by(|a, b| a > b), "{offloaded:?}");
    assert!(offloaded.len() > 1, "{offloaded:?}");
}

#[test]
fn a_limit_below_the_least_is_refused_with_advice() {
    let (whole, _) = start("qwen3", &exact(), run_options(Kv::F32, None));
    let least = least_bytes(&whole).expect("several caches");
    let options = run_options(Kv::F32, Some(least - 1));
    let loaded = load(open(&exact()), &golden("models/qwen3"), options);
    let error = loaded.err().expect("refused");
    assert_eq!(error.code(), "out_of_memory");
    let message = error.to_string();
    assert!(
        message.contains(&format!("only {} are allowed", least - 1))
            && message.contains("'maxKvMemory', which sets this limit")
            && message.contains("maxContext"),
        "{message}"
    );
}

#[test]
fn a_saved_sequence_is_the_same_wherever_its_cache_is() {
    let (mut whole, mut part, ids, _) = sessions("qwen3", Kv::F32).expect("several caches");
    let expected = greedy(&mut whole, &ids, 40);
    for session in [&mut whole, &mut part] {
        block_on(session.prefill(&ids, 0)).expect("prefill");
    }
    let [resident, offloaded] = [save(&whole), save(&part)].map(|saved| saved.expect("saved"));
    assert!(resident == offloaded, "other bytes");
    for (session, saved) in [(&mut part, resident), (&mut whole, offloaded)] {
        session.clear();
        restore(session, &saved).expect("restored");
        assert_eq!(go_on(session, 40), expected);
    }
    assert!(part.model().bytes().kv_in_main_memory > 0);
}

/// Bytes that end early leave nothing behind.
#[test]
fn a_damaged_sequence_does_not_disturb_the_next() {
    let (mut whole, mut part, ids, _) = sessions("qwen3", Kv::F32).expect("several caches");
    let expected = greedy(&mut whole, &ids, 40);
    block_on(part.prefill(&ids, 0)).expect("prefill");
    let saved = save(&part).expect("saved");
    let mut damaged = saved.clone();
    damaged[40] ^= 1;
    for _ in 0..2 {
        let error = restore(&mut part, &damaged).expect_err("damaged");
        assert_eq!(error.code(), "request");
    }
    restore(&mut part, &saved).expect("restored");
    assert_eq!(go_on(&mut part, 40), expected);
    restore(&mut part, &damaged).expect_err("damaged");
    assert_eq!(greedy(&mut part, &ids, 40), expected);
}

/// A ring stays written where a sequence was rolled back; the caches in main memory do not.
#[test]
fn a_sequence_that_was_rolled_back_can_be_saved() {
    // Gemma 3 with two full layers instead of one.
    let from = golden("models/gemma3");
    let folder = std::env::temp_dir().join(format!("jerboa-{}-offload", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(
        from.join("model.safetensors"),
        folder.join("model.safetensors"),
    )
    .expect("a copy");
    let config = std::fs::read_to_string(from.join("config.json")).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("config.json");
    config["layer_types"] = json!(["sliding_attention", "full_attention", "full_attention"]);
    std::fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
    let open_with =
        |limit| load(open(&exact()), &folder, run_options(Kv::F32, limit)).expect("a model");
    let [mut whole, mut other] = [open_with(None), open_with(None)];
    assert!(whole.model().states()[0].ring);
    let mut part = open_with(least_bytes(&whole));
    let ids = Golden::read(&from.join("golden.safetensors")).ids("input_ids");
    let ids: Vec<u32> = ids.into_iter().cycle().take(150).collect();
    let short: Vec<u32> = ids[..133].iter().chain(&ids[..3]).copied().collect();
    for session in [&mut whole, &mut part] {
        block_on(session.prefill(&ids, 0)).expect("prefill");
        block_on(session.prefill_reusing_prefix(&short, &|| Ok(()))).expect("prefill");
    }
    // As far back as the ring allows, and further than what is kept on the device of the others.
    assert!(part.model().bytes().kv_in_main_memory > 0);
    let saved = save(&part).expect("saved");
    restore(&mut other, &saved).expect("restored");
    assert_eq!(go_on(&mut other, 20), go_on(&mut whole, 20));
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// The last layers read the caches of two earlier ones in turns. Their windows are as long as the
/// context, so that none is a ring.
#[test]
fn layers_that_share_caches_take_turns() {
    for name in ["gemma3n", "gemma4", "gemma4_kv"] {
        let options = |limit| RunOptions {
            max_context: Some(24),
            kv_growth: 4,
            ..run_options(Kv::F32, limit)
        };
        let (mut whole, golden) = start(name, &exact(), options(None));
        let states = whole.model().states();
        assert!(states.iter().all(|state| !state.ring), "{name}");
        let least = KvOffloadPlan::new(states, CHUNK, 0).expect_err("no room");
        let (mut part, _) = start(name, &exact(), options(Some(least)));
        let ids: Vec<u32> = golden
            .ids("input_ids")
            .into_iter()
            .cycle()
            .take(20)
            .collect();
        let logits = [&mut whole, &mut part].map(|session| {
            block_on(session.prefill(&ids, 0)).expect("prefill");
            bits(&block_on(session.logits()).expect("logits"))
        });
        assert!(logits[0] == logits[1], "{name}: other logits");
        assert_eq!(go_on(&mut part, 4), go_on(&mut whole, 4), "{name}");
    }
}

/// A step in parts waits for the device between them; activations are those of all sessions.
#[test]
fn sessions_that_run_at_once_do_not_disturb_each_other() {
    let (mut whole, mut part, ids, _) = sessions("smollm3", Kv::F32).expect("several caches");
    let prompts = [&ids[..], &ids[1..ids.len() - 9], &ids[..14]];
    let expected = prompts.map(|prompt| greedy(&mut whole, prompt, 40));
    let mut others = [1, 2].map(|_| Session::new(part.model()).expect("a session"));
    let [second, third] = &mut others;
    let run = async |session: &mut Session, prompt: &[u32]| {
        session.prefill(prompt, 0).await.expect("prefill");
        decode_to_end(session, DecodeParams::greedy(prompt.len(), 40)).await
    };
    let found = block_on(futures_util::future::join3(
        run(&mut part, prompts[0]),
        run(second, prompts[1]),
        run(third, prompts[2]),
    ));
    assert_eq!([found.0, found.1, found.2], expected);
    assert!(part.model().bytes().kv_in_main_memory > 0);
}

/// It ends anywhere between two parts of a chunk. The first model has recurrent states as well.
#[test]
fn a_prompt_that_is_dropped_does_not_disturb_the_next() {
    for name in ["falcon_h1", "qwen3"] {
        let (mut whole, mut part, ids, _) = sessions(name, Kv::F32).expect("several caches");
        let next = &ids[3..ids.len() - 5];
        let expected = greedy(&mut whole, next, 20);
        for polls in [1, 2, 3, 5, 8, 13, 40] {
            part.clear();
            {
                let mut running = pin!(part.prefill(&ids, 0));
                let mut context = Context::from_waker(Waker::noop());
                for _ in 0..polls {
                    if running.as_mut().poll(&mut context).is_ready() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let held = part.tokens().to_vec();
            assert!(ids.starts_with(&held), "{name}, {polls} polls");
            block_on(part.prefill_reusing_prefix(next, &|| Ok(()))).expect("prefill");
            assert_eq!(go_on(&mut part, 20), expected, "{name}, {polls} polls");
            block_on(part.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("prefill");
        }
        assert!(part.model().bytes().kv_in_main_memory > 0, "{name}");
    }
}

#[test]
fn copies_of_an_offloaded_sequence_are_refused() {
    let (_, mut part, ids, _) = sessions("qwen3", Kv::F32).expect("several caches");
    block_on(part.prefill(&ids, 0)).expect("prefill");
    let mut other = Session::new(part.model()).expect("a session");
    for error in [
        part.snapshot().err(),
        part.fork().err(),
        other.copy_from(&part).err(),
    ] {
        let error = error.expect("refused");
        assert_eq!(error.code(), "unsupported_option");
        assert!(error.to_string().contains("maxKvMemory"), "{error}");
    }
    // A shorter sequence can be copied, and restored in place of an offloaded one.
    let short = &ids[..6];
    let expected = greedy(&mut other, short, 4);
    block_on(other.prefill_reusing_prefix(short, &|| Ok(()))).expect("prefill");
    let snapshot = other.snapshot().expect("a copy");
    part.restore(&snapshot).expect("restored");
    assert_eq!(go_on(&mut part, 4), expected);
    block_on(part.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("prefill");
    assert!(part.snapshot().is_err(), "it is offloaded again");
    part.copy_from(&other).expect("copied");
    assert_eq!(go_on(&mut part, 4), expected);
}

/// Allows two thirds of the tokens, others after each.
struct Rotating(u32);

impl TokenConstraint for Rotating {
    fn mask(&mut self, words: &mut [u32]) -> jerboa::Result<()> {
        let bits = [0x9249_2492, 0x4924_9249, 0x2492_4924];
        for (index, word) in words.iter_mut().enumerate() {
            *word = !bits[(index + self.0 as usize) % 3];
        }
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> jerboa::Result<()> {
        self.0 += 1;
        Ok(())
    }
}

/// Sampling, masks and log-probabilities, whose steps the host divides from the beginning.
#[test]
fn requests_of_all_kinds_give_the_same_answers() {
    let folder = golden("../../www/public/models/stories260K");
    let stories = |kv_memory: Option<u64>| {
        let options = RunOptions {
            kv_memory,
            ..run_options(Kv::F32, None)
        };
        block_on(async {
            let model = ModelRef::parse(&folder.to_string_lossy())?;
            let hub = HubOptions::default();
            let source = Source::open(&model, &hub, AbortFlag::new(), Progress::silent()).await?;
            ChatModel::load(open(&exact()), &source, "stories", options).await
        })
        .expect("model")
    };
    let mut whole = stories(None);
    let states = whole.session.model().states();
    let least = KvOffloadPlan::new(states, CHUNK, 0).expect_err("no room");
    let mut part = stories(Some(least));
    for mut request in [
        json!({ "do_sample": false }),
        json!({ "temperature": 0.8, "seed": 3 }),
        json!({ "temperature": 0.9, "repetition_penalty": 1.3, "seed": 8 }),
        json!({ "temperature": 0.8, "seed": 3, "logprobs": true }),
    ] {
        request["prompt"] = json!("Once upon a time, there was a little girl");
        request["maxTokens"] = json!(120);
        let request = GenerateRequest::from_json(&request.to_string()).expect("request");
        for is_constrained in [false, true] {
            let [expected, found] = [&mut whole, &mut part].map(|model| {
                let mut rotating = Rotating(0);
                let constraint = is_constrained.then_some(&mut rotating as _);
                let abort = AbortFlag::default();
                let answer = model.generate_constrained(&request, constraint, &abort, |_| {});
                block_on(answer).expect("generate").ids
            });
            assert_eq!(found, expected, "{request:?}");
        }
    }
    assert!(part.session.model().bytes().kv_in_main_memory > 0);
}
