//! Controls speculation: decides whether steps with drafts pay off, from the measured yield and cost of this
//! generation. A device may report a batch only when the following one is done. Times are therefore taken between
//! batches of equal size, and a trial is timed together with the plain batches around it.

use std::collections::VecDeque;

/// Plain steps before the first trial, and the minimum between trials; they measure the cost of a token without drafts.
const SHORTEST_PAUSE: usize = 8;
/// Maximum plain steps until the next trial.
const LONGEST_PAUSE: usize = 512;
/// Maximum steps of a batch at first, so that two batches of equal size soon occur [`APART`] from each other.
const FIRST: usize = 4;
/// Minimum distance between two batches of equal size whose times are compared. Batches between them may have any size:
/// both intervals contain the same number of steps, whether a time belongs to its own batch or to the following one.
const APART: usize = 3;
/// Remembered batches. At most three sizes occur at first, so two of this many have equal size and are [`APART`].
const KNOWN: usize = 3 * APART + 1;
/// Steps of a trial.
const TRIAL: usize = 4;
/// Minimum gain in cost per token for speculation to continue after a trial.
const MARGIN: f64 = 1.1;

/// The kind of steps in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Without drafts.
    Plain,
    /// With drafts, to measure their yield.
    Trial,
    /// With drafts, because they pay off.
    Drafting,
}

/// What to submit next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// This many plain steps until the next trial.
    Plain(usize),
    /// This many steps of a trial, then plain ones until its result is known.
    Trial(usize),
    /// Steps with drafts while they pay off.
    Drafting,
}

/// A running trial, with one plain batch before and one after it.
#[derive(Debug, Default)]
struct Trial {
    steps: usize,
    tokens: usize,
    plain: usize,
    ms: f64,
}

/// A completed batch.
#[derive(Debug, Clone, Copy)]
struct Done {
    kind: Kind,
    steps: usize,
    ms: f64,
}

/// Chooses the kind of steps for each batch.
#[derive(Debug)]
pub(super) struct Pace {
    mode: Mode,
    always: bool,
    /// The last batches, at most [`KNOWN`].
    done: VecDeque<Done>,
    trial: Trial,
    plain_ms: Option<f64>,
    drafting_ms: Option<f64>,
    gain: f64,
    pause: usize,
}

impl Pace {
    /// Creates a controller; `always` drafts regardless of cost.
    pub fn new(always: bool) -> Self {
        Self {
            mode: if always { Mode::Drafting } else { Mode::Plain(SHORTEST_PAUSE) },
            always,
            done: VecDeque::new(),
            trial: Trial::default(),
            plain_ms: None,
            drafting_ms: None,
            gain: 1.0,
            pause: SHORTEST_PAUSE,
        }
    }

    /// Tokens per step at present.
    pub fn gain(&self) -> f64 {
        if self.mode == Mode::Drafting { self.gain.max(1.0) } else { 1.0 }
    }

    /// Returns how many steps to submit next (at most `most`) and their kind.
    pub fn next(&mut self, most: usize) -> (usize, Kind) {
        match &mut self.mode {
            Mode::Drafting => (most, Kind::Drafting),
            Mode::Trial(0) => (most, Kind::Plain),
            Mode::Trial(left) => {
                let count = most.min(*left);
                *left -= count;
                (count, Kind::Trial)
            }
            Mode::Plain(left) => {
                let known = self.plain_ms.is_some();
                let count = if known { most } else { most.min(FIRST) };
                *left = left.saturating_sub(count);
                if *left == 0 && known {
                    self.mode = Mode::Trial(TRIAL);
                }
                (count, Kind::Plain)
            }
        }
    }

    /// Records the tokens and the time of completed steps.
    pub fn took(&mut self, kind: Kind, steps: usize, brought: usize, ms: f64) {
        let before = self.done.back().copied();
        if self.done.len() == KNOWN {
            self.done.pop_front();
        }
        self.done.push_back(Done { kind, steps, ms });
        if let Some(now) = self.ms_of_a_step() {
            let known = if kind == Kind::Plain { &mut self.plain_ms } else { &mut self.drafting_ms };
            *known = Some(known.map_or(now, |known| 0.5 * (known + now)));
        }
        match kind {
            Kind::Plain if self.trial.steps >= TRIAL => {
                self.trial.ms += ms;
                self.trial.plain += steps;
                self.conclude();
            }
            Kind::Plain => {}
            Kind::Trial => {
                if let Some(before) = before.filter(|b| b.kind == Kind::Plain && self.trial.steps == 0) {
                    self.trial = Trial { plain: before.steps, ms: before.ms, ..Trial::default() };
                }
                self.trial.steps += steps;
                self.trial.tokens += brought;
                self.trial.ms += ms;
            }
            Kind::Drafting => {
                let weight = steps as f64 / (steps + 3) as f64;
                self.gain += weight * (brought as f64 / steps as f64 - self.gain);
                if self.mode == Mode::Drafting && !self.always && !self.pays(1.0) {
                    self.mode = Mode::Plain(self.pause);
                }
            }
        }
    }

    /// Measures from the last batch back to one of equal size, with only batches of the same kind in between.
    fn ms_of_a_step(&self) -> Option<f64> {
        let last = self.done.back()?;
        let mut since = self.done.iter().rev().take_while(|d| d.kind == last.kind).enumerate().skip(APART);
        let (back, _) = since.find(|(_, d)| d.steps == last.steps)?;
        let between = self.done.range(self.done.len() - 1 - back..self.done.len() - 1);
        let (steps, ms) = between.fold((0, 0.0), |(steps, ms), d| (steps + d.steps, ms + d.ms));
        Some(ms / steps as f64)
    }

    fn pays(&self, margin: f64) -> bool {
        match (self.plain_ms, self.drafting_ms) {
            (Some(plain), Some(drafting)) => self.gain * plain >= drafting * margin,
            _ => false,
        }
    }

    /// Decides how to continue after a trial.
    fn conclude(&mut self) {
        let trial = std::mem::take(&mut self.trial);
        let steps = trial.steps as f64;
        self.gain = trial.tokens as f64 / steps;
        self.drafting_ms = self.plain_ms.map(|plain| ((trial.ms - plain * trial.plain as f64) / steps).max(plain));
        if self.pays(MARGIN) {
            (self.mode, self.pause) = (Mode::Drafting, SHORTEST_PAUSE);
        } else {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.mode = Mode::Plain(self.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a generation of `count` tokens. A plain step costs 1, one with drafts `cost`; `gain` maps a position
    /// to the tokens of a step there. Two batches are in flight; `late` of them are done before the first is reported.
    /// Returns the total cost and the number of steps with drafts.
    fn run(count: usize, cost: f64, late: usize, gain: impl Fn(usize) -> usize) -> (f64, usize) {
        let (mut pace, mut flight) = (Pace::new(false), VecDeque::new());
        let (mut at, mut total, mut drafts, mut most) = (0, 0.0, 0, 1);
        let ms = |(steps, kind): (usize, Kind)| steps as f64 * if kind == Kind::Plain { 1.0 } else { cost };
        while at < count {
            while flight.len() < 2 + late {
                flight.push_back(pace.next(most));
            }
            let (steps, kind) = flight.pop_front().expect("a batch");
            most = (most * 2).min(8);
            let before = at;
            (0..steps).for_each(|_| at += if kind == Kind::Plain { 1 } else { gain(at) });
            total += ms((steps, kind));
            drafts += if kind == Kind::Plain { 0 } else { steps };
            let reported = if late == 0 { ms((steps, kind)) } else { ms(flight[late - 1]) };
            pace.took(kind, steps, at - before, reported);
        }
        (total, drafts)
    }

    #[test]
    fn drafts_that_never_hold_cost_little() {
        for late in [0, 1] {
            let (total, drafts) = run(1000, 2.0, late, |_| 1);
            assert!(total < 1060.0, "{total}");
            assert!(drafts > 0, "it is tried");
        }
    }

    #[test]
    fn drafts_that_hold_go_on() {
        for late in [0, 1] {
            let (total, _) = run(1000, 2.0, late, |_| 8);
            assert!(total < 330.0, "{total}");
        }
    }

    #[test]
    fn what_costs_more_than_it_brings_is_left() {
        for late in [0, 1] {
            let (total, _) = run(2000, 6.0, late, |_| 4);
            assert!(total < 2200.0, "{total}");
        }
    }

    #[test]
    fn a_text_that_begins_to_repeat_itself_is_noticed_and_its_end_too() {
        for late in [0, 1] {
            let (total, drafts) = run(3000, 1.5, late, |at| if (1000..2000).contains(&at) { 8 } else { 1 });
            assert!(total < 2000.0 + 1000.0 * 0.6, "{total}");
            assert!(drafts < 300, "{drafts}");
        }
    }

    #[test]
    fn batches_of_changing_sizes_are_measured_too() {
        // Sizes as on a busy machine; the last is the longest sequence without two equal sizes far enough apart.
        for sizes in [&[1, 2][..], &[2, 4], &[1, 2, 4, 2], &[4, 4, 4, 2, 2, 2, 1, 1, 1]] {
            for late in [0, 1] {
                let mut pace = Pace::new(false);
                let mut sizes = sizes.iter().cycle().copied();
                let mut flight: VecDeque<_> =
                    std::iter::repeat_with(|| pace.next(sizes.next().expect("one"))).take(3).collect();
                let mut steps = 0;
                while !flight.iter().any(|(_, kind)| *kind == Kind::Trial) {
                    let (count, kind) = flight.pop_front().expect("a batch");
                    steps += count;
                    assert!(steps < 40, "{sizes:?}");
                    let reported = if late == 0 { count } else { flight[0].0 };
                    pace.took(kind, count, count, reported as f64);
                    flight.push_back(pace.next(sizes.next().expect("one")));
                }
                assert_eq!(pace.plain_ms, Some(1.0));
            }
        }
    }

    #[test]
    fn always_means_always() {
        let mut pace = Pace::new(true);
        for _ in 0..9 {
            assert_eq!(pace.next(3), (3, Kind::Drafting));
            pace.took(Kind::Drafting, 3, 3, 100.0);
        }
    }
}
