//! Batched decoding: sequences of different lengths that join and leave between steps get the ids
//! that each gets alone.

use super::{exact, exact_as_gpu, start, with_families, with_kv};
use jerboa::exec::{
    DecodeBatch, DecodeParams, ExpertBudget, MAX_SEQUENCES, MeasureOptions, Precision,
    PrecisionOptions, RunOptions, SequenceId, SequenceParams, Session,
};
use jerboa::gpu::{Backend, DeviceOptions, VariantOverride};
use jerboa::kernels::attention::Kv;
use jerboa::kernels::registry::Kernel;
use jerboa::sample::{Sampler, SamplingParams, TokenConstraint};
use jerboa_tests::golden::{decode_to_end, go_on, greedy};
use jerboa_tests::relative_l2;
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
    block_on(batch.join(session, SequenceParams::greedy(budget))).expect("join")
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
    equal_alone_on(&exact(), name, count, options);
}

fn equal_alone_on(device: &DeviceOptions, name: &str, count: usize, options: RunOptions) {
    let (mut alone, golden) = start(name, device, options);
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

/// The kernels of a GPU, where attention norms and rotates the heads of its row: norms of keys and
/// of values, rings, sinks, every element type of the cache.
#[test]
fn sequences_equal_each_alone_with_the_kernels_of_a_gpu() {
    for (name, kv) in [
        ("qwen2", Kv::Packed),
        ("qwen3", Kv::F32),
        ("qwen3", Kv::Int8),
        ("gemma3", Kv::F32),
        ("gemma4", Kv::F32),
        ("gpt_oss", Kv::F32),
        ("glm4", Kv::F32),
    ] {
        equal_alone_on(&exact_as_gpu(), name, 2, with_kv(kv));
    }
}

/// Sequences that outgrow the short context, whose attention takes all keys at once, while they run.
#[test]
fn sequences_outgrow_the_short_context() {
    for (device, name) in [(exact(), "qwen2"), (exact_as_gpu(), "qwen3")] {
        let options = RunOptions {
            max_context: Some(320),
            ..with_kv(Kv::F32)
        };
        let (mut alone, golden) = start(name, &device, options);
        let ids: Vec<u32> = golden
            .ids("input_ids")
            .into_iter()
            .cycle()
            .take(252)
            .collect();
        let prompts = [&ids[..], &ids[3..200]];
        let expected = prompts.map(|prompt| greedy(&mut alone, prompt, 12));
        let sessions = prompts.map(|prompt| prefilled(&alone, prompt));
        let mut batch = block_on(DecodeBatch::new(alone.model(), 2)).expect("a batch");
        let joined = sessions
            .each_ref()
            .map(|session| join(&mut batch, session, 12));
        let mut tokens = BTreeMap::new();
        run(&mut batch, &mut tokens, |_| false);
        for (id, expected) in joined.iter().zip(&expected) {
            assert_eq!(&tokens[id], expected, "{name}");
        }
    }
}

/// A profile names the kernels of a batched step, and leaves a session that can go on.
#[test]
fn batched_steps_are_profiled_by_kernel() {
    let (mut session, golden) = start("qwen3", &exact(), with_kv(Kv::F32));
    let prompt = golden.ids("input_ids");
    let expected = greedy(&mut session, &prompt, 8);
    let options = MeasureOptions {
        sequences: vec![2, 4],
        position: 9,
        ..MeasureOptions::default()
    };
    let measured = block_on(session.measure(&options)).expect("a measurement");
    let has_timestamps = session.gpu().caps().timestamps;
    assert_eq!(measured.batches.len(), if has_timestamps { 2 } else { 0 });
    for (profile, sequences) in measured.batches.iter().zip([2, 4]) {
        assert_eq!((profile.rows, profile.position), (sequences, 9));
        let of = |kernel: &str| {
            profile
                .kernels
                .get(kernel)
                .map_or(0, |share| share.dispatches)
        };
        assert_eq!(of("attention_decode"), session.model().graph().states.len());
        assert_eq!(of("rope_kv"), 0, "attention norms and rotates heads itself");
        assert!(profile.ms > 0.0);
    }
    assert_eq!(greedy(&mut session, &prompt, 8), expected);
}

/// Prompts over several pages and rings that have wrapped many times; the pools grow while
/// sequences run.
#[test]
fn long_sequences_take_pages_as_they_grow() {
    for name in ["qwen3", "gemma3", "gpt_oss", "qwen3_5"] {
        let options = RunOptions {
            prefill_chunk: 16,
            kv_growth: 16,
            ..with_kv(Kv::F32)
        };
        let (mut alone, golden) = start(name, &exact(), options);
        let ids = golden.ids("input_ids");
        let prompts: Vec<Vec<u32>> = [70, 128, 9]
            .iter()
            .enumerate()
            .map(|(skip, len)| ids.iter().cycle().skip(skip).take(*len).copied().collect())
            .collect();
        let expected: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| greedy(&mut alone, prompt, 100))
            .collect();
        let mut batch = block_on(DecodeBatch::new(alone.model(), 3)).expect("a batch");
        let join = |prompt: &Vec<u32>| join(&mut batch, &prefilled(&alone, prompt), 100);
        let ids: Vec<SequenceId> = prompts.iter().map(join).collect();
        let mut tokens = BTreeMap::new();
        run(&mut batch, &mut tokens, |_| false);
        for (id, expected) in ids.iter().zip(&expected) {
            assert_eq!(&tokens[id], expected, "{name}");
        }
    }
}

/// Asserts that sequences with parts of a prompt get the tokens that each gets alone.
fn many_equal_alone(alone: &mut Session, ids: &[u32], count: usize) {
    let mut batch = block_on(DecodeBatch::new(alone.model(), count)).expect("a batch");
    let mut expected = Vec::new();
    for index in 0..count {
        let prompt = &ids[index % (ids.len() - 2)..];
        let id = join(&mut batch, &prefilled(alone, prompt), 12);
        expected.push((id, greedy(alone, prompt, 12)));
    }
    let mut tokens = BTreeMap::new();
    run(&mut batch, &mut tokens, |_| false);
    for (id, expected) in expected {
        assert_eq!(tokens[&id], expected, "{count} sequences");
    }
}

/// Matmuls of many rows are tiled; those of few are not.
#[test]
fn seventeen_sequences_equal_each_alone() {
    let (mut alone, golden) = start("qwen3", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    many_equal_alone(&mut alone, &ids, 17);
}

/// Batches of quantized weights quantize their input, with its norm, before the matmul. The last of
/// each have matrices in several buffers.
#[test]
fn quantized_inputs_choose_the_same_tokens() {
    let few = (Kernel::GemvPacked, "PARTS", 8);
    let many = (Kernel::GemmPacked, "BM", 32);
    for (rows, (kernel, name, value), max_weight_buffer) in [
        (3, few, None),
        (5, few, None),
        (8, few, None),
        (8, few, Some(4096)),
        (17, many, None),
        (17, many, Some(4096)),
    ] {
        let device = DeviceOptions {
            variant_override: Some(VariantOverride {
                kernel,
                name,
                value,
            }),
            ..exact()
        };
        let options = RunOptions {
            overrides: PrecisionOptions {
                precision: Precision::Q8,
                ..with_kv(Kv::F32).overrides
            },
            max_weight_buffer,
            ..RunOptions::default()
        };
        let (mut alone, golden) = start("smollm3", &device, options);
        let weights = alone.model().weights();
        let is_cut = weights.values().any(|weight| weight.shards.len() > 1);
        assert_eq!(is_cut, max_weight_buffer.is_some());
        let ids = golden.ids("input_ids");
        many_equal_alone(&mut alone, &ids, rows);
    }
}

#[test]
fn a_sequence_ends_at_its_stop_token() {
    let (mut alone, golden) = start("qwen2", &exact(), with_kv(Kv::F32));
    let prompts = prompts(&golden.ids("input_ids"), 2);
    let expected = [0, 1].map(|index| greedy(&mut alone, &prompts[index], 20));
    let stop = expected[0][7];
    let cut = expected[0]
        .iter()
        .position(|id| *id == stop)
        .expect("it occurs")
        + 1;
    let mut batch = block_on(DecodeBatch::new(alone.model(), 2)).expect("a batch");
    let params = SequenceParams::greedy(20).with_stops(std::slice::from_ref(&stop));
    let first = block_on(batch.join(&prefilled(&alone, &prompts[0]), params)).expect("join");
    let second = join(&mut batch, &prefilled(&alone, &prompts[1]), 20);
    let mut tokens = BTreeMap::new();
    run(&mut batch, &mut tokens, |_| false);
    assert_eq!(tokens[&first], expected[0][..cut]);
    assert_eq!(tokens[&second], expected[1]);
}

/// A step makes no objects, and a batch frees what it took.
#[test]
fn a_batch_frees_its_memory() {
    let (alone, golden) = start("qwen2", &exact(), with_kv(Kv::F32));
    let session = prefilled(&alone, &golden.ids("input_ids"));
    let before = alone.model().bytes();
    for _ in 0..3 {
        let mut batch = block_on(DecodeBatch::new(alone.model(), 2)).expect("a batch");
        for _ in 0..20 {
            let id = join(&mut batch, &session, 3);
            run(&mut batch, &mut BTreeMap::new(), |_| false);
            let held = alone.model().bytes();
            assert!(held.kv > before.kv && held.activations > before.activations);
            block_on(batch.discard(id)).expect("discard");
        }
        let first = join(&mut batch, &session, 100);
        let mut tokens = BTreeMap::new();
        run(&mut batch, &mut tokens, |tokens| {
            tokens.get(&first).is_some_and(|own| own.len() >= 30)
        });
        let made = alone.gpu().resource_counts();
        run(&mut batch, &mut tokens, |tokens| tokens[&first].len() >= 60);
        let after = alone.gpu().resource_counts();
        assert_eq!(
            (made.pipelines, made.bind_groups),
            (after.pipelines, after.bind_groups)
        );
    }
    let after = alone.model().bytes();
    assert_eq!(after.kv, before.kv);
}

/// Sampling parameters of each row: random numbers, filters, penalties, bias and greedy rows.
#[test]
fn each_row_has_its_own_sampling_parameters() {
    let (mut alone, golden) = start("qwen2", &exact(), with_kv(Kv::F32));
    let prompt = golden.ids("input_ids");
    let random = |seed: u64| SamplingParams {
        greedy: false,
        temperature: 1.8,
        top_k: 20,
        seed: Some(seed),
        ..SamplingParams::default()
    };
    let all = [
        SamplingParams::default(),
        random(5),
        SamplingParams {
            repetition_penalty: 1.6,
            ..SamplingParams::default()
        },
        SamplingParams {
            top_p: 0.8,
            top_k: 0,
            frequency_penalty: 0.7,
            ..random(6)
        },
        random(7),
    ];
    let vocab = alone.vocab();
    let mut samplers = Vec::new();
    let mut expected = Vec::new();
    for params in all {
        let mut sampler = Sampler::new(params, vocab, 0).expect("a sampler");
        sampler.start(&prompt);
        expected.push(sampled_alone(&mut alone, &prompt, &sampler, None));
        samplers.push(sampler);
    }
    let mut batch = block_on(DecodeBatch::new(alone.model(), 5)).expect("a batch");
    let session = prefilled(&alone, &prompt);
    let ids: Vec<SequenceId> = samplers
        .iter()
        .map(|sampler| {
            let sampler = Some(sampler);
            let params = SequenceParams {
                sampler,
                ..SequenceParams::greedy(24)
            };
            block_on(batch.join(&session, params)).expect("join")
        })
        .collect();
    let mut tokens = BTreeMap::new();
    run(&mut batch, &mut tokens, |_| false);
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(tokens[id], expected[index], "row {index}");
        let others = expected.iter().filter(|other| **other == expected[index]);
        assert_eq!(others.count(), 1, "row {index} equals another");
    }
}

/// Generates 24 tokens on a session with the GPU sampler.
fn sampled_alone(
    session: &mut Session,
    prompt: &[u32],
    sampler: &Sampler,
    constraint: Option<&mut dyn TokenConstraint>,
) -> Vec<u32> {
    block_on(async {
        session.clear();
        session.prefill(prompt, 0).await.expect("prefill");
        let pipeline = session
            .prepare_sampling(sampler, constraint.is_some())
            .await
            .expect("kernels")
            .expect("a sampler of the GPU");
        let params = DecodeParams {
            pipeline,
            constraint,
            ..DecodeParams::greedy(prompt.len(), 24)
        };
        decode_to_end(session, params).await
    })
}

/// Allows every third token, beginning with another one after each.
struct EveryThird(usize);

impl TokenConstraint for EveryThird {
    fn mask(&mut self, words: &mut [u32]) -> jerboa::Result<()> {
        for id in (self.0 % 3..words.len() * 32).step_by(3) {
            words[id / 32] |= 1 << (id % 32);
        }
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> jerboa::Result<()> {
        self.0 += 1;
        Ok(())
    }
}

/// A row with a token mask, one without, and one that joins while they run.
#[test]
fn each_row_has_its_own_token_mask() {
    let (mut alone, golden) = start("qwen2", &exact(), with_kv(Kv::F32));
    let prompt = golden.ids("input_ids");
    let vocab = alone.vocab();
    let sampler = Sampler::new(SamplingParams::default(), vocab, 0).expect("a sampler");
    let expected = [0, 1]
        .map(|first| sampled_alone(&mut alone, &prompt, &sampler, Some(&mut EveryThird(first))));
    let unmasked = greedy(&mut alone, &prompt, 24);
    assert_ne!(expected[0], expected[1]);
    let masked = SequenceParams {
        sampler: Some(&sampler),
        masked: true,
        ..SequenceParams::greedy(24)
    };
    let session = prefilled(&alone, &prompt);
    let mut batch = block_on(DecodeBatch::new(alone.model(), 3)).expect("a batch");
    let mut constraints = BTreeMap::new();
    let first = block_on(batch.join(&session, masked)).expect("join");
    constraints.insert(first, EveryThird(0));
    let plain = join(&mut batch, &session, 24);
    let mut late = None;
    let mut tokens: BTreeMap<SequenceId, Vec<u32>> = BTreeMap::new();
    loop {
        if late.is_none() && tokens.get(&first).is_some_and(|own| own.len() == 3) {
            let id = block_on(batch.join(&session, masked)).expect("join");
            constraints.insert(id, EveryThird(1));
            late = Some(id);
        }
        for (id, constraint) in &mut constraints {
            let mut words = vec![0; vocab.div_ceil(32)];
            constraint.mask(&mut words).expect("a mask");
            batch.write_mask(*id, &words).expect("a masked row");
        }
        let next = block_on(batch.next()).expect("a step");
        if next.is_empty() {
            break;
        }
        for (id, new) in next {
            if let Some(constraint) = constraints.get_mut(&id) {
                assert_eq!(new.len(), 1, "a token at a time");
                constraint.accept(new[0]).expect("a token");
            }
            tokens.entry(id).or_default().extend(new);
        }
    }
    assert_eq!(tokens[&first], expected[0]);
    assert_eq!(tokens[&late.expect("it joined")], expected[1]);
    assert_eq!(tokens[&plain], unmasked);
}

/// One prompt continued twice: before its first token, and in the middle of a page.
#[test]
fn forks_share_their_prefix_and_go_their_own_ways() {
    for name in ["qwen2", "gemma3", "qwen3_5"] {
        let (mut alone, golden) = start(name, &exact(), with_kv(Kv::F32));
        let ids = golden.ids("input_ids");
        let prompt: Vec<u32> = ids.iter().cycle().take(75).copied().collect();
        let expected = greedy(&mut alone, &prompt, 24);
        let random = SamplingParams {
            greedy: false,
            temperature: 1.5,
            top_k: 0,
            seed: Some(3),
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(random, alone.vocab(), 0).expect("a sampler");
        sampler.start(&prompt);
        let sampled = sampled_alone(&mut alone, &prompt, &sampler, None);
        let mut batch = block_on(DecodeBatch::new(alone.model(), 3)).expect("a batch");
        let one = join(&mut batch, &prefilled(&alone, &prompt), 24);
        let params = SequenceParams {
            sampler: Some(&sampler),
            ..SequenceParams::greedy(24)
        };
        let two = block_on(batch.fork(one, params)).expect("fork");
        let mut tokens = BTreeMap::new();
        run(&mut batch, &mut tokens, |tokens| {
            tokens.get(&one).is_some_and(|own| own.len() >= 5)
        });
        let begun = tokens[&one].clone();
        let three = block_on(batch.fork(one, SequenceParams::greedy(24))).expect("fork");
        tokens.insert(three, begun);
        block_on(batch.discard(one)).expect("discard");
        run(&mut batch, &mut tokens, |_| false);
        assert_eq!(tokens[&two], sampled, "{name}: with parameters of its own");
        assert_eq!(
            tokens[&three], expected,
            "{name}: continued without its parent"
        );
    }
}

/// Tokens that the caller chooses, on continuations as in a beam search.
#[test]
fn chosen_tokens_give_the_logits_of_each_sequence_alone() {
    for name in ["qwen2", "gemma3", "qwen3_5"] {
        let (alone, golden) = start(name, &exact(), with_kv(Kv::F32));
        let prompt = golden.ids("input_ids");
        let session = prefilled(&alone, &prompt);
        let mut batch = block_on(DecodeBatch::new(alone.model(), 3)).expect("a batch");
        let mut beams = vec![(join(&mut batch, &session, 20), prompt.clone())];
        // The parents of each step's beams: branches, a beam that ends, and swaps.
        let steps: [&[usize]; 6] = [
            &[0, 0, 0],
            &[2, 0, 0],
            &[1, 1, 2],
            &[0, 1],
            &[1, 0, 1],
            &[2, 1, 0],
        ];
        for (step, parents) in steps.iter().enumerate() {
            let ids: Vec<SequenceId> = parents.iter().map(|parent| beams[*parent].0).collect();
            let children = block_on(batch.continue_from(&ids)).expect("beams");
            let token = |child: usize| (7 * step + 3 * child + 1) as u32;
            let given: Vec<(SequenceId, u32)> = children
                .iter()
                .enumerate()
                .map(|(child, id)| (*id, token(child)))
                .collect();
            block_on(batch.step_with(&given)).expect("a step");
            let before = std::mem::take(&mut beams);
            for (child, (id, token)) in given.iter().enumerate() {
                beams.push((*id, [&before[parents[child]].1[..], &[*token]].concat()));
            }
            let rows = block_on(batch.logits(&children)).expect("logits");
            for ((_, text), row) in beams.iter().zip(&rows) {
                let expected = block_on(prefilled(&alone, text).logits()).expect("logits");
                let error = relative_l2(row, &expected);
                assert!(error < 1e-5, "{name}: step {step}: {error:e}");
            }
        }
    }
}

#[test]
fn what_cannot_be_batched_is_refused_by_name() {
    let paged = RunOptions {
        experts: Some(ExpertBudget::PerLayer(2)),
        ..with_kv(Kv::F32)
    };
    let (paged, _) = start("qwen3_moe", &exact(), paged);
    let error = block_on(DecodeBatch::new(paged.model(), 2)).err();
    let error = error.expect("paged weights").to_string();
    assert!(error.contains("paged"), "{error}");
    let (alone, golden) = start("qwen2", &exact(), with_kv(Kv::F32));
    for count in [0, MAX_SEQUENCES + 1] {
        let error = block_on(DecodeBatch::new(alone.model(), count)).err();
        let error = error.expect("a wrong number").to_string();
        assert!(error.contains("sequences"), "{error}");
    }
    let mut batch = block_on(DecodeBatch::new(alone.model(), 1)).expect("a batch");
    let session = prefilled(&alone, &golden.ids("input_ids"));
    join(&mut batch, &session, 4);
    let full = block_on(batch.join(&session, SequenceParams::greedy(4)));
    let full = full.expect_err("no place").to_string();
    assert!(full.contains("Wait until one leaves"), "{full}");
    let typical = SamplingParams {
        greedy: false,
        typical_p: 0.5,
        ..SamplingParams::default()
    };
    let sampler = Sampler::new(typical, alone.vocab(), 0).expect("a sampler");
    let params = SequenceParams {
        sampler: Some(&sampler),
        ..SequenceParams::greedy(4)
    };
    let error = block_on(batch.join(&session, params)).expect_err("a rare filter");
    assert!(error.to_string().contains("sampled on the CPU"), "{error}");
}

/// A batch that grows while its sequences run, and a masked sequence that joins one without a mask.
#[test]
fn a_batch_grows_while_sequences_run() {
    let (mut alone, golden) = start("qwen3_5", &exact(), with_kv(Kv::F32));
    let prompts = prompts(&golden.ids("input_ids"), 4);
    let expected: Vec<Vec<u32>> = prompts.iter().map(|p| greedy(&mut alone, p, 24)).collect();
    let mut batch = block_on(DecodeBatch::new(alone.model(), 1)).expect("a batch");
    let mut tokens = BTreeMap::new();
    let mut ids = vec![join(&mut batch, &prefilled(&alone, &prompts[0]), 24)];
    for (count, prompt) in prompts.iter().enumerate().skip(1) {
        let first = ids[0];
        run(&mut batch, &mut tokens, |tokens| {
            tokens.get(&first).is_some_and(|own| own.len() >= 2 * count)
        });
        block_on(batch.grow(count + 1)).expect("room");
        assert_eq!(batch.capacity(), count + 1);
        ids.push(join(&mut batch, &prefilled(&alone, prompt), 24));
    }
    run(&mut batch, &mut tokens, |_| false);
    for (id, expected) in ids.iter().zip(&expected) {
        assert_eq!(&tokens[id], expected);
    }
    block_on(batch.grow(MAX_SEQUENCES + 1)).expect("room");
    assert_eq!(batch.capacity(), MAX_SEQUENCES);
}

/// Sequences with the same beginning share its full pages, and write pages of their own.
#[test]
fn joined_sequences_share_the_pages_of_a_common_beginning() {
    let (mut alone, golden) = start("qwen3", &exact(), with_kv(Kv::F32));
    let ids = golden.ids("input_ids");
    let long: Vec<u32> = ids.iter().cycle().copied().take(200).collect();
    let held = |prompts: &[Vec<u32>], alone: &mut Session| {
        let expected: Vec<Vec<u32>> = prompts.iter().map(|p| greedy(alone, p, 20)).collect();
        let before = alone.model().bytes().kv;
        let sessions: Vec<Session> = prompts.iter().map(|p| prefilled(alone, p)).collect();
        let own = alone.model().bytes().kv - before;
        let mut batch = block_on(DecodeBatch::new(alone.model(), 4)).expect("a batch");
        let joined: Vec<SequenceId> = sessions.iter().map(|s| join(&mut batch, s, 20)).collect();
        let pools = alone.model().bytes().kv - before - own;
        let mut tokens = BTreeMap::new();
        run(&mut batch, &mut tokens, |_| false);
        for (id, expected) in joined.iter().zip(&expected) {
            assert_eq!(&tokens[id], expected);
        }
        pools
    };
    let same: Vec<Vec<u32>> = (0..4).map(|i| [&long[..], &[i + 1]].concat()).collect();
    let different: Vec<Vec<u32>> = (0..4).map(|i| [&[i + 1], &long[..]].concat()).collect();
    let [shared, apart] = [&same, &different].map(|prompts| held(prompts, &mut alone));
    // 3 full pages and 4 last ones, against 16: pools have room for 8 at first.
    assert!(2 * shared <= apart, "{shared} and {apart} bytes");
}
