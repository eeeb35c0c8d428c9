//! A device that runs out of memory while a sequence grows: one error that says so, no leaked
//! buffers, and a sequence that continues within its capacity.

use super::{exact, start, with_kv};
use jerboa::Error;
use jerboa::exec::{DecodeLoop, DecodeParams, PromptLookup, RunOptions, Session};
use jerboa::gpu::Backend;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{go_on, greedy};
use pollster::block_on;

/// Asserts an out-of-memory error with advice.
fn refused<T>(result: Result<T, Error>, what: &str) {
    let error = result
        .err()
        .unwrap_or_else(|| panic!("{what}: there was room"));
    assert_eq!(error.code(), "out_of_memory", "{what}: {error}");
    assert!(error.to_string().contains("maxContext"), "{what}: {error}");
}

/// Generates until the answer is complete or the device refuses.
fn decode(session: &mut Session, ids: &[u32], lookup: bool) -> (Vec<u32>, Result<(), Error>) {
    let lookup = lookup.then_some(PromptLookup {
        context: ids,
        prediction: &[],
        draft_always: true,
    });
    let mut decode = DecodeLoop::start(
        session,
        DecodeParams {
            lookup,
            ..DecodeParams::greedy(ids.len(), 32)
        },
    )
    .expect("start");
    let mut tokens = Vec::new();
    let end = loop {
        match block_on(decode.next(session)) {
            Ok(next) if next.is_empty() => break Ok(()),
            Ok(next) => tokens.extend(next),
            Err(error) => break Err(error),
        }
    };
    block_on(decode.finish(session)).expect("what was under way");
    (tokens, end)
}

#[test]
fn a_sequence_that_cannot_grow_keeps_its_capacity() {
    for (name, kv, drafts) in [("qwen3", Kv::F32, true), ("gemma4_kv", Kv::Packed, false)] {
        let (mut session, golden) = start(
            name,
            &exact(),
            RunOptions {
                kv_growth: 8,
                prefill_chunk: 16,
                ..with_kv(kv)
            },
        );
        let ids = golden.ids("input_ids");
        if drafts {
            block_on(session.prepare_speculation()).expect("drafts");
        }
        let expected = greedy(
            &mut Session::new(session.model()).expect("a session"),
            &ids,
            32,
        );
        block_on(session.prefill(&ids, 0)).expect("prefill");
        let all = |session: &Session| {
            (
                session.model().bytes(),
                session.gpu().resource_counts().bytes,
            )
        };
        let before = all(&session);
        // No memory at all, and enough for some of the states.
        for room in [0, session.model().state_bytes(8)] {
            session.gpu().simulate_memory_limit(Some(room));
            let long: Vec<u32> = ids.iter().copied().cycle().take(200).collect();
            refused(
                block_on(session.prefill_reusing_prefix(&long, &|| Ok(()))),
                name,
            );
            assert_eq!(
                block_on(session.gpu().check()).err().map(|e| e.to_string()),
                None,
                "{name}: reported once"
            );
            assert_eq!(session.tokens(), &ids[..], "{name}");
            assert_eq!(all(&session), before, "{name}: something stays");
            // Capacity for the prompt and a few tokens of the answer.
            block_on(session.prefill_reusing_prefix(&ids, &|| Ok(())))
                .expect("capacity is allocated");
            let (tokens, end) = decode(&mut session, &ids, false);
            refused(end, name);
            assert!(
                !tokens.is_empty() && expected.starts_with(&tokens),
                "{name}: {tokens:?}"
            );
            let run = [&ids[..], &expected].concat();
            assert!(
                session.tokens().len() >= ids.len() && run.starts_with(session.tokens()),
                "{name}"
            );
            assert_eq!(all(&session).0, before.0, "{name}: something stays");
            if drafts {
                block_on(session.prefill_reusing_prefix(&ids, &|| Ok(())))
                    .expect("capacity is allocated");
                let (tokens, end) = decode(&mut session, &ids, true);
                refused(end, name);
                assert!(expected.starts_with(&tokens), "{name}, drafted: {tokens:?}");
            }
            session.gpu().simulate_memory_limit(None);
            block_on(session.prefill_reusing_prefix(&ids, &|| Ok(())))
                .expect("capacity is allocated");
        }
        assert_eq!(all(&session), before, "{name}: something stays");
        assert_eq!(
            go_on(&mut session, 32),
            expected,
            "{name}: there is room again"
        );
    }
}
