//! Learning rates by step, with the names and formulas of transformers.

use crate::random::shuffled;
use jerboa::{Error, Result};
use std::f32::consts::PI;
use std::ops::Range;

/// How the learning rate goes on after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decay {
    /// It stays.
    #[default]
    Constant,
    /// It falls to 0 in a line.
    Linear,
    /// It falls to 0 in half a cosine.
    Cosine,
}

impl Decay {
    /// Parses the value of the option `schedule`.
    ///
    /// # Errors
    /// `Request` for other names.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "constant" => Ok(Self::Constant),
            "linear" => Ok(Self::Linear),
            "cosine" => Ok(Self::Cosine),
            other => Err(Error::Request {
                parameter: "schedule".into(),
                reason: format!("'{other}' is not supported. Use constant, linear or cosine."),
            }),
        }
    }
}

/// Learning rates of a training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest learning rate.
    pub peak: f32,
    /// Steps in which the rate rises from 0 to the peak.
    pub warm_up: usize,
    /// Steps of the run.
    pub steps: usize,
    /// What follows the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The same rate in all steps.
    pub fn constant(peak: f32) -> Self {
        Self {
            peak,
            warm_up: 0,
            steps: usize::MAX,
            decay: Decay::Constant,
        }
    }

    /// Returns the rate of a step, counted from 0. All steps of the run have rates above 0.
    pub fn rate(&self, step: usize) -> f32 {
        if step + 1 < self.warm_up {
            return self.peak * (step + 1) as f32 / self.warm_up as f32;
        }
        // The warm-up's last step has the peak already; a step after the run would have 0.
        let first = self.warm_up.saturating_sub(1);
        let share = (step - first) as f32 / self.steps.saturating_sub(first).max(1) as f32;
        let factor = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - share,
            Decay::Cosine => 0.5 * (1.0 + (PI * share).cos()),
        };
        self.peak * factor.max(0.0)
    }
}

/// A step of a run over items.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochStep {
    /// The step, from 1.
    pub step: usize,
    /// Steps of the run.
    pub steps: usize,
    /// Epoch, from 0.
    pub epoch: usize,
    /// Learning rate of the step.
    pub learning_rate: f32,
    /// Indices of the items to train on.
    pub items: Vec<usize>,
}

/// Ranges of `size` items; the last one has what is left.
pub(crate) fn full_parts(count: usize, size: usize) -> Vec<Range<usize>> {
    let size = size.max(1);
    let starts = (0..count).step_by(size);
    starts.map(|start| start..count.min(start + size)).collect()
}

/// As many ranges as [`full_parts`] of `most` items has, with lengths that differ by one at most.
pub(crate) fn even_parts(count: usize, most: usize) -> Vec<Range<usize>> {
    let parts = count.div_ceil(most.max(1));
    let start = |index: usize| index * count / parts.max(1);
    (0..parts)
        .map(|index| start(index)..start(index + 1))
        .collect()
}

/// The steps of all epochs over some items, which each epoch shuffles.
#[derive(Debug, Clone)]
pub struct EpochSteps {
    /// The items of each step of an epoch, as ranges of its order.
    parts: Vec<Range<usize>>,
    /// Seed of the order.
    seed: u64,
    /// Learning rates, and the number of steps.
    pub schedule: Schedule,
    /// Steps begun.
    step: usize,
    /// Order of the items in this epoch.
    order: Vec<usize>,
}

impl EpochSteps {
    /// The steps over the items of consecutive `parts`, a part in each step of an epoch.
    pub fn new(parts: Vec<Range<usize>>, seed: u64, schedule: Schedule) -> Self {
        Self {
            parts,
            seed,
            schedule,
            step: 0,
            order: Vec::new(),
        }
    }
}

impl Iterator for EpochSteps {
    type Item = EpochStep;

    fn next(&mut self) -> Option<EpochStep> {
        if self.step == self.schedule.steps {
            return None;
        }
        let epoch = self.step / self.parts.len();
        let part = self.step % self.parts.len();
        if part == 0 {
            let count = self.parts.last().map_or(0, |last| last.end);
            self.order = shuffled(count, self.seed, epoch);
        }
        let items = &self.order[self.parts[part].clone()];
        let learning_rate = self.schedule.rate(self.step);
        self.step += 1;
        Some(EpochStep {
            step: self.step,
            steps: self.schedule.steps,
            epoch,
            learning_rate,
            items: items.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_rise_and_fall() {
        let schedule = |decay| Schedule {
            peak: 2.0,
            warm_up: 4,
            steps: 11,
            decay,
        };
        let constant = schedule(Decay::Constant);
        assert_eq!(
            [0, 1, 3, 11].map(|step| constant.rate(step)),
            [0.5, 1.0, 2.0, 2.0]
        );
        let linear = schedule(Decay::Linear);
        assert_eq!(
            [3, 7, 10, 11].map(|step| linear.rate(step)),
            [2.0, 1.0, 0.25, 0.0]
        );
        let cosine = schedule(Decay::Cosine);
        assert!((cosine.rate(7) - 1.0).abs() < 1e-6);
        assert!(cosine.rate(4) > linear.rate(4));
        assert_eq!(Schedule::constant(0.1).rate(1_000_000), 0.1);
        assert!(Decay::from_name("exponential").is_err());
    }
}
