//! Decoding as a replay: steps are submitted ahead, the GPU feeds each token to the next step and stops by
//! itself; tokens are read back in batches while later steps run. Steps with guesses bring one token or several.

use super::model::Model;
use super::pace::{Kind, Pace};
use super::sampling::{MAX_STOPS, RING, RING_BYTES, Tail};
use super::speculate::Lookup;
use crate::gpu::{Backend, Readback, Work};
use crate::plan::Slot;
use crate::util::clock::now_ms;
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
    /// Guess tokens by looking them up, greedily picked ones only; [`Model::prepare_speculation`] comes before.
    pub lookup: Option<Lookup<'a>>,
}

impl Start<'_> {
    /// The likeliest tokens, `budget` of them.
    pub fn greedy(end: usize, budget: usize) -> Self {
        Self { end, stops: &[], budget, step: 0, tail: Tail::Greedy, lookup: None }
    }
}

/// A batch that was submitted.
#[derive(Clone, Copy)]
struct Batch {
    steps: usize,
    kind: Kind,
    /// Whether it says how long a batch of that many steps takes.
    whole: bool,
}

/// A generation under way, after a prefill.
pub struct Decode {
    in_flight: VecDeque<(Readback, Batch)>,
    batch: usize,
    last_ms: f64,
    first: usize,
    taken: usize,
    budget: usize,
    tail: Tail,
    pace: Option<Pace>,
    guessed: usize,
    held: usize,
    done: bool,
}

impl Model {
    /// Submits decode steps as one command buffer.
    pub(super) fn submit_steps(&self, count: usize, tail: Tail) -> Result<()> {
        let tail = self.tail(tail)?;
        self.submit_often(count, &[self.decode.recorded(), tail.recorded()])
    }

    /// The same in a generation with lookups.
    pub(super) fn submit_looked_up(&self, count: usize, guessing: bool) -> Result<()> {
        let steps = self.speculation()?;
        match guessing {
            true => self.submit_often(count, &[steps.guessing.recorded()]),
            false => self.submit_often(count, &[self.decode.recorded(), steps.tail.recorded()]),
        }
    }

    fn submit_often(&self, count: usize, step: &[Work<'_>]) -> Result<()> {
        self.gpu.submit(&step.repeat(count))
    }
}

impl Decode {
    /// Samples the first token from the prefill's logits.
    ///
    /// # Errors
    /// `Request` for more stop tokens than the GPU compares with.
    pub fn start(model: &Model, start: Start<'_>) -> Result<Self> {
        let Start { end, stops, budget, step, tail, lookup } = start;
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
            first: step,
            taken: step,
            budget: step + budget,
            tail,
            pace: None,
            guessed: 0,
            held: 0,
            done: budget == 0,
        };
        let mut first = model.tail(tail)?;
        if let Some(lookup) = lookup.filter(|_| tail == Tail::Greedy) {
            if lookup.context.len() != end {
                return Err(Error::Internal(format!("{} tokens before position {end}", lookup.context.len())));
            }
            first = &model.speculation()?.tail;
            model.gpu.write(model.buffer(Slot::History)?, 0, bytemuck::cast_slice(lookup.context));
            model.gpu.write(model.buffer(Slot::Tokens)?, u64::from(RING + 2) * 4, &[0; 8]);
            decode.pace = Some(Pace::new(lookup.always));
        }
        if !decode.done {
            model.gpu.submit(&[first.recorded()])?;
            decode.read(model, Batch { steps: 1, kind: Kind::Plain, whole: true })?;
        }
        Ok(decode)
    }

    /// Tokens that were guessed so far, and how many of them held.
    pub fn guesses(&self) -> (usize, usize) {
        (self.guessed, self.held)
    }

    fn read(&mut self, model: &Model, batch: Batch) -> Result<()> {
        let read = model.gpu.read_later(model.buffer(Slot::Tokens)?, 0, RING_BYTES)?;
        self.in_flight.push_back((read, batch));
        Ok(())
    }

    /// How many steps may come next: those that are in flight may well bring all the tokens.
    fn wanted(&self) -> usize {
        let gain = self.pace.as_ref().map_or(1.0, Pace::gain);
        let each = |(_, batch): &(_, Batch)| batch.steps as f64 * if batch.kind == Kind::Plain { 1.0 } else { gain };
        let left = (self.budget - self.taken) as f64 - self.in_flight.iter().map(each).sum::<f64>();
        self.batch.min((left / gain).ceil().max(0.0) as usize)
    }

    /// Submits the next batch of steps; says whether there was one.
    fn ahead(&mut self, model: &Model) -> Result<bool> {
        let most = self.wanted();
        if most == 0 {
            return Ok(false);
        }
        let (steps, kind) = match &mut self.pace {
            Some(pace) => pace.next(most),
            None => (most, Kind::Plain),
        };
        match self.pace {
            Some(_) => model.submit_looked_up(steps, kind != Kind::Plain)?,
            None => model.submit_steps(steps, self.tail)?,
        }
        self.read(model, Batch { steps, kind, whole: steps == most })?;
        Ok(true)
    }

    fn adapt(&mut self, took: f64) {
        if took < SMOOTH_MS {
            self.batch = (self.batch * 2).min(MAX_BATCH);
        } else if took > 2.0 * SMOOTH_MS {
            self.batch = (self.batch / 2).max(1);
        }
    }

    /// What a batch brought, once it is there.
    fn take(&mut self, batch: Batch, words: &[u32]) -> Vec<u32> {
        let now = now_ms();
        let took = now - std::mem::replace(&mut self.last_ms, now);
        if batch.whole {
            self.adapt(took);
        }
        let count = words[RING as usize] as usize;
        let tokens: Vec<u32> = (self.taken..count).map(|i| words[i % RING as usize]).collect();
        self.done = words[RING as usize + 1] != 0 || count >= self.budget;
        if let Some(pace) = &mut self.pace {
            (self.guessed, self.held) = (words[RING as usize + 2] as usize, words[RING as usize + 3] as usize);
            // The first token's time is the prompt's.
            if self.taken > self.first {
                pace.took(batch.kind, batch.steps, tokens.len(), took);
            }
        }
        self.taken = count;
        tokens
    }

    /// The next tokens in order, at least one; empty when the generation is over.
    ///
    /// # Errors
    /// `NotFinite` when the logits were no numbers.
    pub async fn next(&mut self, model: &Model) -> Result<Vec<u32>> {
        while !self.done {
            while self.in_flight.len() < 2 && self.ahead(model)? {}
            let Some((read, batch)) = self.in_flight.pop_front() else { break };
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read.wait().await?);
            let tokens = self.take(batch, &words);
            if tokens.iter().any(|t| *t >= u32::MAX - 1) {
                return Err(model.sampling_fault(self.tail, self.taken).await);
            }
            if !tokens.is_empty() {
                return Ok(tokens);
            }
        }
        Ok(Vec::new())
    }

    /// Forgets what is still under way, so that another generation can start.
    pub async fn finish(mut self) -> Result<()> {
        while let Some((read, _)) = self.in_flight.pop_front() {
            read.wait().await?;
        }
        Ok(())
    }
}
