//! Decoding as a replay: steps are submitted ahead, the GPU feeds each token to the next step and stops by
//! itself; tokens are read back in batches while later steps run.

use super::model::Model;
use super::sampling::{MAX_STOPS, RING, Tail};
use crate::gpu::{Backend, Readback, Work};
use crate::hub::clock::now_ms;
use crate::plan::Slot;
use crate::{Error, Result};
use std::collections::VecDeque;

/// The most steps of one submit; two submits are in flight.
pub(super) const MAX_BATCH: usize = 16;
/// A batch grows while batches come back faster than this, and shrinks when they take twice as long: text flows
/// smoothly on a slow device, and a fast one is not kept waiting for readbacks. Milliseconds.
const SMOOTH_MS: f64 = 25.0;

/// How a generation starts, after its prefill.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The position after the prompt.
    pub end: usize,
    /// Tokens that end the generation.
    pub stops: &'a [u32],
    /// The most tokens to come.
    pub budget: usize,
    /// Tokens that were sampled before, which the random numbers count.
    pub step: usize,
    /// How tokens are picked.
    pub tail: Tail,
}

impl Start<'_> {
    /// The likeliest tokens, `budget` of them.
    pub fn greedy(end: usize, budget: usize) -> Self {
        Self { end, stops: &[], budget, step: 0, tail: Tail::Greedy }
    }
}

/// A generation under way, after a prefill.
pub struct Decode {
    in_flight: VecDeque<Readback>,
    batch: usize,
    last_ms: f64,
    submitted: usize,
    taken: usize,
    budget: usize,
    tail: Tail,
    done: bool,
}

impl Model {
    /// Submits decode steps as one command buffer.
    pub(super) fn submit_steps(&self, count: usize, tail: Tail) -> Result<()> {
        let tail = self.tail(tail)?;
        let step = || [self.decode.one_row(), tail.one_row()];
        let work: Vec<Work<'_>> = std::iter::repeat_with(step).take(count).flatten().collect();
        self.gpu.submit(&work)
    }
}

impl Decode {
    /// Samples the first token from the prefill's logits.
    ///
    /// # Errors
    /// `Request` for more stop tokens than the GPU compares with.
    pub fn start(model: &Model, start: Start<'_>) -> Result<Self> {
        let Start { end, stops, budget, step, tail } = start;
        if stops.len() > MAX_STOPS {
            let reason = format!("at most {MAX_STOPS} stop tokens are possible");
            return Err(Error::Request { parameter: "stop".into(), reason });
        }
        let budget = budget.min(model.capacity + 1 - end);
        let mut words = [u32::MAX; MAX_STOPS];
        words[..stops.len()].copy_from_slice(stops);
        model.gpu.write(model.buffer(Slot::Stops)?, 0, bytemuck::cast_slice(&words));
        // The prefill's rows end at `end`: one row there makes the state right for the first sample.
        model.set_sampling_state(end - 1, 1, step, budget)?;
        let mut decode = Self {
            in_flight: VecDeque::new(),
            batch: 1,
            last_ms: now_ms(),
            submitted: step,
            taken: step,
            budget: step + budget,
            tail,
            done: budget == 0,
        };
        if !decode.done {
            model.gpu.submit(&[model.tail(tail)?.one_row()])?;
            decode.submitted += 1;
            decode.read(model)?;
        }
        Ok(decode)
    }

    fn read(&mut self, model: &Model) -> Result<()> {
        let size = u64::from(RING + 2) * 4;
        self.in_flight.push_back(model.gpu.read_later(model.buffer(Slot::Tokens)?, 0, size)?);
        Ok(())
    }

    /// Submits the next batch of steps.
    fn ahead(&mut self, model: &Model) -> Result<()> {
        let count = self.batch.min(self.budget - self.submitted);
        if count == 0 {
            return Ok(());
        }
        model.submit_steps(count, self.tail)?;
        self.submitted += count;
        self.read(model)
    }

    fn adapt(&mut self) {
        let now = now_ms();
        let took = std::mem::replace(&mut self.last_ms, now);
        let took = now - took;
        if took < SMOOTH_MS {
            self.batch = (self.batch * 2).min(MAX_BATCH);
        } else if took > 2.0 * SMOOTH_MS {
            self.batch = (self.batch / 2).max(1);
        }
    }

    /// The next tokens in order, at least one; empty when the generation is over.
    ///
    /// # Errors
    /// `NotFinite` when the logits were no numbers.
    pub async fn next(&mut self, model: &Model) -> Result<Vec<u32>> {
        while !self.done {
            while self.in_flight.len() < 2 && self.submitted < self.budget {
                self.ahead(model)?;
            }
            let Some(read) = self.in_flight.pop_front() else { break };
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read.wait().await?);
            self.adapt();
            let count = words[RING as usize] as usize;
            let stopped = words[RING as usize + 1] != 0;
            let tokens: Vec<u32> = (self.taken..count).map(|i| words[i % RING as usize]).collect();
            self.taken = count;
            self.done = stopped || count >= self.budget;
            if tokens.iter().any(|t| *t >= u32::MAX - 1) {
                return Err(model.sampling_fault(self.tail, count).await);
            }
            if !tokens.is_empty() {
                return Ok(tokens);
            }
        }
        Ok(Vec::new())
    }

    /// Forgets what is still under way, so that another generation can start.
    pub async fn finish(mut self) -> Result<()> {
        while let Some(read) = self.in_flight.pop_front() {
            read.wait().await?;
        }
        Ok(())
    }
}
