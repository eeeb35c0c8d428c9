//! How many steps of a constrained generation are queued before their masks are known, and the mask
//! that they are sampled under. Learns from the tokens that are kept and dropped; the tokens
//! themselves never depend on it.

use super::logits_pipeline::{LogitsPipeline, LogitsStage, TARGET_BATCH_MS};
use super::session::Session;
use super::step_costs::StepCosts;
use crate::gpu::Readback;
use crate::sample::{CertainSampler, Sampler};
use std::collections::VecDeque;

/// Maximum steps in flight that were sampled under a guessed mask.
pub(super) const MAX_STEPS_AHEAD: usize = 24;
/// Submissions that the steps in flight are divided into.
const SUBMISSIONS: usize = 4;
/// Weight of the last token in the share of tokens that were kept.
const LAST_TOKEN_WEIGHT: f64 = 0.125;
/// Share of kept tokens from which more steps than [`USUAL_STEPS_AHEAD`] are queued.
const RELIABLE: f64 = 0.99;
/// Maximum steps in flight below it: enough to hide a readback, few to drop.
const USUAL_STEPS_AHEAD: usize = 12;
/// The wait that is assumed where batches have a fixed size.
const FIXED_WAIT_MS: f64 = 3.0;
/// Lowest share of kept tokens that a generation begins with.
const LEAST_KEPT: f64 = 0.3;
/// Tokens before the first attempt while guesses fail.
const FIRST_ATTEMPT: usize = 4;
/// Tokens between two attempts while guesses fail: at first and at most.
const ATTEMPT_DISTANCE: (usize, usize) = (16, 256);

/// The mask of tokens that are sampled ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuessedMask {
    /// All tokens: right where the model follows the grammar.
    All,
    /// The last mask that was known: right inside of a long string, whatever the model does.
    Last,
}

/// What is known about one guess.
#[derive(Debug, Clone, Copy)]
struct GuessRecord {
    /// The share of tokens that were kept, recent ones first.
    kept: f64,
}

impl GuessRecord {
    fn record(&mut self, is_kept: bool, weight: f64) {
        self.kept += weight * (f64::from(u8::from(is_kept)) - self.kept);
    }

    /// The steps that are worth queuing if a kept token saves `wait_ms`: a dropped one costs the
    /// steps in flight and one again.
    fn depth(self, (wait_ms, step_ms): (f64, f64)) -> usize {
        let odds = self.kept / (1.0 - self.kept).max(0.001);
        let worth = (odds * wait_ms / step_ms - 1.0).max(0.0) as usize;
        let most = match self.kept < RELIABLE {
            true => USUAL_STEPS_AHEAD,
            false => MAX_STEPS_AHEAD,
        };
        worth
            .min(most)
            .min((1.5 * TARGET_BATCH_MS / step_ms) as usize)
    }
}

/// Decides how far a constrained generation runs ahead. Outlives the decode loops of a generation.
pub struct RunAhead {
    all: GuessRecord,
    last: GuessRecord,
    /// The guess of the steps in flight.
    pub(super) guess: GuessedMask,
    /// Steps that the states can be rolled back.
    room: usize,
    /// `None` where batches have a fixed size.
    pub(super) costs: Option<StepCosts>,
    /// Tokens until the next attempt, and between attempts, while neither guess is good enough.
    until_attempt: usize,
    attempt_distance: usize,
    is_attempt: bool,
    /// Tells what another mask would have sampled; `None` for greedy decoding, or if only equal
    /// masks are known to sample the same.
    pub(super) certain: Option<CertainSampler>,
    pub(super) is_greedy: bool,
    /// Results of steps that were dropped; awaited later.
    discarded: VecDeque<Readback>,
}

impl RunAhead {
    /// For a request; `None` if steps cannot be dropped.
    pub fn new(session: &Session, sampler: &Sampler, pipeline: &LogitsPipeline) -> Option<Self> {
        // The last token that is kept runs again.
        let room = session
            .rollback_room()
            .saturating_sub(1)
            .min(MAX_STEPS_AHEAD);
        let is_greedy = !pipeline.has(LogitsStage::Sample);
        let certain = pipeline
            .has(LogitsStage::Candidates)
            .then(|| CertainSampler::new(sampler.params(), sampler.seed()));
        // Without candidates only an equal mask is known to give the same token.
        let kept = match is_greedy || certain.is_some() {
            true => session.model().kept_ahead.get().max(LEAST_KEPT),
            false => 0.0,
        };
        (room > 0).then(|| Self {
            all: GuessRecord { kept },
            last: GuessRecord { kept: LEAST_KEPT },
            guess: GuessedMask::All,
            room,
            costs: match session.model().options.batch_steps {
                Some(_) => None,
                None => Some(session.model().step_costs.get()),
            },
            until_attempt: FIRST_ATTEMPT,
            attempt_distance: ATTEMPT_DISTANCE.0,
            is_attempt: false,
            certain,
            is_greedy,
            discarded: VecDeque::new(),
        })
    }

    /// Chooses the guess for the steps behind a token whose mask is known. `repeats`: whether that
    /// mask equals the one before; `fast`: the steps of a batch of free decoding.
    pub(super) fn begin(&mut self, repeats: bool, fast: usize) {
        if repeats {
            self.last.record(true, LAST_TOKEN_WEIGHT);
        }
        let tells_all = self.is_greedy || self.certain.is_some();
        self.guess = match !tells_all || self.last.kept > self.all.kept {
            true => GuessedMask::Last,
            false => GuessedMask::All,
        };
        self.is_attempt = false;
        if self.worth(fast) > 0 {
            return;
        }
        self.until_attempt = self.until_attempt.saturating_sub(1);
        if self.until_attempt == 0 {
            self.is_attempt = true;
            self.until_attempt = self.attempt_distance;
            self.attempt_distance = (self.attempt_distance * 2).min(ATTEMPT_DISTANCE.1);
        }
    }

    /// The steps that are worth queuing under the guess.
    fn worth(&self, fast: usize) -> usize {
        let costs = match self.costs {
            Some(measured) => measured.known(),
            None => Some((FIXED_WAIT_MS, TARGET_BATCH_MS / fast as f64)),
        };
        costs.map_or(0, |costs| self.record_of(self.guess).depth(costs))
    }

    /// Steps to have in flight; `fast` is the steps of a batch of free decoding.
    pub(super) fn depth(&self, fast: usize) -> usize {
        let depth = self.worth(fast);
        depth.max(self.is_attempt.into()).min(self.room)
    }

    /// Remembers costs, and how well the model follows, for its next generation.
    pub(super) fn remember(&self, session: &Session) {
        if let Some(costs) = self.costs {
            session.model().step_costs.set(costs);
        }
        if self.is_greedy || self.certain.is_some() {
            session.model().kept_ahead.set(self.all.kept);
        }
    }

    /// Steps of one submission at a depth.
    pub(super) fn submission(depth: usize) -> usize {
        depth.div_ceil(SUBMISSIONS)
    }

    /// Notes whether a token that was sampled under the guess is the one of its mask.
    pub(super) fn record(&mut self, is_kept: bool) {
        let weight = if self.is_attempt {
            0.5
        } else {
            LAST_TOKEN_WEIGHT
        };
        match self.guess {
            GuessedMask::All => self.all.record(is_kept, weight),
            GuessedMask::Last => self.last.record(is_kept, weight),
        }
        if self.is_attempt && is_kept {
            self.attempt_distance = ATTEMPT_DISTANCE.0;
        } else if self.is_attempt {
            // The other guess is next.
            let other = match self.guess {
                GuessedMask::All => &mut self.last,
                GuessedMask::Last => &mut self.all,
            };
            other.kept = other.kept.max(LEAST_KEPT);
        }
    }

    fn record_of(&self, guess: GuessedMask) -> GuessRecord {
        match guess {
            GuessedMask::All => self.all,
            GuessedMask::Last => self.last,
        }
    }

    /// Takes over the results of steps that were dropped.
    pub(super) fn discard(&mut self, results: impl Iterator<Item = Readback>) {
        self.discarded.extend(results);
    }

    /// Waits for the results of dropped steps, which later ones follow.
    pub async fn settle(&mut self) {
        while let Some(read) = self.discarded.pop_front() {
            // A lost device is an error of the next step.
            let _ = read.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::FIRST_KEPT;
    use super::*;

    fn pace() -> RunAhead {
        RunAhead {
            all: GuessRecord { kept: FIRST_KEPT },
            last: GuessRecord { kept: LEAST_KEPT },
            guess: GuessedMask::All,
            room: MAX_STEPS_AHEAD,
            costs: None,
            until_attempt: FIRST_ATTEMPT,
            attempt_distance: ATTEMPT_DISTANCE.0,
            is_attempt: false,
            certain: None,
            is_greedy: true,
            discarded: VecDeque::new(),
        }
    }

    /// Simulates `count` tokens; returns the readbacks and the steps that were dropped.
    fn run(count: usize, fast: usize, kept: impl Fn(usize, GuessedMask) -> bool) -> (usize, usize) {
        let mut pace = pace();
        let [mut at, mut reads, mut dropped] = [0; 3];
        while at < count {
            pace.begin(false, fast);
            at += 1;
            reads += 1;
            let mut depth = pace.depth(fast);
            while depth > 0 && at < count {
                let steps = RunAhead::submission(depth).min(count - at);
                reads += 1;
                let good = (at..at + steps)
                    .take_while(|at| kept(*at, pace.guess))
                    .count();
                (0..good).for_each(|_| pace.record(true));
                at += good;
                if good < steps {
                    pace.record(false);
                    dropped += depth - good;
                    break;
                }
                depth = pace.depth(fast);
            }
        }
        (reads, dropped)
    }

    #[test]
    fn a_model_that_follows_is_read_in_batches() {
        let (reads, dropped) = run(1000, 16, |_, _| true);
        assert!(reads < 200, "{reads}");
        assert_eq!(dropped, 0);
    }

    #[test]
    fn guesses_that_fail_cost_little() {
        let (_, dropped) = run(1000, 16, |_, _| false);
        assert!(dropped < 40, "{dropped}");
        // Where a step takes as long as many readbacks, almost nothing is tried.
        let (_, dropped) = run(1000, 1, |_, _| false);
        assert!(dropped < 15, "{dropped}");
        let (_, dropped) = run(1000, 1, |at, _| at % 5 != 0);
        assert!(dropped < 60, "{dropped}");
    }

    #[test]
    fn a_short_wait_is_worth_few_steps() {
        let depth = |alone: f64| {
            let mut pace = pace();
            let costs = pace.costs.insert(StepCosts::default());
            costs.record_alone(alone);
            costs.record_queued(1.0);
            pace.depth(16)
        };
        assert_eq!([1.0, 1.2, 2.0, 4.0].map(depth), [0, 0, 3, 11]);
    }

    #[test]
    fn nothing_is_queued_before_costs_are_known() {
        let mut pace = pace();
        let costs = pace.costs.insert(StepCosts::default());
        costs.record_alone(9.0);
        let attempts: Vec<bool> = (0..FIRST_ATTEMPT)
            .map(|_| {
                pace.begin(false, 16);
                pace.depth(16) > 0
            })
            .collect();
        assert_eq!(attempts, [false, false, false, true]);
    }

    #[test]
    fn the_better_guess_is_found() {
        for right in [GuessedMask::All, GuessedMask::Last] {
            let (reads, _) = run(1000, 16, |_, guess| guess == right);
            assert!(reads < 350, "{right:?}: {reads}");
        }
    }

    #[test]
    fn rare_failures_keep_the_depth_moderate() {
        let (reads, dropped) = run(1000, 16, |at, _| at % 20 != 7);
        assert!(reads < 500 && dropped < 700, "{reads} {dropped}");
    }
}
