//! Batched decoding: sequences of different lengths that join and leave between steps get the ids
//! that each gets alone.

use super::{exact, start, with_families, with_kv};
use jerboa::exec::{DecodeBatch, RunOptions, SequenceId, SequenceParams, Session};
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{go_on, greedy};
use pollster::block_on;
use std::collections::BTreeMap;

/// Prompts of different lengths: the beginning of the golden prompt, all of it, and its reverse
/// after it.
fn prompts(ids: &[u32], count: usize) -> Vec<Vec<u32>> {
    let reversed = ids.iter().rev().copied().collect::<Vec<_>>();
    let all = [ids, &reversed].concat();
    (0..count)
        .map(|i| match i {
            0 => ids.to_vec(),
            _ => all[i..all.len() - 2 * i + 1].to_vec(),
        })
        .collect()
}

fn join(batch: &mut DecodeBatch, session: &Session, budget: usize) -> SequenceId {
    let params = SequenceParams { stops: &[], budget };
    block_on(batch.join(session, params)).expect("join")
}

/// Decodes until all sequences have stopped, or until `enough`.
fn run(
    batch: &mut DecodeBatch,
    tokens: &mut BTreeMap<SequenceId, Vec<u32>>,
    enough: impl Fn(&BTreeMap<SequenceId, Vec<u32>>) -> bool,
) {
    while !enough(tokens) {
        let next = block_on(batch.next()).expect("a step");
        if next.is_empty() {
            break;
        }
        for (id, new) in next {
            tokens.entry(id).or_default().extend(new);
        }
    }
}

fn prefilled(model: &Session, prompt: &[u32]) -> Session {
    let mut session = Session::new(model.model()).expect("a session");
    block_on(session.prefill(prompt, 0)).expect("prefill");
    session
}

/// Sequences in one step, with a join in the middle, ends at different times, and leaves whose
/// sessions go on alone.
fn equal_alone(name: &str, count: usize, options: RunOptions) {
    let (mut alone, golden) = start(name, &exact(), options);
    let prompts = prompts(&golden.ids("input_ids"), count);
    let budget = |index: usize| 32 - 3 * index;
    let expected: Vec<Vec<u32>> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| greedy(&mut alone, prompt, budget(index)))
        .collect();
    let mut sessions: Vec<Session> = prompts.iter().map(|p| prefilled(&alone, p)).collect();
    let mut batch = block_on(DecodeBatch::new(alone.model(), count)).expect("a batch");
    let mut tokens = BTreeMap::new();
    let mut ids = Vec::new();
    for (index, session) in sessions.iter().enumerate() {
        ids.push(join(&mut batch, session, budget(index)));
        // The others have decoded some tokens when the last one joins.
        if index + 2 == count {
            let first = ids[0];
            run(&mut batch, &mut tokens, |tokens| {
                tokens.get(&first).is_some_and(|own| own.len() >= 4)
            });
        }
    }
    // The first leaves early, and goes on alone.
    run(&mut batch, &mut tokens, |tokens| {
        tokens
            .get(&ids[count - 1])
            .is_some_and(|own| own.len() >= 2)
    });
    block_on(batch.leave(ids[0], &mut sessions[0])).expect("leave");
    run(&mut batch, &mut tokens, |_| false);
    for (index, id) in ids.iter().enumerate().skip(1) {
        assert!(batch.has_stopped(*id), "{name}");
        assert_eq!(tokens[id], expected[index], "{name}: sequence {index}");
        block_on(batch.leave(*id, &mut sessions[index])).expect("leave");
    }
    assert!(batch.is_empty());
    let begun = &tokens[&ids[0]];
    assert_eq!(begun, &expected[0][..begun.len()], "{name}: the first");
    assert!(begun.len() < expected[0].len(), "{name}: it left too late");
    // What was given back: the same tokens, and states that the rest follows from.
    for (index, session) in sessions.iter_mut().enumerate() {
        let sampled = &tokens[&ids[index]];
        let held = [&prompts[index][..], &sampled[..sampled.len() - 1]].concat();
        assert_eq!(session.tokens(), held, "{name}: tokens of session {index}");
        let last = sampled[sampled.len() - 1];
        block_on(session.step(last, held.len())).expect("step");
        let rest = go_on(session, 5);
        let whole = greedy(&mut alone, &prompts[index], sampled.len() + 5);
        assert_eq!(
            rest,
            whole[sampled.len()..],
            "{name}: session {index} alone"
        );
    }
}

/// A test for each model.
macro_rules! equal_in_a_batch {
    ($($limit:literal: $($name:ident,)*;)*) => {
        mod two_sequences_in_one_step_equal_each_alone {
            use super::{Kv, equal_alone, with_kv};
            $($(
                #[test]
                fn $name() {
                    equal_alone(stringify!($name), 2, with_kv(Kv::F32));
                }
            )*)*
        }
    };
}

with_families!(equal_in_a_batch);

#[test]
fn four_sequences_in_one_step_equal_each_alone() {
    equal_alone("qwen2", 4, with_kv(Kv::F32));
}

#[test]
fn every_element_type_of_the_cache_decodes_in_a_batch() {
    for kv in [Kv::Packed, Kv::Int8] {
        equal_alone("qwen2", 2, with_kv(kv));
    }
}
