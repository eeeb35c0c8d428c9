//! Thousands of short requests of all kinds to one model: what they use after the last equals what
//! they use after the first hundred. `JERBOA_REQUESTS=10000` sends more.

use super::{request, tiny_with};
use futures_util::future::{FutureExt, join_all};
use jerboa::gpu::Backend;
use jerboa::hub::AbortFlag;
use jerboa::task::{ChatModel, ChatPool, FinishReason, GenerationResult};
use jerboa_tests::golden::{Golden, golden};
use pollster::block_on;
use serde_json::{Value, json};
use std::rc::Rc;

/// Requests of a test run; each round sends [`ROUND`].
const REQUESTS: usize = 500;
/// Requests after which everything is in use.
const WARM: usize = 100;
/// Greedy, sampled, aborted, stopped, four at once, a session, its fork.
const ROUND: usize = 10;
/// Conversations of the pool.
const SLOTS: usize = 4;
/// Growth of the process that the allocator may cause, in KiB.
const MAX_GROWTH_KIB: u64 = 64 << 10;

/// What a model uses.
#[derive(Debug, PartialEq)]
struct Usage {
    /// Bytes of all buffers; a buffer has at least 16.
    buffers: u64,
    /// Those of weights, of the pages of the KV cache, and of programs.
    weights: u64,
    kv: u64,
    activations: u64,
    threads: u64,
    /// Conversations that requests can have at once.
    slots: usize,
}

/// A number of /proc/self/status; 0 where there is no such file.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let digits = line.map(|line| line.trim_matches(|c: char| !c.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn free_slots(pool: &Rc<ChatPool>) -> usize {
    let abort = AbortFlag::new();
    let leases = (0..SLOTS).map(|_| pool.lease(None, &abort).now_or_never());
    let leases: Vec<_> = leases.collect();
    leases
        .iter()
        .filter(|lease| matches!(lease, Some(Ok(_))))
        .count()
}

fn usage(pool: &Rc<ChatPool>) -> Usage {
    let model = pool.model();
    Usage {
        buffers: model.gpu.resource_counts().bytes,
        weights: model.bytes().weights,
        kv: model.bytes().kv,
        activations: model.bytes().activations,
        threads: status("Threads:"),
        slots: free_slots(pool),
    }
}

async fn answer(pool: &Rc<ChatPool>, json: Value, abort_after: usize) -> GenerationResult {
    let request = request(json);
    let abort = AbortFlag::new();
    let mut lease = pool.lease(Some(&request), &abort).await.expect("a lease");
    let mut count = 0;
    let on_event = |event: &jerboa::task::TokenEvent| {
        count += event.ids.len();
        if count >= abort_after {
            abort.abort();
        }
    };
    let chat = lease.chat().expect("a conversation");
    chat.generate(&request, &abort, on_event)
        .await
        .expect("an answer")
}

async fn answer_in(chat: &mut ChatModel, json: Value) -> GenerationResult {
    let abort = AbortFlag::new();
    chat.generate(&request(json), &abort, |_| ())
        .await
        .expect("an answer")
}

/// Sends one request of each kind; `seed` varies prompts and samples.
async fn round(pool: &Rc<ChatPool>, ids: &[u32], stop: &str, seed: usize) {
    let greedy = |from: usize, max: usize| {
        let ids = &ids[from..];
        json!({ "ids": ids, "temperature": 0, "maxTokens": max, "ignoreEos": true })
    };
    let from = seed % 4;
    let first = answer(pool, greedy(from, 3), usize::MAX).await;
    let mut sampled = greedy(from, 3);
    sampled["temperature"] = json!(1.2);
    sampled["topK"] = json!(20);
    sampled["seed"] = json!(seed);
    assert_eq!(answer(pool, sampled, usize::MAX).await.ids.len(), 3);
    let aborted = answer(pool, greedy(0, 40), 1).await;
    assert_eq!(aborted.finish_reason, FinishReason::Abort);
    let mut stopped = greedy(0, 8);
    stopped["stop"] = json!([stop]);
    let stopped = answer(pool, stopped, usize::MAX).await;
    assert_eq!(stopped.finish_reason, FinishReason::Stop);
    let batch = (0..4).map(|index| answer(pool, greedy(index, 6), usize::MAX));
    let batch = join_all(batch).await;
    assert!(batch.iter().all(|answer| answer.ids.len() == 6));
    let together: usize = batch.iter().map(|answer| answer.batched_tokens).sum();
    assert!(together > 6, "only {together} tokens were decoded together");
    let mut lease = pool.lease(None, &AbortFlag::new()).await.expect("a lease");
    let mut session = lease
        .chat()
        .and_then(|chat| chat.create_session())
        .expect("a session");
    assert_eq!(
        answer_in(&mut session, greedy(from, 3)).await.ids,
        first.ids
    );
    let mut fork = session.fork().expect("a fork");
    assert_eq!(answer_in(&mut fork, greedy(from, 3)).await.ids, first.ids);
}

#[test]
fn requests_leave_nothing_behind() {
    let asked = std::env::var("JERBOA_REQUESTS").ok();
    let requests: usize = asked.map_or(REQUESTS, |count| count.parse().expect("a count"));
    let own = Golden::read(&golden("models/qwen2").join("golden.safetensors"));
    let ids = own.ids("input_ids");
    let chat = tiny_with("qwen2", None, json!([]), None);
    let pool = ChatPool::new(chat, SLOTS);
    let whole = json!({ "ids": ids, "temperature": 0, "maxTokens": 8, "ignoreEos": true });
    let text = block_on(answer(&pool, whole, usize::MAX)).text;
    // Ends within the answer.
    let stop: String = text.chars().skip(4).take(2).collect();
    for seed in 0..WARM / ROUND {
        block_on(round(&pool, &ids, &stop, seed));
    }
    let before = usage(&pool);
    assert_eq!(before.slots, SLOTS);
    let resident = status("VmRSS:");
    for seed in WARM / ROUND..requests.max(2 * WARM) / ROUND {
        block_on(round(&pool, &ids, &stop, seed));
        assert_eq!(
            usage(&pool),
            before,
            "after {} requests",
            (seed + 1) * ROUND
        );
    }
    let grown = status("VmRSS:").saturating_sub(resident);
    assert!(grown < MAX_GROWTH_KIB, "the process grew by {grown} KiB");
}
