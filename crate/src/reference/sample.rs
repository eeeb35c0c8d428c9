//! CPU reference of shaders/sample and `sample::Sampler`: sampling by a full sort. Shares only the
//! probability definition (`sample::fixed`) and the random word; integer sums need no common order.

use std::cmp::Reverse;

use crate::sample::fixed_point::{
    BANNED_SCORE, GAP_LIMIT, fraction, gap, gap_scale, mass_share, min_p_limit, weight,
};
use crate::sample::philox::random;
use crate::sample::{Penalties, SamplingParams};

/// Returns the index of the largest logit, the lowest on ties. None if a logit is NaN or several
/// are all equal.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    if logits.iter().any(|v| !v.is_finite())
        || (logits.len() > 1 && logits.iter().all(|v| *v == logits[0]))
    {
        return None;
    }
    let best = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter().position(|v| *v == best).map(|i| i as u32)
}

/// Drafts tokens by prompt lookup: those after the latest earlier occurrence of the longest
/// matching suffix. A copy that reaches the end continues with the copied tokens.
pub fn draft(history: &[u32], endings: (usize, usize), most: usize) -> Vec<u32> {
    let (longest, shortest) = endings;
    for length in (shortest..=longest).rev().filter(|n| *n < history.len()) {
        let before = &history[..history.len() - 1];
        let ending = &history[history.len() - length..];

        if let Some(first) = before.windows(length).rposition(|window| window == ending) {
            let mut text = history.to_vec();
            (0..most).for_each(|i| text.push(text[first + length + i]));
            return text.split_off(history.len());
        }
    }
    Vec::new()
}

/// Returns the tokens accepted in a step with drafts, from each row's best token, and whether
/// generation ends.
pub fn accept(best: &[u32], drafts: &[u32], stops: &[u32], budget: usize) -> (Vec<u32>, bool) {
    let accepted = drafts
        .iter()
        .zip(best)
        .take_while(|(draft, best)| draft == best)
        .count();
    let mut tokens = best[..(accepted + 1).min(budget)].to_vec();
    let end = tokens.iter().position(|token| stops.contains(token));
    tokens.truncate(end.map_or(tokens.len(), |at| at + 1));
    let stopped = end.is_some() || tokens.len() == budget;
    (tokens, stopped)
}

/// Applies bias and penalties to logits; `counts` as in `sample::Sampler::counts`.
pub fn adjust(logits: &[f32], params: &SamplingParams, counts: &[u32]) -> Vec<f32> {
    let penalty = Penalties::from_params(params);

    logits
        .iter()
        .enumerate()
        .map(|(id, &logit): (usize, &f32)| {
            let bias = params
                .logit_bias
                .get(&(id as u32))
                .map_or(0.0, |bias| bias.max(-1e30) as f32);
            if counts[id] > 0 {
                penalty.apply(logit + bias, counts[id])
            } else {
                logit + bias
            }
        })
        .collect()
}

/// Bans the tokens without a bit in the mask; `mask` as in `sample::TokenMask`.
pub fn mask(scores: &mut [f32], mask: &[u32]) {
    for (id, score) in scores.iter_mut().enumerate() {
        if mask[id / 32] & (1 << (id % 32)) == 0 {
            *score = BANNED_SCORE;
        }
    }
}

/// Returns the tokens that pass the filters by id, with weights. Typical-p is not supported.
pub fn filtered(scores: &[f32], params: &SamplingParams) -> Vec<(u32, u32)> {
    let max = scores.iter().copied().fold(f32::MIN, f32::max);
    let scale = gap_scale(params.temperature);
    // Most likely first; on ties the highest id, which top-p removes last.
    let mut tokens: Vec<(u32, Reverse<u32>)> = scores
        .iter()
        .enumerate()
        .map(|(id, &score)| (gap(max, score, scale), Reverse(id as u32)))
        .collect();
    tokens.sort_unstable();
    let top_k = params.top_k as usize;
    if top_k > 0 && top_k < tokens.len() {
        let border = tokens[top_k - 1].0;
        tokens.retain(|token| token.0 <= border);
    }
    if params.top_p < 1.0 {
        let mass = tokens.iter().map(|token| u64::from(weight(token.0))).sum();
        let goal = mass_share(fraction(params.top_p), mass).max(1);
        let mut sum = 0;
        tokens.retain(|token| {
            let before = sum;
            sum += u64::from(weight(token.0));
            before < goal
        });
    }
    let limit = if params.min_p > 0.0 {
        min_p_limit(params.min_p)
    } else {
        GAP_LIMIT
    };
    tokens.retain(|token| token.0 <= limit);
    let mut kept: Vec<(u32, u32)> = tokens
        .iter()
        .map(|&(gap, Reverse(id))| (id, weight(gap)))
        .collect();
    kept.sort_unstable();
    kept
}

/// Samples a token for this seed and step, or `None` if no token has weight.
pub fn sample(scores: &[f32], params: &SamplingParams, seed: u64, step: u32) -> Option<u32> {
    let kept = filtered(scores, params);
    let mass = kept.iter().map(|&(_, weight)| u64::from(weight)).sum();
    let point = mass_share(random(seed, step), mass);
    let mut sum = 0;
    let found = kept.iter().find(|&&(_, weight)| {
        sum += u64::from(weight);
        sum > point
    });
    found.map(|&(id, _)| id)
}
