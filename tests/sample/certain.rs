//! Tokens that are certain from the most likely ones alone: always those of the sampler over all
//! logits.

use jerboa::sample::philox::random;
use jerboa::sample::{Candidates, CertainSampler, Sampler, SamplingParams, TokenMask};

const VOCABULARY: usize = 700;

struct Random(u32);

impl Random {
    /// In [0, 1).
    fn next(&mut self) -> f64 {
        self.0 += 1;
        f64::from(random(11, self.0)) / 4_294_967_296.0
    }
}

fn bits(allows: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut words = vec![0; VOCABULARY.div_ceil(32)];
    for id in (0..VOCABULARY).filter(|id| allows(*id)) {
        words[id / 32] |= 1 << (id % 32);
    }
    words
}

/// The tokens with the largest scores, and all that tie with the last of them.
fn listed(logits: &[f32], guess: &[u32], count: usize) -> Vec<(u32, f32)> {
    let allowed = (0..VOCABULARY).filter(|id| TokenMask(guess).allows(*id));
    let mut all: Vec<(u32, f32)> = allowed.map(|id| (id as u32, logits[id])).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let last = all[count.min(all.len()) - 1].1;
    all.retain(|(_, score)| *score >= last);
    all.reverse();
    all
}

fn settings() -> Vec<SamplingParams> {
    let base = SamplingParams {
        greedy: false,
        top_k: 50,
        ..SamplingParams::default()
    };
    vec![
        base.clone(),
        SamplingParams {
            top_k: 3,
            temperature: 0.7,
            ..base.clone()
        },
        SamplingParams {
            top_k: 20,
            top_p: 0.8,
            ..base.clone()
        },
        SamplingParams {
            top_k: 64,
            top_p: 0.95,
            min_p: 0.05,
            temperature: 1.3,
            ..base.clone()
        },
        SamplingParams {
            min_p: 0.02,
            ..base
        },
    ]
}

/// Rows from flat to peaked, with ties; masks from a few tokens to almost all.
#[test]
fn certain_tokens_are_the_samplers() {
    let mut random = Random(0);
    let mut found = [[0usize; 2]; 2];
    for round in 0..1500usize {
        let params = settings().swap_remove(round % 5);
        let peak = [1.0, 4.0, 9.0, 16.0][round / 5 % 4];
        let steps = [3.0, 64.0, 1e6][round / 20 % 3];
        let logits: Vec<f32> = (0..VOCABULARY)
            .map(|_| ((random.next().powi(3) * steps).floor() / steps * peak) as f32)
            .collect();
        let density = [0.01, 0.2, 0.9, 0.995][round / 60 % 4];
        let drawn: Vec<f64> = (0..VOCABULARY).map(|_| random.next()).collect();
        // Mostly the likely tokens are allowed, as where a model follows a grammar.
        let follows = round % 3 != 0;
        let is_allowed = |id: usize| {
            drawn[id] < density
                || (follows && f64::from(logits[id]) > 0.5 * peak && drawn[id] < 0.98)
        };
        let mask = bits(is_allowed);
        let allowed = (0..VOCABULARY).filter(|id| is_allowed(*id)).count();
        if allowed == 0 {
            continue;
        }
        let guess = bits(|id| is_allowed(id) || round % 2 == 0 || drawn[id] < density + 0.003);
        let listed = listed(&logits, &guess, params.top_k as usize + 80);
        let seed = round as u64;
        let mut certain = CertainSampler::new(&params, seed);
        let mut sampler = Sampler::new(
            SamplingParams {
                seed: Some(seed),
                ..params
            },
            VOCABULARY,
            0,
        )
        .expect("a sampler");
        for step in 0..4 {
            let candidates = Candidates {
                listed: &listed,
                mask: TokenMask(&mask),
                allowed,
            };
            let answer = certain.select(candidates, step);
            let Ok(expected) = sampler.sample(&logits, Some(TokenMask(&mask))) else {
                assert_eq!(answer, None, "round {round}: constant logits");
                continue;
            };
            if let Some(answer) = answer {
                assert_eq!(answer, expected, "round {round}, step {step}");
            }
            found[usize::from(follows)][usize::from(answer.is_some())] += 1;
        }
    }
    let share = |[unknown, known]: [usize; 2]| known as f64 / (unknown + known) as f64;
    assert!(share(found[1]) > 0.6, "{found:?}");
    assert!(share(found[0]) > 0.3, "{found:?}");
}

/// What is not listed may weigh nothing, or be too much to tell.
#[test]
fn tokens_beyond_the_list_make_a_token_uncertain() {
    let params = SamplingParams {
        greedy: false,
        top_k: 4,
        ..SamplingParams::default()
    };
    let all = bits(|_| true);
    let select = |listed: &[(u32, f32)], allowed: usize| {
        let mut certain = CertainSampler::new(&params, 5);
        certain.select(
            Candidates {
                listed,
                mask: TokenMask(&all),
                allowed,
            },
            0,
        )
    };
    let peaked = [(9, 40.0), (8, 2.0)];
    assert_eq!(select(&peaked, 300), Some(9));
    let flat = [(9, 2.5), (8, 2.0)];
    assert_eq!(select(&flat, 300), None);
    assert!(select(&flat, 2).is_some());
    assert_eq!(select(&peaked, 100_000), None);
    assert_eq!(select(&[], 3), None);
}
