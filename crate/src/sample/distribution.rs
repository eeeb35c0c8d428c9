//! Token distribution as integer gaps and weights (see `fixed_point`), transformers' warpers as
//! filters on it, and sampling from it.

use super::fixed_point::{GAP_BITS, GAP_LIMIT, WEIGHT_ONE, gap, mass_share, min_p_limit, weight};

/// Number of most likely tokens that top-h considers.
const MAX_TOP_H: usize = 100;

/// Gap of a token removed by typical-p or top-h; above every limit.
const REMOVED_GAP: u32 = u32::MAX;

/// Bins of the first pass over the gaps.
const BINS: usize = 1 << 10;
const BIN_SHIFT: u32 = 20;

/// Tokens per block: sampling first selects a block, then a token in it.
const BLOCK: usize = 1 << 10;

/// Token distribution of one row of logits. Its buffers are reused between rows.
#[derive(Debug, Default)]
pub struct Distribution {
    gaps: Vec<u32>,
    /// Tokens with a smaller gap are kept.
    limit: u32,
    /// Of tokens whose gap equals `limit`, those from this id on are kept.
    first_id: u32,
    bins: Vec<u64>,
    /// Keys of one bin in the high word, gaps in the low word.
    members: Vec<u64>,
    blocks: Vec<u64>,
}

/// Result of [`Distribution::select`].
struct KeyThreshold {
    /// Smallest key at which the sum reaches the goal.
    key: u32,
    /// Goal minus the sum over smaller keys.
    missing: u64,
    /// Number of tokens with that key.
    ties: u64,
}

impl Distribution {
    /// Sets the scores of all tokens, whose maximum is `max`. `scale` is
    /// [`super::fixed::gap_scale`] of the temperature.
    pub fn set(&mut self, scores: &[f32], max: f32, scale: f32) {
        self.gaps.clear();
        self.gaps
            .extend(scores.iter().map(|&score| gap(max, score, scale)));
        self.limit = GAP_LIMIT;
        self.first_id = 0;
    }

    /// Keeps the `count` most likely tokens and ties with the last of them.
    pub fn top_k(&mut self, count: u32) {
        if count == 0 || count as usize >= self.gaps.len() {
            return;
        }
        let selected = self.find_threshold(&|_| u64::from(count), 0, false);
        self.lower_limit(selected.key);
    }

    /// Keeps the most likely tokens until their share of the mass reaches `share_kept`/2^32, at
    /// least one. Of ties at the border the highest ids are kept: the end of a stable ascending
    /// sort.
    pub fn top_p(&mut self, share_kept: u32) {
        let selected = self.find_threshold(&|mass| mass_share(share_kept, mass).max(1), 0, true);
        self.lower_limit(selected.key);
        let each = u64::from(weight(selected.key)).max(1);
        let kept = selected.missing.div_ceil(each);
        if kept < selected.ties {
            let ids = self
                .gaps
                .iter()
                .enumerate()
                .rev()
                .filter(|&(_, &gap)| gap == selected.key);
            let last = ids.map(|(id, _)| id as u32).nth(kept as usize - 1);
            self.first_id = last.unwrap_or(0);
        }
    }

    /// Keeps tokens whose gap is at most `limit` (see [`super::fixed::min_p_limit`]).
    pub fn min_p(&mut self, limit: u32) {
        self.lower_limit(limit);
    }

    /// Keeps the tokens whose information is closest to the entropy until their share reaches
    /// `share_kept`/2^32, and ties with the last of them. Normalization cancels, so the key is
    /// |gap - mean gap|.
    pub fn typical_p(&mut self, share_kept: u32) {
        let mut mass = 0u128;
        let mut sum = 0u128;

        for (_, gap) in self.kept_tokens() {
            let weight = u128::from(weight(gap));
            mass += weight;
            sum += weight * u128::from(gap);
        }
        let mean = (sum / mass.max(1)) as u32;
        let goal = |mass| mass_share(share_kept, mass).max(1);
        let farthest = self.find_threshold(&goal, mean, true).key;
        let limit = self.limit;
        let first_id = self.first_id;

        for (id, gap) in self.gaps.iter_mut().enumerate() {
            if !is_kept(*gap, id, limit, first_id) || gap.abs_diff(mean) > farthest {
                *gap = REMOVED_GAP;
            }
        }
    }

    /// Keeps tokens of at least this probability, and always the most likely ones.
    pub fn cutoff(&mut self, probability: f64) {
        let share = probability * self.mass() as f64 / f64::from(WEIGHT_ONE);
        let least = self.kept_tokens().map(|(_, gap)| gap).min().unwrap_or(0);
        self.lower_limit(if share < 1.0 {
            min_p_limit(share).max(least)
        } else {
            least
        });
    }

    /// Entropy of the kept tokens in nats.
    pub fn entropy(&self) -> f64 {
        let mut mass = 0.0;
        let mut sum = 0.0;

        for (_, gap) in self.kept_tokens() {
            let weight = f64::from(weight(gap));
            mass += weight;
            sum += weight * f64::from(gap);
        }
        // Gaps are bits below the most likely token, whose weight is 1.
        let bits = sum / mass / f64::from(1u32 << GAP_BITS);
        (mass / f64::from(WEIGHT_ONE)).ln() + bits * std::f64::consts::LN_2
    }

    /// Keeps, of the 100 most likely tokens, the first whose entropy terms sum to at most this
    /// share of their total; at least one.
    pub fn top_h(&mut self, share_kept: f64) {
        let mut best: Vec<(u32, u32)> = self.kept_tokens().map(|(id, gap)| (gap, id)).collect();
        best.sort_unstable();
        best.truncate(MAX_TOP_H);
        let mass: f64 = best.iter().map(|(gap, _)| f64::from(weight(*gap))).sum();
        let part = |gap: u32| {
            let p = f64::from(weight(gap)) / mass;
            if p > 0.0 { -p * p.ln() } else { 0.0 }
        };
        let limit = share_kept * best.iter().map(|(gap, _)| part(*gap)).sum::<f64>();
        let mut sum = 0.0;
        let kept = best.iter().take_while(|(gap, _)| {
            sum += part(*gap);
            sum <= limit && weight(*gap) > 0
        });
        let count = kept.count().max(1);
        let old = std::mem::take(&mut self.gaps);
        self.gaps.resize(old.len(), REMOVED_GAP);
        for (gap, id) in best.into_iter().take(count) {
            self.gaps[id as usize] = gap;
        }
    }

    /// Samples the token at `random`/2^32 of the kept mass, in id order; `None` if no token has
    /// weight.
    pub fn sample(&mut self, random: u32) -> Option<u32> {
        let limit = self.limit;
        let first_id = self.first_id;

        self.blocks.clear();
        self.blocks.resize(self.gaps.len().div_ceil(BLOCK), 0);
        for (id, &gap) in self.gaps.iter().enumerate() {
            if is_kept(gap, id, limit, first_id) {
                self.blocks[id / BLOCK] += u64::from(weight(gap));
            }
        }
        let mut rest = mass_share(random, self.blocks.iter().sum());
        let block = self.blocks.iter().position(|&mass| take(&mut rest, mass))?;
        let gaps = self.gaps.iter().enumerate().skip(block * BLOCK).take(BLOCK);
        let mut kept = gaps.filter(|&(id, &gap)| is_kept(gap, id, limit, first_id));
        kept.find(|&(_, &gap)| take(&mut rest, u64::from(weight(gap))))
            .map(|(id, _)| id as u32)
    }

    /// Kept tokens with their probabilities, in id order.
    pub fn probabilities(&self) -> impl Iterator<Item = (u32, f32)> {
        let mass = self.mass() as f64;
        self.kept_tokens()
            .map(move |(id, gap)| (id, (f64::from(weight(gap)) / mass) as f32))
    }

    /// Mass of the kept tokens, in units of 1/2^31 of the weight of the most likely token.
    pub fn mass(&self) -> u64 {
        self.kept_tokens()
            .map(|(_, gap)| u64::from(weight(gap)))
            .sum()
    }

    /// The natural logarithm of the sum over kept tokens of exp(score - max).
    pub fn log_normalizer(&self) -> f64 {
        (self.mass() as f64 / f64::from(WEIGHT_ONE)).ln()
    }

    fn kept_tokens(&self) -> impl Iterator<Item = (u32, u32)> {
        let gaps = self.gaps.iter().enumerate();
        gaps.filter(|&(id, &gap)| is_kept(gap, id, self.limit, self.first_id))
            .map(|(id, &gap)| (id as u32, gap))
    }

    fn lower_limit(&mut self, limit: u32) {
        if limit < self.limit {
            self.limit = limit;
            self.first_id = 0;
        }
    }

    /// Finds the smallest key at which the summed values of the kept tokens reach the goal, a
    /// positive number computed from the total. A token's key is |gap - center|. Its value is its
    /// weight if `weighed`, else 1. One pass finds the bin of the key; sorting that bin finds the
    /// key.
    fn find_threshold(
        &mut self,
        goal: &dyn Fn(u64) -> u64,
        center: u32,
        weighed: bool,
    ) -> KeyThreshold {
        let key = |gap: u32| gap.abs_diff(center);
        let value = |gap: u32| if weighed { weight(gap) } else { 1 };
        let limit = self.limit;
        let first_id = self.first_id;

        let kept = |&(id, &gap): &(usize, &u32)| is_kept(gap, id, limit, first_id);
        self.bins.clear();
        self.bins.resize(BINS, 0);
        for (_, &gap) in self.gaps.iter().enumerate().filter(kept) {
            self.bins[(key(gap) >> BIN_SHIFT) as usize] += u64::from(value(gap));
        }
        let goal = goal(self.bins.iter().sum());
        let mut missing = goal;
        let bin = self
            .bins
            .iter()
            .position(|&sum| take_before(&mut missing, sum))
            .unwrap_or(BINS - 1);
        self.members.clear();
        let gaps = self
            .gaps
            .iter()
            .enumerate()
            .filter(kept)
            .map(|(_, &gap)| gap);
        let gaps = gaps.filter(|&gap| (key(gap) >> BIN_SHIFT) as usize == bin);
        self.members
            .extend(gaps.map(|gap| u64::from(key(gap)) << 32 | u64::from(gap)));
        self.members.sort_unstable();
        for tied in self.members.chunk_by(|a, b| a >> 32 == b >> 32) {
            let sum = tied
                .iter()
                .map(|&member| u64::from(value(member as u32)))
                .sum();
            if take_before(&mut missing, sum) {
                return KeyThreshold {
                    key: (tied[0] >> 32) as u32,
                    missing,
                    ties: tied.len() as u64,
                };
            }
        }
        // Only if the goal exceeds the total: everything is kept.
        KeyThreshold {
            key: GAP_LIMIT,
            missing,
            ties: 0,
        }
    }
}

fn is_kept(gap: u32, id: usize, limit: u32, first_id: u32) -> bool {
    gap < limit || (gap == limit && id as u32 >= first_id)
}

/// Whether `rest` is within `mass`; if not, subtracts `mass` from it.
fn take(rest: &mut u64, mass: u64) -> bool {
    let within = *rest < mass;
    if !within {
        *rest -= mass;
    }
    within
}

/// Whether `sum` reaches `missing`; if not, subtracts `sum` from it.
fn take_before(missing: &mut u64, sum: u64) -> bool {
    let reached = sum >= *missing;
    if !reached {
        *missing -= sum;
    }
    reached
}

// The bins cover all gaps, and all differences of gaps, which are no larger.
const _: () = assert!((GAP_LIMIT >> BIN_SHIFT) < BINS as u32 && GAP_BITS > BIN_SHIFT);

#[cfg(test)]
mod tests {
    use super::super::fixed_point::{fraction, gap_scale};
    use super::*;

    fn of(probabilities: &[f32]) -> Distribution {
        let scores: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let max = scores.iter().copied().fold(f32::MIN, f32::max);
        let mut distribution = Distribution::default();
        distribution.set(&scores, max, gap_scale(1.0));
        distribution
    }

    fn ids(distribution: &Distribution) -> Vec<u32> {
        distribution.probabilities().map(|(id, _)| id).collect()
    }

    #[test]
    fn probabilities_are_the_softmax() {
        let expected = [0.5, 0.25, 0.125, 0.1, 0.025];
        for ((_, found), expected) in of(&expected).probabilities().zip(expected) {
            assert!((found - expected).abs() < 2e-7, "{found} {expected}");
        }
    }

    #[test]
    fn filters_keep_ties_as_transformers_does() {
        let row = [0.1, 0.3, 0.1, 0.3, 0.1, 0.1];
        let mut distribution = of(&row);
        distribution.top_k(3);
        assert_eq!(ids(&distribution), [0, 1, 2, 3, 4, 5]);
        let mut distribution = of(&row);
        distribution.top_k(2);
        assert_eq!(ids(&distribution), [1, 3]);
        let mut distribution = of(&row);
        distribution.top_p(fraction(0.75));
        assert_eq!(ids(&distribution), [1, 3, 4, 5]);
        distribution.top_p(0);
        assert_eq!(ids(&distribution), [3]);
    }

    #[test]
    fn min_p_and_typical_p() {
        let mut distribution = of(&[0.5, 0.26, 0.14, 0.1]);
        distribution.min_p(min_p_limit(0.25));
        assert_eq!(ids(&distribution), [0, 1, 2]);
        // The entropy is 1.03 nats; -ln p is 0.2, 2.3 and 4.6: the second is the most typical, then
        // the first.
        let mut distribution = of(&[0.55, 0.3, 0.1, 0.05]);
        distribution.typical_p(fraction(0.2));
        assert_eq!(ids(&distribution), [1]);
        let mut distribution = of(&[0.55, 0.3, 0.1, 0.05]);
        distribution.typical_p(fraction(0.7));
        assert_eq!(ids(&distribution), [0, 1]);
    }

    #[test]
    fn sampling_walks_the_kept_mass() {
        let mut distribution = of(&[0.25, 0.5, 0.25]);
        let sampled: Vec<_> = [0.0, 0.24, 0.26, 0.74, 0.76, 1.0]
            .map(|u| distribution.sample(fraction(u)))
            .into();
        assert_eq!(sampled, [0, 0, 1, 1, 2, 2].map(Some));
        distribution.top_k(1);
        assert_eq!(distribution.sample(u32::MAX), Some(1));
    }

    #[test]
    fn sampling_crosses_block_borders() {
        let mut distribution = of(&vec![0.5; 3 * BLOCK + 5]);
        let count = 3 * BLOCK as u64 + 5;
        for id in [
            0,
            BLOCK as u64 - 1,
            BLOCK as u64,
            2 * BLOCK as u64 + 7,
            count - 1,
        ] {
            let random = ((id << 32) + (1 << 31)) / count;
            assert_eq!(distribution.sample(random as u32), Some(id as u32));
        }
    }
}
