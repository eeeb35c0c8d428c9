//! Sessions of one model: interleaved, forked, trimmed, saved and restored, disposed; with full
//! caches that grow in small pages, and with ring caches that have wrapped many times.

use super::{exact, start, with_kv};
use jerboa::exec::{DecodeLoop, DecodeParams, PromptLookup, RunOptions, Session};
use jerboa::gpu::Backend;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{go_on, greedy};
use jerboa_tests::relative_l2;
use pollster::block_on;

/// A model with full caches, two with windows of 8 positions in rings of 16 (Gemma 3 also has full
/// layers), models with recurrent state (a convolution, a delta rule, Mamba-2), and one whose last
/// layers share the cache of earlier layers, within a window and in full.
const FAMILIES: [(&str, usize); 7] = [
    ("qwen3", 512),
    ("mistral", 8),
    ("gemma3", 8),
    ("lfm2", 16),
    ("qwen3_5", 16),
    ("granite_hybrid", 16),
    ("gemma4", 8),
];

fn load(name: &str, chunk: usize) -> (Session, Vec<u32>, Vec<u32>) {
    let (session, golden) = start(
        name,
        &exact(),
        RunOptions {
            prefill_chunk: chunk,
            kv_growth: 16,
            ..with_kv(Kv::F32)
        },
    );
    (session, golden.ids("input_ids"), golden.ids("greedy"))
}

fn logits(session: &Session) -> Vec<f32> {
    block_on(session.logits()).expect("logits")
}

fn alike(found: &[f32], expected: &[f32], what: &str) {
    let error = relative_l2(found, expected);
    assert!(error < 1e-5, "{what}: {error:e}");
}

#[test]
fn interleaved_sessions_equal_separate_ones() {
    for (name, chunk) in FAMILIES {
        let (mut one, ids, expected) = load(name, chunk);
        let mut two = Session::new(one.model()).expect("a session");
        let other: Vec<u32> = ids.iter().rev().copied().collect();
        let alone = greedy(&mut two, &other, 32);
        // Alternates single tokens, each sampled from its own session's logits.
        block_on(one.prefill(&ids, 0)).expect("prefill");
        block_on(two.prefill(&other, 0)).expect("prefill");
        let pick = |session: &Session| {
            let row = logits(session);
            (0..row.len())
                .max_by(|a, b| row[*a].total_cmp(&row[*b]))
                .expect("a token") as u32
        };
        let mut first = Vec::new();
        let mut second = Vec::new();

        for step in 0..32 {
            let a = pick(&one);
            let b = pick(&two);

            first.push(a);
            second.push(b);
            if step < 31 {
                block_on(one.step(a, ids.len() + step)).expect("step");
                block_on(two.step(b, other.len() + step)).expect("step");
            }
        }
        assert_eq!((first, second), (expected.clone(), alone.clone()), "{name}");
        // Both at once, with batches in flight in both.
        block_on(one.prefill(&ids, 0)).expect("prefill");
        block_on(two.prefill(&other, 0)).expect("prefill");
        let mut a =
            DecodeLoop::start(&mut one, DecodeParams::greedy(ids.len(), 32)).expect("start");
        let mut b =
            DecodeLoop::start(&mut two, DecodeParams::greedy(other.len(), 32)).expect("start");
        let mut first = Vec::new();
        let mut second = Vec::new();

        while first.len() < 32 || second.len() < 32 {
            first.extend(block_on(a.next(&mut one)).expect("decode"));
            second.extend(block_on(b.next(&mut two)).expect("decode"));
        }
        assert_eq!((first, second), (expected, alone), "{name}");
    }
}

#[test]
fn trimmed_sequences_run_again_identically() {
    for (name, chunk) in FAMILIES {
        let (mut session, ids, expected) = load(name, chunk);
        block_on(session.prefill(&ids, 0)).expect("prefill");
        let after_prompt = logits(&session);
        session.checkpoint().expect("a checkpoint");
        assert_eq!(go_on(&mut session, 32), expected, "{name}");
        assert_eq!(
            session.tokens().len(),
            ids.len() + 31,
            "{name}: the last token is sampled and not run"
        );
        // Trims a few tokens, more than a ring holds, to the prompt, and to the middle of the
        // prompt.
        let all = [&ids[..], &expected[..31]].concat();
        for to in [all.len() - 3, all.len() - 20, ids.len(), ids.len() / 2, 1] {
            block_on(session.prefill_reusing_prefix(&all, &|| Ok(()))).expect("resume");
            let end = logits(&session);
            let held = session.trim(to).expect("trim");
            assert!(
                held <= to && session.tokens() == &all[..held],
                "{name}: {held} of {to}"
            );
            if name == "qwen3" {
                assert_eq!(held, to, "full caches go back anywhere");
            }
            block_on(session.prefill_reusing_prefix(&all, &|| Ok(()))).expect("resume");
            alike(&logits(&session), &end, &format!("{name}, back to {to}"));
        }
        // Regenerates: the prompt's logits are reused or computed again.
        let held = block_on(session.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("resume");
        assert!(
            held + 1 >= ids.len() || chunk < 512,
            "{name}: {held} tokens in the session"
        );
        alike(&logits(&session), &after_prompt, name);
        assert_eq!(go_on(&mut session, 32), expected, "{name}, regenerated");
        // Cancelled during a batch: submitted steps have run and change nothing.
        block_on(session.prefill(&ids, 0)).expect("prefill");
        let mut decode =
            DecodeLoop::start(&mut session, DecodeParams::greedy(ids.len(), 32)).expect("start");
        block_on(decode.next(&mut session)).expect("decode");
        block_on(decode.finish(&mut session)).expect("finish");
        assert!(
            session.tokens().len() >= ids.len() && all.starts_with(session.tokens()),
            "{name}"
        );
        // Dropped without a finish, as a dropped future leaves it.
        let end = session.tokens().len();
        let mut dropped =
            DecodeLoop::start(&mut session, DecodeParams::greedy(end, 32)).expect("start");
        block_on(dropped.next(&mut session)).expect("decode");
        drop(dropped);
        assert_eq!(
            greedy(&mut session, &ids, 32),
            expected,
            "{name}, after an abort"
        );
    }
}

#[test]
fn forks_and_snapshots_are_independent_and_freed() {
    for (name, chunk) in FAMILIES {
        let (mut session, ids, expected) = load(name, chunk);
        block_on(session.prefill(&ids, 0)).expect("prefill");
        let snapshot = session.snapshot().expect("a snapshot");
        assert_eq!(go_on(&mut session, 10), expected[..10], "{name}");
        let mut fork = session.fork().expect("a fork");
        let all = [&ids[..], &expected].concat();
        // The fork continues while the original does something else.
        let other: Vec<u32> = ids.iter().rev().copied().collect();
        greedy(&mut session, &other, 32);
        let at = ids.len() + 9;
        block_on(fork.step(all[at], at)).expect("step");
        assert_eq!(go_on(&mut fork, 22), expected[10..], "{name}, forked");
        session.restore(&snapshot).expect("restored");
        assert_eq!(session.tokens(), &ids[..], "{name}");
        assert_eq!(go_on(&mut session, 32), expected, "{name}, restored");
        // Bytes are counted, and freed when the session is dropped.
        drop((fork, snapshot));
        let (bytes, alive) = (
            session.model().bytes(),
            session.gpu().resource_counts().bytes,
        );
        for _ in 0..if chunk < 512 { 200 } else { 3 } {
            let fork = session.fork().expect("a fork");
            assert!(
                session.model().bytes().kv == 2 * bytes.kv
                    && session.gpu().resource_counts().bytes > alive,
                "{name}"
            );
            drop(fork);
        }
        assert_eq!(
            (
                session.model().bytes(),
                session.gpu().resource_counts().bytes
            ),
            (bytes, alive),
            "{name}"
        );
    }
}

#[test]
fn draft_buffers_are_freed_with_the_session() {
    for (name, chunk) in [("qwen3", 512), ("mistral", 8)] {
        let (mut first, ids, expected) = load(name, chunk);
        let all = |session: &Session| {
            (
                session.model().bytes(),
                session.gpu().resource_counts().bytes,
            )
        };
        let plain = all(&first);
        assert_eq!(with_drafts(&mut first, &ids, 32), expected, "{name}");
        // Its plans' buffers belong to the model; the next session reuses them.
        let model = first.model().clone();
        drop(first);
        let before = (model.bytes(), model.gpu.resource_counts().bytes);
        assert!(before.0.activations > plain.0.activations, "{name}");
        assert_eq!(before.0.kv, 0, "{name}");
        for _ in 0..3 {
            let mut session = Session::new(&model).expect("a session");
            let begun = all(&session);
            block_on(session.prepare_speculation()).expect("drafts");
            let took = (
                session.model().bytes().activations - begun.0.activations,
                session.gpu().resource_counts().bytes - begun.1,
            );
            assert!(took.0 > 0 && took.0 == took.1, "{name}: {took:?}");
            assert_eq!(with_drafts(&mut session, &ids, 32), expected, "{name}");
            drop(session);
            assert_eq!(
                (model.bytes(), model.gpu.resource_counts().bytes),
                before,
                "{name}"
            );
        }
    }
}

/// Output buffers for three rows fit into memory; those for a chunk do not.
#[test]
fn logits_of_all_rows_allocate_on_demand_and_compile_once() {
    for name in ["qwen3", "gemma3", "lfm2"] {
        let (mut session, ids, _) = load(name, 512);
        let long: Vec<u32> = ids.iter().copied().cycle().take(200).collect();
        for hidden in [false, true] {
            let mut rows = |ids: &[u32], room: Option<u64>| {
                session.gpu().simulate_memory_limit(room);
                let found = block_on(session.all_rows(ids, hidden));
                session.gpu().simulate_memory_limit(None);
                (found, session.gpu().resource_counts())
            };
            // The sequence's cache is allocated by now.
            let cols = rows(&long, None).0.expect("rows").len() / long.len();
            let (first, made) = rows(&ids[..3], None);
            let room = (long.len() * cols) as u64;
            let (second, again) = rows(&ids[..3], Some(room));
            assert_eq!(
                second.expect("room for three rows"),
                first.expect("rows"),
                "{name}"
            );
            assert_eq!(again.pipelines, made.pipelines, "{name}: compiled twice");
            assert_eq!(again.bytes, made.bytes, "{name}: something stays");
            let refused = rows(&long, Some(room))
                .0
                .map(|_| "fits")
                .map_err(|error| error.code());
            assert_eq!(refused, Err("out_of_memory"), "{name}");
        }
    }
}

#[test]
fn a_window_stores_itself_and_one_step() {
    let (mut session, ids, _) = load("mistral", 8);
    let kept: u64 = session.model().states().iter().map(|s| s.bytes()).sum();
    assert_eq!(
        kept * 16,
        session
            .model()
            .states()
            .iter()
            .map(|s| s.bytes() / s.positions as u64 * 256)
            .sum::<u64>()
    );
    // After many wraps the logits equal those of a full cache.
    let long: Vec<u32> = ids.iter().copied().cycle().take(200).collect();
    let (mut full, _, _) = load("mistral", 512);
    block_on(session.prefill(&long, 0)).expect("prefill");
    block_on(full.prefill(&long, 0)).expect("prefill");
    alike(
        &logits(&session),
        &logits(&full),
        "200 tokens in steps of 8",
    );
    assert_eq!(go_on(&mut session, 40), go_on(&mut full, 40));
}

/// Growth during a prompt's chunks, batches of steps, drafts, and restoring a snapshot: the ids
/// equal those of a preallocated cache, and memory follows the tokens.
#[test]
fn the_kv_cache_grows_with_the_sequence() {
    for (name, kv) in [
        ("qwen3", Kv::F32),
        ("gemma3", Kv::Int8),
        ("gemma4_kv", Kv::Packed),
        ("lfm2", Kv::F32),
    ] {
        let run = |page: usize| {
            start(
                name,
                &exact(),
                RunOptions {
                    kv_growth: page,
                    prefill_chunk: 16,
                    ..with_kv(kv)
                },
            )
        };
        let (mut whole, golden) = run(0);
        let ids: Vec<u32> = golden
            .ids("input_ids")
            .into_iter()
            .cycle()
            .take(70)
            .collect();
        let most = whole.model().state_bytes(256);
        assert_eq!(whole.model().bytes().kv, most, "{name}");
        let expected = greedy(&mut whole, &ids, 150);
        let after = logits(&whole);
        let (mut session, _) = run(8);
        let kv = |session: &Session| session.model().bytes().kv;
        assert_eq!(
            kv(&session),
            session.model().state_bytes(8),
            "{name}: one page to begin with"
        );
        assert_eq!(greedy(&mut session, &ids[..10], 1).len(), 1);
        let first = kv(&session);
        let early = session.snapshot().expect("a snapshot");

        assert_eq!(first, session.model().state_bytes(16), "{name}");
        block_on(session.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("resume");
        assert_eq!(
            kv(&session),
            session.model().state_bytes(72),
            "{name}: whole pages for the prompt"
        );
        assert_eq!(go_on(&mut session, 150), expected, "{name}");
        alike(&logits(&session), &after, name);
        // 70 tokens and 149 of the answer; capacity grows by half, up to the context.
        assert!(kv(&session) > first && kv(&session) <= most, "{name}");
        // A session that has not grown adopts the larger cache, and returns it.
        let late = session.snapshot().expect("a snapshot");
        let mut other = Session::new(session.model()).expect("a session");
        other.restore(&late).expect("restored");
        other.restore(&early).expect("restored");
        assert_eq!(other.tokens(), &ids[..10]);
        block_on(other.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("resume");
        assert_eq!(go_on(&mut other, 20), expected[..20], "{name}, restored");
        // Drafts write beyond the valid positions.
        let mut drafted = Session::new(session.model()).expect("a session");
        if !session.model().is_recurrent() {
            assert_eq!(
                with_drafts(&mut drafted, &ids, 60),
                expected[..60],
                "{name}, drafted"
            );
        }
        drop((drafted, other));
        assert_eq!(
            kv(&session),
            session.model().state_bytes(256),
            "{name}: what others took is given back"
        );
    }
}

fn with_drafts(session: &mut Session, ids: &[u32], count: usize) -> Vec<u32> {
    let tokens = block_on(async {
        session.prepare_speculation().await?;
        session.prefill(ids, 0).await?;
        let lookup = Some(PromptLookup {
            context: ids,
            prediction: &[],
            draft_always: true,
        });
        let mut decode = DecodeLoop::start(
            session,
            DecodeParams {
                lookup,
                ..DecodeParams::greedy(ids.len(), count)
            },
        )?;
        let mut tokens = Vec::new();
        loop {
            let next = decode.next(session).await?;
            if next.is_empty() {
                return decode.finish(session).await.map(|()| tokens);
            }
            tokens.extend(next);
        }
    });
    tokens.expect("tokens")
}
