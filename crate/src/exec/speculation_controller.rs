//! Controls speculation: decides whether steps with drafts pay off, from the measured yield and
//! cost of this generation. A device may report a batch only when the following one is done. Times
//! are therefore taken between batches of equal size, and a trial is timed together with the plain
//! batches around it.

use std::collections::VecDeque;

/// Plain steps before the first trial, and the minimum between trials; they measure the cost of a
/// token without drafts.
const MIN_PLAIN_STEPS: usize = 8;
/// Maximum plain steps until the next trial.
const MAX_PLAIN_STEPS: usize = 512;
/// Maximum plain steps before the first trial of a generation that follows another one.
const MAX_FIRST_PAUSE: usize = 64;
/// Maximum steps of a batch at first, so that two batches of equal size soon occur [`APART`] from
/// each other.
const MAX_FIRST_BATCH_STEPS: usize = 4;
/// Minimum distance between two batches of equal size whose times are compared. Batches between
/// them may have any size: both intervals contain the same number of steps, whether a time belongs
/// to its own batch or to the following one.
const MIN_BATCH_DISTANCE: usize = 3;
/// Remembered batches. At most three sizes occur at first, so two of this many have equal size and
/// are [`APART`].
const MAX_REMEMBERED_BATCHES: usize = 3 * MIN_BATCH_DISTANCE + 1;
/// Steps of a trial.
const TRIAL_STEPS: usize = 4;
/// Minimum gain in cost per token for speculation to continue after a trial.
const MIN_SPECULATION_GAIN: f64 = 1.1;

/// The kind of steps in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchKind {
    /// Without drafts.
    Plain,
    /// With drafts, to measure their yield.
    Trial,
    /// With drafts, because they pay off.
    Drafting,
}

/// What to submit next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ControllerMode {
    /// This many plain steps until the next trial.
    Plain(usize),
    /// This many steps of a trial, then plain ones until its result is known.
    Trial(usize),
    /// Steps with drafts while they pay off.
    Drafting,
}

/// A running trial, with one plain batch before and one after it.
#[derive(Debug, Default)]
struct SpeculationTrial {
    steps: usize,
    tokens: usize,
    plain: usize,
    ms: f64,
}

/// A completed batch.
#[derive(Debug, Clone, Copy)]
struct CompletedBatch {
    kind: BatchKind,
    steps: usize,
    ms: f64,
}

/// Chooses the kind of steps for each batch.
#[derive(Debug)]
pub(super) struct SpeculationController {
    mode: ControllerMode,
    always: bool,
    /// The last batches, at most [`MAX_REMEMBERED_BATCHES`].
    recent_batches: VecDeque<CompletedBatch>,
    trial: SpeculationTrial,
    plain_ms: Option<f64>,
    drafting_ms: Option<f64>,
    tokens_per_step: f64,
    plain_steps_between_trials: usize,
}

impl SpeculationController {
    /// Creates a controller; `always` drafts regardless of cost.
    pub fn new(always: bool) -> Self {
        Self {
            mode: if always {
                ControllerMode::Drafting
            } else {
                ControllerMode::Plain(MIN_PLAIN_STEPS)
            },
            always,
            recent_batches: VecDeque::new(),
            trial: SpeculationTrial::default(),
            plain_ms: None,
            drafting_ms: None,
            tokens_per_step: 1.0,
            plain_steps_between_trials: MIN_PLAIN_STEPS,
        }
    }

    /// Starts with the pause that an earlier generation ended with.
    pub fn with_pause(mut self, steps: Option<usize>) -> Self {
        if let (Some(steps), false) = (steps, self.always) {
            let steps = steps.min(MAX_FIRST_PAUSE);
            self.mode = ControllerMode::Plain(steps);
            self.plain_steps_between_trials = steps;
        }
        self
    }

    /// The plain steps between two trials at present: the more have failed, the more.
    pub fn pause(&self) -> usize {
        self.plain_steps_between_trials
    }

    /// Tokens per step at present.
    pub fn tokens_per_step(&self) -> f64 {
        if self.mode == ControllerMode::Drafting {
            self.tokens_per_step.max(1.0)
        } else {
            1.0
        }
    }

    /// Whether the next batch has drafts.
    pub fn drafts_next(&self) -> bool {
        match self.mode {
            ControllerMode::Drafting => true,
            ControllerMode::Trial(left) => left > 0,
            ControllerMode::Plain(_) => false,
        }
    }

    /// The time of a step with drafts, in plain steps.
    pub fn step_cost(&self) -> Option<f64> {
        Some(self.drafting_ms? / self.plain_ms.filter(|ms| *ms > 0.0)?)
    }

    /// Returns how many steps to submit next (at most `most`) and their kind.
    pub fn next_batch(&mut self, most: usize) -> (usize, BatchKind) {
        match &mut self.mode {
            ControllerMode::Drafting => (most, BatchKind::Drafting),
            ControllerMode::Trial(0) => (most, BatchKind::Plain),
            ControllerMode::Trial(left) => {
                let count = most.min(*left);
                *left -= count;
                (count, BatchKind::Trial)
            }
            ControllerMode::Plain(left) => {
                let known = self.plain_ms.is_some();
                let count = if known {
                    most
                } else {
                    most.min(MAX_FIRST_BATCH_STEPS)
                };
                *left = left.saturating_sub(count);
                if *left == 0 && known {
                    self.mode = ControllerMode::Trial(TRIAL_STEPS);
                }
                (count, BatchKind::Plain)
            }
        }
    }

    /// Records the tokens and the time of completed steps.
    pub fn record_batch(&mut self, kind: BatchKind, steps: usize, brought: usize, ms: f64) {
        let before = self.recent_batches.back().copied();
        if self.recent_batches.len() == MAX_REMEMBERED_BATCHES {
            self.recent_batches.pop_front();
        }
        self.recent_batches
            .push_back(CompletedBatch { kind, steps, ms });
        if let Some(now) = self.ms_per_step() {
            let known = if kind == BatchKind::Plain {
                &mut self.plain_ms
            } else {
                &mut self.drafting_ms
            };
            *known = Some(known.map_or(now, |known| 0.5 * (known + now)));
        }
        match kind {
            BatchKind::Plain if self.trial.steps >= TRIAL_STEPS => {
                self.trial.ms += ms;
                self.trial.plain += steps;
                self.finish_trial();
            }
            BatchKind::Plain => {}
            BatchKind::Trial => {
                if let Some(before) =
                    before.filter(|b| b.kind == BatchKind::Plain && self.trial.steps == 0)
                {
                    self.trial = SpeculationTrial {
                        plain: before.steps,
                        ms: before.ms,
                        ..SpeculationTrial::default()
                    };
                }
                self.trial.steps += steps;
                self.trial.tokens += brought;
                self.trial.ms += ms;
            }
            BatchKind::Drafting => {
                let weight = steps as f64 / (steps + 3) as f64;
                self.tokens_per_step +=
                    weight * (brought as f64 / steps as f64 - self.tokens_per_step);
                if self.mode == ControllerMode::Drafting && !self.always && !self.pays_off(1.0) {
                    self.mode = ControllerMode::Plain(self.plain_steps_between_trials);
                }
            }
        }
    }

    /// Measures from the last batch back to one of equal size, with only batches of the same kind
    /// in between.
    fn ms_per_step(&self) -> Option<f64> {
        let last = self.recent_batches.back()?;
        let mut since = self
            .recent_batches
            .iter()
            .rev()
            .take_while(|d| d.kind == last.kind)
            .enumerate()
            .skip(MIN_BATCH_DISTANCE);
        let (back, _) = since.find(|(_, d)| d.steps == last.steps)?;
        let between = self
            .recent_batches
            .range(self.recent_batches.len() - 1 - back..self.recent_batches.len() - 1);
        let (steps, ms) = between.fold((0, 0.0), |(steps, ms), d| (steps + d.steps, ms + d.ms));
        Some(ms / steps as f64)
    }

    fn pays_off(&self, margin: f64) -> bool {
        match (self.plain_ms, self.drafting_ms) {
            (Some(plain), Some(drafting)) => self.tokens_per_step * plain >= drafting * margin,
            _ => false,
        }
    }

    /// Decides how to continue after a trial.
    fn finish_trial(&mut self) {
        let trial = std::mem::take(&mut self.trial);
        let steps = trial.steps as f64;
        self.tokens_per_step = trial.tokens as f64 / steps;
        self.drafting_ms = self
            .plain_ms
            .map(|plain| ((trial.ms - plain * trial.plain as f64) / steps).max(plain));
        if self.pays_off(MIN_SPECULATION_GAIN) {
            (self.mode, self.plain_steps_between_trials) =
                (ControllerMode::Drafting, MIN_PLAIN_STEPS);
        } else {
            self.plain_steps_between_trials =
                (self.plain_steps_between_trials * 2).min(MAX_PLAIN_STEPS);
            self.mode = ControllerMode::Plain(self.plain_steps_between_trials);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a generation of `count` tokens. A plain step costs 1, one with drafts `cost`;
    /// `gain` maps a position to the tokens of a step there. Two batches are in flight; `late` of
    /// them are done before the first is reported. Returns the total cost and the number of steps
    /// with drafts.
    fn run(count: usize, cost: f64, late: usize, gain: impl Fn(usize) -> usize) -> (f64, usize) {
        let mut pace = SpeculationController::new(false);
        let mut flight = VecDeque::new();

        let mut at = 0;
        let mut total = 0.0;
        let mut drafts = 0;
        let mut most = 1;

        let ms = |(steps, kind): (usize, BatchKind)| {
            steps as f64 * if kind == BatchKind::Plain { 1.0 } else { cost }
        };
        while at < count {
            while flight.len() < 2 + late {
                flight.push_back(pace.next_batch(most));
            }
            let (steps, kind) = flight.pop_front().expect("a batch");
            most = (most * 2).min(8);
            let before = at;
            (0..steps).for_each(|_| {
                at += if kind == BatchKind::Plain {
                    1
                } else {
                    gain(at)
                }
            });
            total += ms((steps, kind));
            drafts += if kind == BatchKind::Plain { 0 } else { steps };
            let reported = if late == 0 {
                ms((steps, kind))
            } else {
                ms(flight[late - 1])
            };
            pace.record_batch(kind, steps, at - before, reported);
        }
        (total, drafts)
    }

    #[test]
    fn rejected_drafts_cost_little() {
        for late in [0, 1] {
            let (total, drafts) = run(1000, 2.0, late, |_| 1);
            assert!(total < 1060.0, "{total}");
            assert!(drafts > 0, "it is tried");
        }
    }

    #[test]
    fn accepted_drafts_continue() {
        for late in [0, 1] {
            let (total, _) = run(1000, 2.0, late, |_| 8);
            assert!(total < 330.0, "{total}");
        }
    }

    #[test]
    fn unprofitable_drafts_stop() {
        for late in [0, 1] {
            let (total, _) = run(2000, 6.0, late, |_| 4);
            assert!(total < 2200.0, "{total}");
        }
    }

    #[test]
    fn start_and_end_of_repetition_are_detected() {
        for late in [0, 1] {
            let (total, drafts) = run(3000, 1.5, late, |at| {
                if (1000..2000).contains(&at) { 8 } else { 1 }
            });
            assert!(total < 2000.0 + 1000.0 * 0.6, "{total}");
            assert!(drafts < 300, "{drafts}");
        }
    }

    #[test]
    fn batches_of_changing_sizes_are_measured_too() {
        // Sizes as on a busy machine; the last is the longest sequence without two equal sizes far
        // enough apart.
        for sizes in [
            &[1, 2][..],
            &[2, 4],
            &[1, 2, 4, 2],
            &[4, 4, 4, 2, 2, 2, 1, 1, 1],
        ] {
            for late in [0, 1] {
                let mut pace = SpeculationController::new(false);
                let mut sizes = sizes.iter().cycle().copied();
                let mut flight: VecDeque<_> =
                    std::iter::repeat_with(|| pace.next_batch(sizes.next().expect("one")))
                        .take(3)
                        .collect();
                let mut steps = 0;
                while !flight.iter().any(|(_, kind)| *kind == BatchKind::Trial) {
                    let (count, kind) = flight.pop_front().expect("a batch");
                    steps += count;
                    assert!(steps < 40, "{sizes:?}");
                    let reported = if late == 0 { count } else { flight[0].0 };
                    pace.record_batch(kind, count, count, reported as f64);
                    flight.push_back(pace.next_batch(sizes.next().expect("one")));
                }
                assert_eq!(pace.plain_ms, Some(1.0));
            }
        }
    }

    #[test]
    fn a_pause_outlives_its_generation() {
        let drafts_in = |pause: Option<usize>, count: usize| {
            let mut pace = SpeculationController::new(false).with_pause(pause);
            let mut drafts = 0;
            for _ in 0..count / 4 {
                let (steps, kind) = pace.next_batch(4);
                drafts += usize::from(kind != BatchKind::Plain);
                let cost = if kind == BatchKind::Plain { 1.0 } else { 3.0 };
                pace.record_batch(kind, steps, steps, steps as f64 * cost);
            }
            (drafts, pace.pause())
        };
        let (drafts, pause) = drafts_in(None, 256);
        assert!(drafts >= 3, "{drafts}");
        assert!(pause >= 128, "{pause}");
        assert_eq!(drafts_in(Some(512), MAX_FIRST_PAUSE), (0, MAX_FIRST_PAUSE));
        let (later, pause) = drafts_in(Some(512), 256);
        assert!(
            later < drafts && pause >= 2 * MAX_FIRST_PAUSE,
            "{later} {pause}"
        );
    }

    #[test]
    fn always_drafts_every_step() {
        let mut pace = SpeculationController::new(true);
        for _ in 0..9 {
            assert_eq!(pace.next_batch(3), (3, BatchKind::Drafting));
            pace.record_batch(BatchKind::Drafting, 3, 3, 100.0);
        }
    }
}
