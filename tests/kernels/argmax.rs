//! Greedy decoding against its CPU reference: the largest logit, and the update of the state
//! between tokens.

use jerboa::kernels::sample::{AdvanceBuffers, advance, argmax, slices};
use jerboa::reference::sample as reference;
use jerboa_tests::{bytes, gpu, random, run_all};

const RING: usize = 4;
const NOT_FINITE: u32 = u32::MAX - 1;
const LOGITS: usize = 0;
const STATE: usize = 3;
const IDS: usize = 4;
const TOKENS: usize = 5;

/// Buffers of greedy decoding; `state` as in shaders/common/state.wgsl.
fn buffers(logits: &[f32], stops: &[u32], state: [u32; 8]) -> Vec<Vec<u8>> {
    let candidates = vec![0u8; 128 * 8];
    vec![
        bytes(logits),
        candidates,
        bytes(stops),
        bytes(&state),
        bytes(&[7u32]),
        bytes(&[0u32; RING + 2]),
    ]
}

/// One step.
fn step(buffers: &mut Vec<Vec<u8>>) {
    step_as(buffers, false);
}

/// One step, in one dispatch or in two.
fn step_as(buffers: &mut Vec<Vec<u8>>, in_one: bool) {
    let vocab = (buffers[LOGITS].len() / 4) as u32;
    let stop_count = (buffers[2].len() / 4) as u32;
    let tail = AdvanceBuffers {
        candidates: if in_one { LOGITS } else { 1 },
        slices: slices(vocab),
        stops: 2,
        stop_count,
        state: STATE,
        ids: IDS,
        tokens: TOKENS,
        ring: RING as u32,
        counts: None,
        history: None,
        vocabulary: in_one.then_some(vocab),
    };
    if in_one {
        // Rows of logits are padded to groups of four.
        let padded = bytes(&[f32::MAX; 3][..(4 - vocab as usize % 4) % 4]);
        let mut given = buffers.clone();
        given[LOGITS].extend(padded);
        let logits = std::mem::take(&mut buffers[LOGITS]);
        *buffers = run_all(gpu(), &[advance(tail)], 1, &given);
        buffers[LOGITS] = logits;
        return;
    }
    *buffers = run_all(
        gpu(),
        &[argmax(LOGITS, 1, vocab), advance(tail)],
        1,
        buffers,
    );
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn picked(logits: &[f32]) -> u32 {
    let all = buffers(logits, &[], [9, 1, 0, 0, 5, 0, 0, 0]);
    let [two, one] = [false, true].map(|in_one| {
        let mut all = all.clone();
        step_as(&mut all, in_one);
        all[STATE..].to_vec()
    });
    assert_eq!(two, one, "in one dispatch as in two");
    words(&two[TOKENS - STATE])[0]
}

#[test]
fn argmax_of_any_vocabulary() {
    for vocab in [1, 2, 255, 256, 1024, 1025, 5000, 151_937] {
        for seed in 0..3 {
            let logits = random(seed + vocab as u64, vocab);
            assert_eq!(Some(picked(&logits)), reference::argmax(&logits), "{vocab}");
        }
        let mut logits = vec![-3e38; vocab];
        logits[vocab - 1] = -2.9e38;
        assert_eq!(picked(&logits), vocab as u32 - 1, "the last of {vocab}");
    }
}

#[test]
fn of_equal_logits_the_lowest_index_wins() {
    for (a, b) in [(0, 4999), (1023, 1024), (77, 78), (255, 511)] {
        let mut logits = random(1, 5000);
        (logits[a], logits[b]) = (2.0, 2.0);
        assert_eq!(picked(&logits), a as u32);
    }
}

#[test]
fn nan_logits_are_detected_at_any_index() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 1500, 4999] {
            let mut logits = random(2, 5000);
            logits[at] = value;
            assert_eq!(reference::argmax(&logits), None);
            let mut all = buffers(&logits, &[], [9, 1, 0, 0, 5, 0, 0, 0]);
            step(&mut all);
            let tokens = words(&all[TOKENS]);
            assert_eq!(
                (tokens[0], tokens[RING + 1]),
                (NOT_FINITE, 1),
                "{value} at {at} ends the generation"
            );
            assert_eq!(words(&all[IDS]), [7], "it becomes no input");
        }
    }
}

#[test]
fn constant_logits_are_an_error() {
    for (vocab, value) in [(2, 0.0), (300, 1.5), (1025, -7.0), (5000, 0.0)] {
        let mut logits = vec![value; vocab];
        assert_eq!(reference::argmax(&logits), None);
        assert_eq!(picked(&logits), NOT_FINITE, "{vocab} times {value}");
        // One different logit is enough, at any position.
        for at in [0, vocab / 2, vocab - 1] {
            logits[at] = value - 1.0;
            assert_eq!(
                Some(picked(&logits)),
                reference::argmax(&logits),
                "{vocab} times {value} except at {at}"
            );
            logits[at] = value;
        }
        // Constant slices, each with its own value.
        logits[vocab / 2..].fill(value + 1.0);
        assert_eq!(
            Some(picked(&logits)),
            reference::argmax(&logits),
            "two heights of {vocab}"
        );
    }
}

/// A prompt of five rows, then single tokens, more than the ring holds, until the budget ends.
#[test]
fn position_ring_and_budget_advance() {
    let mut all = buffers(
        &random(3, 300),
        &[1000, u32::MAX],
        [20, 5, 0, 0, 6, 0, 0, 0],
    );
    for number in 1..=8u32 {
        let logits = random(u64::from(number), 300);
        all[LOGITS] = bytes(&logits);
        let before = all.clone();
        step(&mut all);
        if number > 6 {
            assert_eq!(
                all[STATE..=TOKENS],
                before[STATE..=TOKENS],
                "nothing moves once the budget is spent"
            );
            continue;
        }
        let token = reference::argmax(&logits).expect("finite logits");
        let state = words(&all[STATE]);
        let tokens = words(&all[TOKENS]);

        let last = u32::from(number == 6);
        assert_eq!(
            state[..5],
            [24 + number, 1 - last, number, last, 6 - number],
            "step {number}"
        );
        assert_eq!(tokens[(number as usize - 1) % RING], token);
        assert_eq!(tokens[RING..], [number, u32::from(number == 6)]);
        assert_eq!(
            words(&all[IDS])[0],
            if number == 6 {
                words(&before[IDS])[0]
            } else {
                token
            }
        );
    }
}

#[test]
fn a_stop_token_ends_decoding() {
    let mut logits = random(4, 300);
    logits[123] = 5.0;
    let mut all = buffers(&logits, &[5, 123, u32::MAX], [20, 1, 0, 0, 6, 0, 0, 0]);
    step(&mut all);
    let tokens = words(&all[TOKENS]);
    assert_eq!((tokens[0], tokens[RING], tokens[RING + 1]), (123, 1, 1));
    let before = all.clone();
    step(&mut all);
    assert_eq!(all[STATE..=TOKENS], before[STATE..=TOKENS]);
}
