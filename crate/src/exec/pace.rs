//! Whether steps with drafted rows pay: what they bring and cost beside plain steps, as this generation measures both.
//! It knows counts and milliseconds, not what runs. A device may report a batch when the one behind it is done, so that
//! times count between batches of one size, and a trial is timed with the plain batches around it.

use std::collections::VecDeque;

/// Plain steps at first, and at least, between trials; they say what a token costs without drafts.
const SHORTEST_PAUSE: usize = 8;
/// The most plain steps until drafts are tried again.
const LONGEST_PAUSE: usize = 512;
/// The most steps of a batch at first, so that there soon are two of one size [`APART`] from each other.
const FIRST: usize = 4;
/// Batches from one to the next of its size, at least, whose times count together: what lies between may have any size, for
/// their steps are the same in number whether each time is its own batch's or that of the one behind.
const APART: usize = 3;
/// Batches that are remembered: of three sizes, all that come at first, two of one are [`APART`] among so many.
const KNOWN: usize = 3 * APART + 1;
/// Steps of a trial.
const TRIAL: usize = 4;
/// How much cheaper a token must become for drafts to go on after a trial.
const MARGIN: f64 = 1.1;

/// What the steps of a batch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Without drafts.
    Plain,
    /// With drafts, to see what they bring.
    Trial,
    /// With drafts, since they pay.
    Drafting,
}

/// What is submitted next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// So many plain steps until the next trial.
    Plain(usize),
    /// So many steps of a trial, then plain ones until its end is known.
    Trial(usize),
    /// Steps with drafts as long as they pay.
    Drafting,
}

/// A trial so far, with a plain batch before it and one behind.
#[derive(Debug, Default)]
struct Trial {
    steps: usize,
    tokens: usize,
    plain: usize,
    ms: f64,
}

/// A batch that is done.
#[derive(Debug, Clone, Copy)]
struct Done {
    kind: Kind,
    steps: usize,
    ms: f64,
}

/// Decides for batch after batch what its steps are.
#[derive(Debug)]
pub(super) struct Pace {
    mode: Mode,
    always: bool,
    /// The last batches, [`KNOWN`] at the most.
    done: VecDeque<Done>,
    trial: Trial,
    plain_ms: Option<f64>,
    drafting_ms: Option<f64>,
    gain: f64,
    pause: usize,
}

impl Pace {
    /// `always` drafts whatever it costs.
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

    /// Tokens that a step brings now.
    pub fn gain(&self) -> f64 {
        if self.mode == Mode::Drafting { self.gain.max(1.0) } else { 1.0 }
    }

    /// How many steps come next, of at most `most`, and what they are.
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

    /// Learns what some steps brought and took.
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

    /// From the last batch back to one of its size, with none of another kind between.
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

    /// What follows a trial.
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

    /// A generation of `count` tokens where a plain step costs 1 and one with drafts `cost`, and brings what `gain` says
    /// of the place; two batches are in flight, `late` of them are done before the first is reported. Returns what it
    /// costs and how many steps had drafts.
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
        // Sizes as a busy machine makes them; the last is the longest way to two of one size that are apart.
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
