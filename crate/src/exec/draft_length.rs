//! How many tokens a draft model proposes in a step: as many as give the most tokens per time, from
//! the share of accepted tokens and the cost of a proposal.

use crate::kernels::sample::DRAFT_ROWS;

/// Maximum proposals in a step.
const MAX_LENGTH: usize = DRAFT_ROWS as usize - 1;
/// Proposals in the first step.
const FIRST_LENGTH: usize = 3;
/// Acceptance and cost of a proposal before they are measured.
const FIRST_ACCEPTANCE: f64 = 0.7;
const FIRST_COST: f64 = 0.25;
/// Time of a step that verifies, in decode steps.
const VERIFICATION_COST: f64 = 1.15;
/// Bounds of the measured cost of a proposal, in decode steps.
const COST_BOUNDS: (f64, f64) = (0.02, 2.0);
/// Steps whose acceptance counts as much as all before them.
const REMEMBERED_STEPS: f64 = 8.0;

/// Chooses how many tokens a draft model proposes.
#[derive(Debug)]
pub struct DraftLength {
    length: usize,
    is_fixed: bool,
    /// Chance that the target accepts a proposal whose predecessors it has accepted.
    acceptance: f64,
    /// Time of a proposal in decode steps of the target.
    cost: f64,
}

impl Default for DraftLength {
    fn default() -> Self {
        Self {
            length: FIRST_LENGTH,
            is_fixed: false,
            acceptance: FIRST_ACCEPTANCE,
            cost: FIRST_COST,
        }
    }
}

/// Tokens that a step brings besides its own: the sum of `acceptance^i` for the proposals.
fn expected_accepted(acceptance: f64, length: usize) -> f64 {
    (1..=length as i32).map(|i| acceptance.powi(i)).sum()
}

/// The acceptance of each proposal if `accepted` of `length` are accepted on average.
fn acceptance_of(accepted: f64, length: usize) -> f64 {
    let mut bounds = (0.0, 1.0);
    for _ in 0..16 {
        let middle = 0.5 * (bounds.0 + bounds.1);
        match expected_accepted(middle, length) < accepted {
            true => bounds.0 = middle,
            false => bounds.1 = middle,
        }
    }
    bounds.0
}

impl DraftLength {
    /// Always proposes this many tokens.
    pub fn fixed(length: usize) -> Self {
        Self {
            length: length.clamp(1, MAX_LENGTH),
            is_fixed: true,
            ..Self::default()
        }
    }

    /// The number of tokens to propose.
    pub fn get(&self) -> usize {
        self.length
    }

    /// Notes how many of the proposals of steps with `length` each were accepted.
    pub fn record(&mut self, length: usize, proposed: usize, accepted: usize) {
        let steps = proposed as f64 / length.max(1) as f64;
        if steps > 0.0 {
            let found = acceptance_of(accepted as f64 / steps, length);
            self.acceptance += steps / (steps + REMEMBERED_STEPS) * (found - self.acceptance);
            self.choose();
        }
    }

    /// Notes the time of a step with `length` proposals, in decode steps of the target.
    pub fn record_cost(&mut self, length: usize, step_cost: f64) {
        let cost = (step_cost - VERIFICATION_COST) / length.max(1) as f64;
        self.cost = cost.clamp(COST_BOUNDS.0, COST_BOUNDS.1);
        self.choose();
    }

    fn choose(&mut self) {
        if self.is_fixed {
            return;
        }
        let speed = |length: &usize| {
            let tokens = 1.0 + expected_accepted(self.acceptance, *length);
            tokens / (VERIFICATION_COST + self.cost * *length as f64)
        };
        let best = (1..=MAX_LENGTH).max_by(|a, b| speed(a).total_cmp(&speed(b)));
        self.length = best.unwrap_or(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length after many steps with an acceptance and a cost of a proposal.
    fn length(acceptance: f64, cost: f64) -> usize {
        let mut length = DraftLength::default();
        for _ in 0..100 {
            let count = length.get();
            let accepted = 100.0 * expected_accepted(acceptance, count);
            length.record(count, 100 * count, accepted.round() as usize);
            length.record_cost(count, VERIFICATION_COST + cost * count as f64);
        }
        length.get()
    }

    #[test]
    fn good_drafts_are_long_and_poor_or_slow_ones_short() {
        assert_eq!(length(0.98, 0.1), MAX_LENGTH);
        assert_eq!(length(0.1, 0.2), 1);
        assert_eq!(length(0.6, 1.0), 1);
        assert!(
            (3..=5).contains(&length(0.7, 0.12)),
            "{}",
            length(0.7, 0.12)
        );
        assert!(length(0.7, 0.12) > length(0.7, 0.3));
    }

    #[test]
    fn acceptance_is_recovered_from_accepted_tokens() {
        for acceptance in [0.05, 0.3, 0.7, 0.95] {
            for length in 1..=MAX_LENGTH {
                let found = acceptance_of(expected_accepted(acceptance, length), length);
                assert!(
                    (found - acceptance).abs() < 1e-3,
                    "{acceptance} {length}: {found}"
                );
            }
        }
    }

    #[test]
    fn a_fixed_length_stays() {
        let mut length = DraftLength::fixed(5);
        length.record(5, 500, 0);
        length.record_cost(5, 9.0);
        assert_eq!(length.get(), 5);
        assert_eq!(DraftLength::fixed(99).get(), MAX_LENGTH);
    }
}
