//! Whether steps with guessed rows pay: what they bring and cost beside plain steps, as this generation measures both.
//! It knows counts and milliseconds, not what runs.

/// Plain steps at first, and at least, between trials; they say what a token costs without guesses.
const SHORTEST_PAUSE: usize = 8;
/// The most plain steps until guesses are tried again.
const LONGEST_PAUSE: usize = 512;
/// Steps of a trial.
const TRIAL: usize = 4;
/// How much cheaper a token must become for guesses to go on after a trial.
const MARGIN: f64 = 1.1;

/// What the next steps are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// So many plain steps until the next trial.
    Plain(usize),
    /// Some steps with guesses: those still to be submitted, and what came of those that are done.
    Trial { left: usize, done: usize, tokens: usize },
    /// Steps with guesses as long as they pay.
    Guessing,
}

/// Decides for batch after batch what its steps are.
#[derive(Debug)]
pub(super) struct Pace {
    mode: Mode,
    always: bool,
    plain_ms: Option<f64>,
    guessing_ms: Option<f64>,
    gain: f64,
    pause: usize,
}

impl Pace {
    /// `always` guesses whatever it costs.
    pub fn new(always: bool) -> Self {
        let mode = if always { Mode::Guessing } else { Mode::Plain(SHORTEST_PAUSE) };
        Self { mode, always, plain_ms: None, guessing_ms: None, gain: 1.0, pause: SHORTEST_PAUSE }
    }

    /// Tokens that a step brings now.
    pub fn gain(&self) -> f64 {
        if self.mode == Mode::Guessing { self.gain.max(1.0) } else { 1.0 }
    }

    /// How many steps come next, of at most `most`, and whether they are with guesses.
    pub fn next(&mut self, most: usize) -> (usize, bool) {
        match &mut self.mode {
            Mode::Guessing => (most, true),
            Mode::Trial { left: 0, .. } => (most, false),
            Mode::Trial { left, .. } => {
                let count = most.min(*left);
                *left -= count;
                (count, true)
            }
            Mode::Plain(left) => {
                let count = most.min(*left);
                *left -= count;
                if *left == 0 {
                    self.mode = Mode::Trial { left: TRIAL, done: 0, tokens: 0 };
                }
                (count, false)
            }
        }
    }

    /// Learns what some steps brought and took.
    pub fn took(&mut self, steps: usize, guessing: bool, brought: usize, ms: f64) {
        let known = if guessing { &mut self.guessing_ms } else { &mut self.plain_ms };
        let now = ms / steps as f64;
        *known = Some(known.map_or(now, |before| 0.5 * (before + now)));
        if !guessing {
            return;
        }
        let gain = brought as f64 / steps as f64;
        match &mut self.mode {
            Mode::Trial { done, tokens, .. } => {
                (*done, *tokens) = (*done + steps, *tokens + brought);
                if *done >= TRIAL {
                    self.gain = *tokens as f64 / *done as f64;
                    self.conclude();
                }
            }
            Mode::Guessing => {
                self.gain = 0.5 * (self.gain + gain);
                if !self.always && !self.pays(1.0) {
                    self.mode = Mode::Plain(self.pause);
                }
            }
            Mode::Plain(_) => {}
        }
    }

    fn pays(&self, margin: f64) -> bool {
        match (self.plain_ms, self.guessing_ms) {
            (Some(plain), Some(guessing)) => self.gain * plain >= guessing * margin,
            _ => false,
        }
    }

    /// What follows a trial.
    fn conclude(&mut self) {
        if self.pays(MARGIN) {
            (self.mode, self.pause) = (Mode::Guessing, SHORTEST_PAUSE);
        } else {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.mode = Mode::Plain(self.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A generation of `count` tokens where a plain step costs 1 and one with guesses `cost`, and brings what `gain` says
    /// of the place; two batches are in flight. Returns what it costs and how many steps had guesses.
    fn run(count: usize, cost: f64, gain: impl Fn(usize) -> usize) -> (f64, usize) {
        let (mut pace, mut flight) = (Pace::new(false), VecDeque::new());
        let (mut at, mut total, mut guesses) = (0, 0.0, 0);
        while at < count {
            while flight.len() < 2 {
                flight.push_back(pace.next(8));
            }
            let (steps, guessing) = flight.pop_front().expect("a batch");
            let before = at;
            (0..steps).for_each(|_| at += if guessing { gain(at) } else { 1 });
            let ms = steps as f64 * if guessing { cost } else { 1.0 };
            total += ms;
            guesses += if guessing { steps } else { 0 };
            pace.took(steps, guessing, at - before, ms);
        }
        (total, guesses)
    }

    #[test]
    fn guesses_that_never_hold_cost_little() {
        let (total, guesses) = run(1000, 2.0, |_| 1);
        assert!(total < 1060.0, "{total}");
        assert!(guesses > 0, "it is tried");
    }

    #[test]
    fn guesses_that_hold_go_on() {
        let (total, _) = run(1000, 2.0, |_| 8);
        assert!(total < 330.0, "{total}");
    }

    #[test]
    fn what_costs_more_than_it_brings_is_left() {
        let (total, _) = run(2000, 6.0, |_| 4);
        assert!(total < 2200.0, "{total}");
    }

    #[test]
    fn a_text_that_begins_to_repeat_itself_is_noticed_and_its_end_too() {
        let (total, guesses) = run(3000, 1.5, |at| if (1000..2000).contains(&at) { 8 } else { 1 });
        assert!(total < 2000.0 + 1000.0 * 0.6, "{total}");
        assert!(guesses < 300, "{guesses}");
    }

    #[test]
    fn always_means_always() {
        let mut pace = Pace::new(true);
        for _ in 0..9 {
            assert_eq!(pace.next(3), (3, true));
            pace.took(3, true, 3, 100.0);
        }
    }
}
