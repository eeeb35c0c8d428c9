//! Tells from the most likely tokens alone which token a mask makes the sampler select, so that
//! tokens that were sampled under another mask can be kept.

use super::fixed_point::{BANNED_SCORE, fraction, gap, gap_scale, min_p_limit};
use super::philox::random;
use super::{Distribution, SamplingParams, TokenMask};

/// Maximum number of allowed tokens outside the list, which all might pass the filters.
const MAX_UNLISTED: usize = 4096;

/// The tokens with the largest scores under a mask: every other allowed token has a smaller score
/// than each of them.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    /// Tokens with their scores after bias and penalties, in any order.
    pub listed: &'a [(u32, f32)],
    /// A subset of the mask under which they are the largest.
    pub mask: TokenMask<'a>,
    /// Number of tokens in `mask`.
    pub allowed: usize,
}

/// Selects tokens from [`Candidates`] where the result is certain.
#[derive(Debug)]
pub struct CertainSampler {
    params: SamplingParams,
    seed: u64,
    distribution: Distribution,
    scores: Vec<f32>,
}

impl CertainSampler {
    /// For the parameters of a sampler. Only top-k, top-p and min-p may filter, and top-k must.
    pub fn new(params: &SamplingParams, seed: u64) -> Self {
        Self {
            params: params.clone(),
            seed,
            distribution: Distribution::default(),
            scores: Vec::new(),
        }
    }

    /// Returns the token that [`Sampler::select`](super::Sampler::select) selects at `step`; `None`
    /// if it may depend on a token that is not listed.
    pub fn select(&mut self, candidates: Candidates, step: u32) -> Option<u32> {
        let all = candidates.listed.iter().map(|(_, score)| *score);
        let largest_listed = all.clone().fold(f32::MIN, f32::max);
        let smallest_listed = all.fold(f32::MAX, f32::min);
        let is_allowed = |(id, _): &&(u32, f32)| candidates.mask.allows(*id as usize);
        let mut known: Vec<(u32, f32)> = candidates
            .listed
            .iter()
            .filter(is_allowed)
            .copied()
            .collect();
        known.sort_unstable_by_key(|(id, _)| *id);
        let largest = known
            .iter()
            .map(|(_, score)| *score)
            .fold(f32::MIN, f32::max);
        if known.is_empty() || largest <= BANNED_SCORE / 1000.0 {
            return None;
        }
        let scale = gap_scale(self.params.temperature);
        let count = self.params.top_k as usize;
        let random = random(self.seed, step);
        let scores = || known.iter().map(|(_, score)| *score);
        let token = |place: usize| known.get(place).map(|(id, _)| *id);
        let unlisted = candidates.allowed.saturating_sub(known.len());
        if unlisted == 0 || known.len() >= count {
            let mut gaps: Vec<u32> = scores().map(|score| gap(largest, score, scale)).collect();
            gaps.sort_unstable();
            let last = gaps[count.min(gaps.len()) - 1];
            // An unlisted token could tie with the last of top-k only where rounding joins their gaps.
            let may_tie = unlisted > 0
                && largest != largest_listed
                && gap(largest, smallest_listed, scale) <= last;
            let picked = self.pick(scores(), largest, random)?;
            return token(picked.0).filter(|_| !may_tie);
        }
        if unlisted > MAX_UNLISTED {
            return None;
        }
        // Each unlisted token has at most the weight of the last that is listed. More mass before a
        // token, or behind it, moves the sampled point in one direction only: if all of it on either
        // side changes nothing, no part of it does.
        let others = || std::iter::repeat_n(smallest_listed, unlisted);
        let (without, kept) = self.pick(scores(), largest, random)?;
        let (behind, kept_behind) = self.pick(scores().chain(others()), largest, random)?;
        let (before, kept_before) = self.pick(others().chain(scores()), largest, random)?;
        let is_certain = without == behind && before == without + unlisted;
        let keeps_same = self.params.top_p >= 1.0
            || (kept == kept_behind
                && kept_before
                    .iter()
                    .map(|at| at.wrapping_sub(unlisted))
                    .eq(kept));
        token(without).filter(|_| is_certain && keeps_same)
    }

    /// Samples from a row; returns the place of the token, and the places that the filters keep.
    fn pick(
        &mut self,
        scores: impl Iterator<Item = f32>,
        largest: f32,
        random: u32,
    ) -> Option<(usize, Vec<usize>)> {
        let Self {
            params,
            distribution,
            scores: row,
            ..
        } = self;
        row.clear();
        row.extend(scores);
        distribution.set(row, largest, gap_scale(params.temperature));
        distribution.top_k(params.top_k);
        if params.top_p < 1.0 {
            distribution.top_p(fraction(params.top_p));
        }
        if params.min_p > 0.0 {
            distribution.min_p(min_p_limit(params.min_p));
        }
        let kept = distribution
            .probabilities()
            .map(|(at, _)| at as usize)
            .collect();
        distribution.sample(random).map(|at| (at as usize, kept))
    }
}
