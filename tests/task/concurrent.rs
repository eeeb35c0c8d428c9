//! Concurrent generations: they decode together, and each gets what it gets alone.

use super::constraint::Pattern;
use super::{request, stories, tiny_with};
use futures_util::future::{join, join_all, join3};
use jerboa::hub::AbortFlag;
use jerboa::sample::TokenConstraint;
use jerboa::task::{ChatModel, ChatPool, FinishReason, GenerationResult};
use jerboa::{Error, Result};
use jerboa_tests::golden::{Golden, golden};
use pollster::block_on;
use serde_json::{Value, json};
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// Prompts of several chunks and of one token.
fn prompts(ids: &[u32]) -> Vec<Vec<u32>> {
    let all: Vec<u32> = ids.iter().cycle().copied().take(90).collect();
    vec![
        ids.to_vec(),
        all.clone(),
        all[3..40].to_vec(),
        ids[..1].to_vec(),
        all[..70].to_vec(),
    ]
}

fn greedy(ids: &[u32], max: usize) -> Value {
    json!({ "ids": ids, "temperature": 0, "maxTokens": max, "ignoreEos": true })
}

/// Generates in a session of its own for each request, at once.
fn together(model: &ChatModel, requests: &[Value]) -> Vec<GenerationResult> {
    let mut sessions: Vec<ChatModel> = requests
        .iter()
        .map(|_| model.create_session().expect("a session"))
        .collect();
    let all = sessions.iter_mut().zip(requests).map(|(session, json)| {
        let request = request(json.clone());
        async move {
            let abort = AbortFlag::new();
            session.generate(&request, &abort, |_| ()).await
        }
    });
    let all = block_on(join_all(all)).into_iter();
    all.map(|result| result.expect("an answer")).collect()
}

/// Generates in a new session for each request, one after another.
fn alone(model: &ChatModel, requests: &[Value]) -> Vec<GenerationResult> {
    let one = |json: &Value| together(model, std::slice::from_ref(json)).remove(0);
    let results: Vec<GenerationResult> = requests.iter().map(one).collect();
    assert!(results.iter().all(|result| result.batched_tokens == 0));
    results
}

fn tiny(name: &str) -> (ChatModel, Vec<u32>) {
    let golden = Golden::read(&golden(&format!("models/{name}")).join("golden.safetensors"));
    let model = tiny_with(name, None, json!([]), None);
    (model, golden.ids("input_ids"))
}

/// Waits until a condition holds that other futures of this thread establish.
async fn until(condition: impl Fn() -> bool) {
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if condition() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[test]
fn answers_equal_those_alone() {
    for name in [
        "qwen3",
        "gemma3",
        "lfm2",
        "qwen3_5",
        "mixtral",
        "deepseek_v3",
    ] {
        let (model, ids) = tiny(name);
        let requests: Vec<Value> = prompts(&ids)
            .iter()
            .enumerate()
            .map(|(index, ids)| greedy(ids, 40 - 5 * index))
            .collect();
        let expected = alone(&model, &requests);
        let found = together(&model, &requests);
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.ids, expected.ids, "{name}: answer {index}");
            assert_eq!(found.finish_reason, FinishReason::Length, "{name}");
            assert!(found.batched_tokens > 0, "{name}: answer {index} was alone");
        }
    }
}

#[test]
fn random_answers_equal_those_alone_at_the_same_seed() {
    let (model, ids) = tiny("qwen2");
    let requests: Vec<Value> = prompts(&ids)
        .iter()
        .enumerate()
        .map(|(index, ids)| {
            json!({ "ids": ids, "maxTokens": 30, "ignoreEos": true, "seed": index,
                "temperature": 1.7, "topK": 30, "repetitionPenalty": 1.0 + index as f64 / 5.0 })
        })
        .collect();
    let expected = alone(&model, &requests);
    for (found, expected) in together(&model, &requests).iter().zip(&expected) {
        assert_eq!(found.ids, expected.ids);
        assert!(found.batched_tokens > 0);
    }
}

#[test]
fn a_generation_joins_running_ones_and_goes_on_alone_after_them() {
    joins_and_goes_on_alone(&json!({}));
}

#[test]
fn a_generation_that_drafts_joins_others_and_goes_on_alone_after_them() {
    joins_and_goes_on_alone(&json!({ "speculation": "prompt-lookup" }));
    joins_and_goes_on_alone(&json!({ "prediction": "a text of some length" }));
}

fn joins_and_goes_on_alone(more: &Value) {
    let (mut model, ids) = tiny("qwen3");
    let mut requests = [greedy(&ids, 120), greedy(&ids[..9], 8)];
    let expected = alone(&model, &requests);
    let fields = requests[0].as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    let mut other = model.create_session().expect("a session");
    let seen = Cell::new(0);
    let [long, short] = requests.map(request);
    let abort = AbortFlag::new();
    let long = model.generate(&long, &abort, |event| {
        seen.set(seen.get() + event.ids.len());
    });
    let short = async {
        until(|| seen.get() >= 10).await;
        let result = other.generate(&short, &abort, |_| ()).await;
        (result, seen.get())
    };
    let (long, (short, at_end)) = block_on(join(long, short));
    let (long, short) = (long.expect("an answer"), short.expect("an answer"));
    assert_eq!(long.ids, expected[0].ids);
    assert_eq!(short.ids, expected[1].ids);
    assert!(at_end < 120, "the long one ended first");
    assert!(short.batched_tokens > 0 && long.batched_tokens > 0);
    let apart = long.ids.len() - long.batched_tokens;
    assert!(apart > 20, "it was alone for {apart} tokens");
}

/// Stop strings, aborts and token limits end one answer only, and each conversation goes on from
/// its own states.
#[test]
fn an_answer_that_ends_leaves_the_others_as_they_are() {
    for name in ["qwen2", "qwen3_5"] {
        let (model, ids) = tiny(name);
        let prompts = prompts(&ids);
        let whole: Vec<Value> = prompts.iter().map(|ids| greedy(ids, 40)).collect();
        let expected = alone(&model, &whole);
        let mut requests = whole.clone();
        let at = |n: usize| {
            let text: String = expected[0].text.chars().take(n).collect();
            text
        };
        let stop: String = at(14).chars().skip(11).collect();
        requests[0]["stop"] = json!([stop]);
        requests[2] = greedy(&prompts[2], 3);
        let mut sessions: Vec<ChatModel> = requests
            .iter()
            .map(|_| model.create_session().expect("a session"))
            .collect();
        let all = sessions.iter_mut().zip(&requests).enumerate();
        let all = all.map(|(index, (session, json))| {
            let request = request(json.clone());
            async move {
                let abort = AbortFlag::new();
                let mut count = 0;
                let abort_at = if index == 1 { 6 } else { usize::MAX };
                let on_event = |event: &jerboa::task::TokenEvent| {
                    count += event.ids.len();
                    if count >= abort_at {
                        abort.abort();
                    }
                };
                session.generate(&request, &abort, on_event).await
            }
        });
        let found: Vec<GenerationResult> = block_on(join_all(all))
            .into_iter()
            .map(|result| result.expect("an answer"))
            .collect();
        assert_eq!(found[0].finish_reason, FinishReason::Stop, "{name}");
        let end = expected[0].text.find(&stop).expect("the stop string");
        assert_eq!(found[0].text, expected[0].text[..end], "{name}");
        assert_eq!(found[1].finish_reason, FinishReason::Abort, "{name}");
        assert!((6..40).contains(&found[1].ids.len()), "{name}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.ids, expected.ids[..found.ids.len()], "{name} {index}");
            assert!(found.batched_tokens > 0, "{name} {index}");
        }
        assert_eq!(found[2].ids.len(), 3);
        assert_eq!([found[3].ids.len(), found[4].ids.len()], [40, 40]);
        // Each goes on where it ended.
        for (index, session) in sessions.iter_mut().enumerate() {
            let so_far = found[index].ids.len();
            let ids = [&prompts[index][..], &found[index].ids].concat();
            let rest = super::run(session, greedy(&ids, 45 - so_far));
            let fresh = alone(&model, &[greedy(&ids, 45 - so_far)]).remove(0);
            assert_eq!(rest.ids, fresh.ids, "{name}: answer {index} goes on");
        }
    }
}

#[test]
fn constraints_apply_to_their_own_answers() {
    let model = stories(256);
    let reference = super::reference();
    let plain = greedy(&reference.prompt_ids, 40);
    let one = |offset: usize| {
        let mut session = model.create_session().expect("a session");
        let request = request(plain.clone());
        async move {
            let mut pattern = Pattern::new(512, offset);
            let abort = AbortFlag::new();
            let constraint = Some(&mut pattern as &mut dyn TokenConstraint);
            session
                .generate_constrained(&request, constraint, &abort, |_| ())
                .await
        }
    };
    let expected = [0, 3].map(|offset| block_on(one(offset)).expect("an answer").ids);
    assert_ne!(expected[0], expected[1]);
    let mut free = model.create_session().expect("a session");
    let request = request(plain.clone());
    let abort = AbortFlag::new();
    let seen = Cell::new(0);
    let free = free.generate(&request, &abort, |event| {
        seen.set(seen.get() + event.ids.len());
    });
    let late = async {
        until(|| seen.get() >= 4).await;
        one(3).await
    };
    let (free, first, late) = block_on(join3(free, one(0), late));
    assert_eq!(free.expect("an answer").ids, reference.new_ids()[..40]);
    assert_eq!(first.expect("an answer").ids, expected[0]);
    assert_eq!(late.expect("an answer").ids, expected[1]);
}

/// Allows no token after some.
struct DeadEnd(usize);

impl TokenConstraint for DeadEnd {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(if self.0 > 0 { u32::MAX } else { 0 });
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<()> {
        self.0 -= 1;
        Ok(())
    }
}

#[test]
fn an_error_is_that_of_one_answer() {
    let (model, ids) = tiny("qwen2");
    let requests = [greedy(&ids, 30), greedy(&ids[..7], 30)];
    let expected = alone(&model, &requests);
    let mut sessions: Vec<ChatModel> = (0..3)
        .map(|_| model.create_session().expect("a session"))
        .collect();
    let mut broken = sessions.pop().expect("a session");
    let [first, second] = &mut sessions[..] else {
        panic!("two sessions")
    };
    let abort = AbortFlag::new();
    let [one, two] = requests.map(request);
    let mut end = DeadEnd(4);
    let results = block_on(join3(
        first.generate(&one, &abort, |_| ()),
        broken.generate_constrained(&one, Some(&mut end), &abort, |_| ()),
        second.generate(&two, &abort, |_| ()),
    ));
    assert_eq!(results.0.expect("an answer").ids, expected[0].ids);
    assert_eq!(results.2.expect("an answer").ids, expected[1].ids);
    let error = results.1.expect_err("no token is allowed");
    assert!(matches!(error, Error::Request { .. }), "{error}");
    // The next generations decode together again.
    let again = together(&model, &[greedy(&ids, 30), greedy(&ids[..7], 30)]);
    assert_eq!(again[0].ids, expected[0].ids);
    assert!(again[0].batched_tokens > 0);
}

/// While a prompt of many chunks runs, answers go on after each chunk.
#[test]
fn a_long_prompt_delays_answers_by_a_chunk_at_a_time() {
    let (mut model, ids) = tiny("qwen3");
    let long: Vec<u32> = ids.iter().cycle().copied().take(200).collect();
    let mut other = model.create_session().expect("a session");
    let batches = Cell::new(0);
    let [answer, prompt] = [greedy(&ids, 220), greedy(&long, 1)].map(request);
    let abort = AbortFlag::new();
    let answer = model.generate(&answer, &abort, |_| batches.set(batches.get() + 1));
    let prompt = async {
        until(|| batches.get() >= 2).await;
        let before = batches.get();
        let result = other.generate(&prompt, &abort, |_| ()).await;
        (result, batches.get() - before)
    };
    let (answer, (prompt, meanwhile)) = block_on(join(answer, prompt));
    assert_eq!(answer.expect("an answer").ids.len(), 220);
    prompt.expect("an answer");
    // 200 tokens are 13 chunks of 16.
    assert!(meanwhile >= 12, "{meanwhile} batches of tokens meanwhile");
}

/// Requests that a pool serves at once, more than its conversations at a time.
#[test]
fn a_pool_serves_requests_at_once_by_priority() {
    let (model, ids) = tiny("qwen3");
    let requests: Vec<Value> = prompts(&ids)
        .iter()
        .enumerate()
        .map(|(index, ids)| {
            let mut request = greedy(ids, 12);
            request["priority"] = json!(index as i64 - 2);
            request
        })
        .collect();
    let expected = alone(&model, &requests);
    let pool = ChatPool::new(model, 2);
    let order = std::cell::RefCell::new(Vec::new());
    let all = requests.iter().enumerate().map(|(index, json)| {
        let request = request(json.clone());
        let (pool, order) = (&pool, &order);
        async move {
            let abort = AbortFlag::new();
            let mut lease = pool.lease(Some(&request), &abort).await?;
            order.borrow_mut().push(index);
            lease.chat()?.generate(&request, &abort, |_| ()).await
        }
    });
    let found = block_on(join_all(all));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.as_ref().expect("an answer").ids, expected.ids);
    }
    // Two conversations at first; then the highest priority of those that wait.
    assert_eq!(order.take(), [0, 1, 4, 3, 2]);
    // An idle conversation serves the prompt that it has.
    let again = request(requests[3].clone());
    let result = block_on(async {
        let mut lease = pool.lease(Some(&again), &AbortFlag::new()).await?;
        lease
            .chat()?
            .generate(&again, &AbortFlag::new(), |_| ())
            .await
    });
    assert_eq!(result.expect("an answer").ids, expected[3].ids);
    // An abort ends the wait for a conversation.
    let abort = AbortFlag::new();
    let waited = block_on(async {
        let none = AbortFlag::new();
        let _held = [
            pool.lease(None, &none).await?,
            pool.lease(None, &none).await?,
        ];
        let wait = pool.lease(None, &abort);
        let stop = async { abort.abort() };
        join(wait, stop).await.0.map(|_| ())
    });
    assert!(matches!(waited, Err(Error::Aborted { .. })));
}

/// Prompts with a common beginning run it once.
#[test]
fn a_common_beginning_runs_once() {
    for name in ["qwen3", "qwen3_5"] {
        let (model, ids) = tiny(name);
        let common: Vec<u32> = ids.iter().cycle().copied().take(100).collect();
        let mut prompts = vec![common.clone(); 2];
        prompts.extend([7, 9].map(|last| [&common[..], &[last, 3]].concat()));
        let requests: Vec<Value> = prompts.iter().map(|ids| greedy(ids, 10)).collect();
        let expected = alone(&model, &requests);
        let found = together(&model, &requests);
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.ids, expected.ids, "{name} {index}");
            assert_eq!(expected.cached_tokens, 0, "{name} {index}");
            let cached = if index == 0 { 0 } else { 100 };
            assert_eq!(found.cached_tokens, cached, "{name} {index}");
        }
        // After an aborted prompt another one runs it.
        let mut sessions: Vec<ChatModel> = (0..3)
            .map(|_| model.create_session().expect("a session"))
            .collect();
        let request = request(requests[2].clone());
        let aborted = AbortFlag::new();
        let all = sessions.iter_mut().enumerate().map(|(index, session)| {
            let (request, aborted) = (&request, &aborted);
            async move {
                let own = AbortFlag::new();
                if index == 2 {
                    aborted.abort();
                }
                let abort = if index == 0 { aborted } else { &own };
                session.generate(request, abort, |_| ()).await
            }
        });
        let found = block_on(join_all(all));
        assert!(matches!(found[0], Err(Error::Aborted { .. })), "{name}");
        let answers: Vec<&GenerationResult> = found[1..].iter().flatten().collect();
        assert_eq!(answers.len(), 2, "{name}");
        assert!(answers.iter().all(|a| a.ids == expected[2].ids), "{name}");
        let mut cached: Vec<usize> = answers.iter().map(|a| a.cached_tokens).collect();
        cached.sort_unstable();
        assert_eq!(cached, [0, 102], "{name}");
    }
}

/// Requests with other adapters, and none, at once; sessions that use one.
#[test]
fn requests_choose_adapters() {
    let expected = Golden::read(&golden("lora/golden.safetensors"));
    let (model, ids) = tiny("llama");
    let base = Golden::read(&golden("models/llama/golden.safetensors")).ids("greedy");
    let ids_of = |name: &str| -> Vec<u32> {
        let all = expected.ints(&format!("greedy.{name}"));
        all.into_iter().map(|id| id as u32).collect()
    };
    let pool = ChatPool::new(model, 8);
    block_on(async {
        for name in ["adapter", "query_value"] {
            let folder = golden(&format!("lora/{name}"));
            let source = jerboa_tests::golden::open(&folder).await.expect(name);
            pool.load_adapter(name, &source, false).await.expect(name);
            let again = pool.load_adapter(name, &source, false).await;
            assert!(
                matches!(again, Err(Error::Request { .. })),
                "{name}: a taken name"
            );
        }
    });
    let wanted = [
        ("adapter", ids_of("adapter")),
        ("", base.clone()),
        ("query_value", ids_of("query_value")),
        ("adapter", ids_of("adapter")),
        ("", base),
    ];
    let generate = |adapter: &str| {
        let mut json = greedy(&ids, 32);
        json["adapter"] = json!(adapter);
        let (request, pool) = (request(json), pool.clone());
        async move {
            let abort = AbortFlag::new();
            let mut lease = pool.lease(Some(&request), &abort).await?;
            lease.chat()?.generate(&request, &abort, |_| ()).await
        }
    };
    let all = block_on(join_all(wanted.iter().map(|(name, _)| generate(name))));
    for (result, (name, ids)) in all.into_iter().zip(&wanted) {
        let result = result.expect("an answer");
        assert_eq!(&result.ids, ids, "'{name}'");
        // Those with the same adapter decode together.
        assert_eq!(
            result.batched_tokens > 0,
            *name != "query_value",
            "'{name}'"
        );
    }
    pool.unload_adapter("adapter").expect("it is loaded");
    for name in ["adapter", "other"] {
        let error = block_on(generate(name)).expect_err("an unknown adapter");
        assert!(error.to_string().contains("no adapter"), "{error}");
    }
    assert_eq!(
        block_on(generate("query_value")).expect("an answer").ids,
        ids_of("query_value")
    );
}
