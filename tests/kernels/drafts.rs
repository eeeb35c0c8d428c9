//! Prompt lookup against its CPU references: the drafts of a text, and the accepted tokens of a
//! step with drafts.

use jerboa::kernels::sample::{
    AdvanceBuffers, DRAFT_ROWS, SUFFIX_LENGTHS, accept, argmax_rows, draft, slices,
};
use jerboa::reference::sample as reference;
use jerboa_tests::{bytes, gpu, random, run_all};

const ROWS: usize = DRAFT_ROWS as usize;
const NOT_FINITE: u32 = u32::MAX - 1;

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// Rows and ids after the lookup; `behind` follows the text in the buffer.
fn looked_up(text: &[u32], behind: &[u32], budget: u32, stopped: bool) -> (u32, Vec<u32>) {
    let mut history = [text, behind].concat();
    history.resize(history.len().next_multiple_of(4), u32::MAX);
    let rows = u32::from(!stopped);
    let state = [
        text.len() as u32 - 1,
        rows,
        5,
        u32::from(stopped),
        budget,
        0,
        0,
        0,
    ];
    let mut ids = [9_999_999; ROWS];
    ids[0] = text[text.len() - 1];
    let buffers = [bytes(&history), bytes(&state), bytes(&ids)];
    let after = run_all(gpu(), &[draft(0, 1, 2)], 1, &buffers);
    let found = words(&after[1]);
    assert_eq!(
        (found[0], &found[2..]),
        (state[0], &state[2..]),
        "the lookup changes the rows alone"
    );
    (found[1], words(&after[2]))
}

/// Drafts of a text, compared with the CPU reference's.
fn drafts(text: &[u32]) -> Vec<u32> {
    let expected = reference::draft(
        text,
        (SUFFIX_LENGTHS.0 as usize, SUFFIX_LENGTHS.1 as usize),
        ROWS - 1,
    );
    // Tokens of an earlier text must not match.
    let behind = [&text[text.len().saturating_sub(5)..], &[1, 2, 3]].concat();
    let (rows, ids) = looked_up(text, &behind, 100, false);
    assert_eq!(rows as usize, 1 + expected.len(), "{} tokens", text.len());
    assert_eq!(ids[0], text[text.len() - 1]);
    assert_eq!(ids[1..=expected.len()], expected, "{} tokens", text.len());
    expected
}

#[test]
fn earlier_continuations_are_drafted() {
    assert_eq!(
        drafts(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]),
        [3, 4, 5, 6, 7, 8, 9],
        "a match at the start"
    );
    assert_eq!(
        drafts(&[1, 2, 3, 7, 1, 2, 4, 8, 1, 2])[..2],
        [4, 8],
        "the latest of two"
    );
    assert_eq!(
        drafts(&[5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2])[..2],
        [3, 6],
        "rather the longer ending"
    );
    assert_eq!(
        drafts(&[9, 8, 7, 6, 5, 1, 0, 8, 7, 6, 5, 2, 9, 8, 7, 6, 5])[..1],
        [2],
        "no ending is longer than four"
    );
    assert_eq!(
        drafts(&[1, 2, 3, 1, 2]),
        [3, 1, 2, 3, 1, 2, 3],
        "a match close to the end goes round"
    );
}

#[test]
fn repetitions_are_continued() {
    for count in [3, 4, 5, 100] {
        assert_eq!(drafts(&vec![7; count]), [7; 7], "{count}");
    }
    let pair: Vec<u32> = [4, 5].repeat(9);
    assert_eq!(drafts(&pair), [4, 5, 4, 5, 4, 5, 4]);
    assert_eq!(drafts(&[1, 1, 2, 1, 1]), [2, 1, 1, 2, 1, 1, 2]);
}

#[test]
fn unrepeated_text_gives_no_drafts() {
    for text in [
        &[3][..],
        &[3, 3],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        &[5, 1, 2, 3, 4, 1],
        &[1, 2, 3, 2, 1, 2, 4, 1],
    ] {
        assert!(drafts(text).len() <= 7);
    }
    assert!(drafts(&[3]).is_empty());
    assert!(drafts(&[3, 3]).is_empty(), "one token is no ending");
    assert!(drafts(&[5, 1, 2, 3, 4, 1]).is_empty());
}

#[test]
fn strings_of_any_length() {
    for (seed, count) in [
        (1, 2),
        (2, 17),
        (3, 255),
        (4, 256),
        (5, 257),
        (6, 1023),
        (7, 1025),
        (8, 4099),
        (9, 32_768),
    ] {
        for width in [2.0, 30.0, 400.0] {
            let text: Vec<u32> = random(seed, count)
                .iter()
                .map(|v| ((v + 1.0) * width) as u32)
                .collect();
            drafts(&text);
        }
    }
    // The only match is at the start.
    let mut text: Vec<u32> = (10..32_776).collect();
    text.extend([10, 11]);
    assert_eq!(drafts(&text), [12, 13, 14, 15, 16, 17, 18]);
}

#[test]
fn drafts_respect_the_budget_and_stops() {
    let text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];
    for budget in 1..=9 {
        assert_eq!(
            looked_up(&text, &[], budget, false).0,
            budget.min(8),
            "{budget}"
        );
    }
    let (rows, ids) = looked_up(&text, &[], 0, true);
    assert_eq!((rows, &ids[1..]), (0, &[9_999_999; ROWS - 1][..]));
}

const VOCABULARY: usize = 1501;
const RING: usize = 16;

/// A step with drafts.
struct Step {
    best: Vec<u32>,
    drafts: Vec<u32>,
    stops: Vec<u32>,
    budget: usize,
    /// Position of the first row.
    pos: usize,
    /// Number of earlier tokens.
    step: usize,
    /// A row whose logits are NaN.
    broken: Option<usize>,
}

/// Runs a step; returns the accepted tokens and whether it stopped.
fn take(step: &Step) -> (Vec<u32>, bool) {
    let rows = 1 + step.drafts.len();
    let stride = VOCABULARY.next_multiple_of(4);
    // Rows after the step are NaN as well and must not be read.
    let mut logits = vec![f32::NAN; ROWS * stride];
    for (row, best) in step.best.iter().enumerate().take(rows) {
        let values = &mut logits[row * stride..][..VOCABULARY];
        values.copy_from_slice(&random(row as u64 + 1, VOCABULARY));
        values[*best as usize] = if step.broken == Some(row) {
            f32::NAN
        } else {
            3.0
        };
    }
    let mut ids = vec![77];
    ids.extend(&step.drafts);
    ids.resize(ROWS, 0);
    let mut ring = vec![0u32; RING + 4];
    (ring[RING + 2], ring[RING + 3]) = (100, 50);
    let history: Vec<u32> = vec![1; step.pos + 1 + step.budget];
    let state = [
        step.pos as u32,
        rows as u32,
        step.step as u32,
        0,
        step.budget as u32,
        0,
        0,
        0,
    ];
    let buffers = [
        bytes(&logits),
        vec![0; ROWS * 128 * 8],
        bytes(&step.stops),
        bytes(&state),
        bytes(&ids),
        bytes(&ring),
        bytes(&history),
    ];
    let vocab = VOCABULARY as u32;
    let stop_count = step.stops.len() as u32;

    let advance = AdvanceBuffers {
        candidates: 1,
        slices: slices(vocab),
        stops: 2,
        stop_count,
        state: 3,
        ids: 4,
        tokens: 5,
        ring: RING as u32,
        counts: None,
        history: Some(6),
        vocabulary: None,
    };
    let after = run_all(
        gpu(),
        &[argmax_rows(0, 1, vocab, 3), accept(advance, None)],
        DRAFT_ROWS,
        &buffers,
    );
    let state = words(&after[3]);
    let ids = words(&after[4]);
    let ring = words(&after[5]);
    let history = words(&after[6]);

    let stopped = state[3] != 0;
    let count = state[2] as usize - step.step;
    let tokens: Vec<u32> = (0..count).map(|i| ring[(step.step + i) % RING]).collect();
    assert_eq!(
        ring[RING..],
        [
            state[2],
            state[3],
            100 + step.drafts.len() as u32,
            50 + count as u32 - 1
        ]
    );
    assert_eq!(state[0] as usize, step.pos + count);
    assert_eq!(
        (state[1], state[4] as usize),
        (u32::from(!stopped), step.budget - count)
    );
    assert_eq!(history[step.pos + 1..=step.pos + count], tokens);
    assert!(
        history[..=step.pos]
            .iter()
            .chain(&history[step.pos + 1 + count..step.pos + 1 + step.budget])
            .all(|t| *t == 1)
    );
    assert_eq!(ids[0], if stopped { 77 } else { tokens[count - 1] });
    (tokens, stopped)
}

#[test]
fn tokens_are_accepted_while_drafts_match() {
    let best = vec![10, 1500, 12, 0, 14, 15, 16, 17];
    let mut tried = 0;
    for wrong in 0..ROWS {
        for drafted in 0..ROWS {
            for budget in [1, 2, 7, 8, 40] {
                // Lookup never drafts more tokens than the budget allows.
                if drafted >= budget {
                    continue;
                }
                for stops in [
                    vec![u32::MAX, 999],
                    vec![12],
                    vec![999, 17, 15],
                    (500..564).chain([10]).collect(),
                ] {
                    let mut drafts = best[..drafted].to_vec();
                    if let Some(draft) = drafts.get_mut(wrong) {
                        *draft += 1;
                    }
                    let expected = reference::accept(&best, &drafts, &stops, budget);
                    let pos = tried % 90;
                    let step = tried % 37;

                    let found = take(&Step {
                        best: best.clone(),
                        drafts,
                        stops,
                        budget,
                        pos,
                        step,
                        broken: None,
                    });
                    assert_eq!(
                        found, expected,
                        "wrong {wrong}, {drafted} drafted, budget {budget}"
                    );
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 500);
}

#[test]
fn nan_logits_end_the_step_where_they_are_reached() {
    let best = vec![10, 11, 12, 13, 14, 15, 16, 17];
    for (drafts, broken, expected) in [
        (vec![10, 11, 12, 13], 2, vec![10, 11, NOT_FINITE]),
        (vec![10, 99, 12, 13], 2, vec![10, 11]),
        (vec![], 0, vec![NOT_FINITE]),
    ] {
        let step = Step {
            best: best.clone(),
            drafts,
            stops: vec![999],
            budget: 20,
            pos: 3,
            step: 4,
            broken: Some(broken),
        };
        let ends = expected.contains(&NOT_FINITE);
        assert_eq!(take(&step), (expected, ends));
    }
}
