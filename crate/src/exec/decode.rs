//! Decode loop: steps are submitted ahead, and the GPU feeds each token to the next step and stops by itself. Tokens
//! are read back in batches while later steps run. A step with drafts yields one or more tokens.

use super::pace::{Kind, Pace};
use super::session::Session;
use super::speculate::Lookup;
use super::tail::{MAX_BATCH, MAX_STOPS, RING, RING_BYTES, Tail};
use crate::gpu::{Backend, Readback, Work};
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::Slot;
use crate::util::clock::now_ms;
use crate::{Error, Result};
use std::collections::VecDeque;

/// Batches grow while they complete faster than this, and shrink when they take twice as long. Text then streams
/// smoothly on slow devices, and fast ones do not wait for readbacks. Milliseconds.
const SMOOTH_MS: f64 = 25.0;

/// Parameters of a generation, which starts after a prefill.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The position after the prompt.
    pub end: usize,
    /// Tokens that end the generation.
    pub stops: &'a [u32],
    /// Maximum number of new tokens.
    pub budget: usize,
    /// Number of tokens sampled before; it offsets the random number stream.
    pub step: usize,
    /// The sampling mode.
    pub tail: Tail,
    /// Enables prompt lookup drafts (greedy sampling only); call [`Session::prepare_speculation`] first.
    pub lookup: Option<Lookup<'a>>,
}

impl Start<'_> {
    /// Greedy decoding of up to `budget` tokens.
    pub fn greedy(end: usize, budget: usize) -> Self {
        Self { end, stops: &[], budget, step: 0, tail: Tail::Greedy, lookup: None }
    }
}

/// A submitted batch of steps.
#[derive(Clone, Copy)]
struct Batch {
    steps: usize,
    kind: Kind,
    /// Whether its duration is representative for a batch of that size.
    whole: bool,
}

/// A running generation.
pub struct Decode {
    in_flight: VecDeque<(Readback, Batch)>,
    batch: usize,
    last_ms: f64,
    first: usize,
    /// The position after the prompt.
    end: usize,
    /// All tokens sampled so far, including those not yet returned.
    picked: Vec<u32>,
    taken: usize,
    budget: usize,
    /// `written_until` of the session before the generation.
    reached: usize,
    tail: Tail,
    pace: Option<Pace>,
    drafted: usize,
    accepted: usize,
    done: bool,
}

impl Session {
    /// Submits decode steps as one command buffer; the sequence ends at `end` at the latest.
    pub(super) fn submit_steps(&self, count: usize, tail: Tail, end: usize) -> Result<()> {
        let tail = self.tail(tail)?;
        self.submit_often(count, &[self.decode_step(end).recorded(), tail.recorded()])
    }

    /// Submits steps of a speculative generation; `drafting` selects steps with drafts.
    pub(super) fn submit_looked_up(&self, count: usize, drafting: bool, end: usize) -> Result<()> {
        let steps = self.speculation()?;
        match drafting {
            true => self.submit_often(count, &[steps.verify.within(&self.gpu, end).recorded()]),
            false => self.submit_often(count, &[self.decode_step(end).recorded(), steps.tail.recorded()]),
        }
    }

    fn submit_often(&self, count: usize, step: &[Work<'_>]) -> Result<()> {
        self.gpu.submit(&step.repeat(count))
    }
}

impl Decode {
    /// Starts a generation: samples the first token from the prefill's logits.
    ///
    /// # Errors
    /// `Request` for more stop tokens than the GPU supports.
    pub fn start(session: &mut Session, start: Start<'_>) -> Result<Self> {
        let Start { end, stops, budget, step, tail, lookup } = start;
        if session.tokens.len() != end {
            return Err(Error::Internal(format!(
                "decode: the sequence has {} tokens, expected {end}",
                session.tokens.len()
            )));
        }
        if stops.len() > MAX_STOPS {
            let reason = format!("{} stop tokens exceed the limit of {MAX_STOPS}. Remove some.", stops.len());
            return Err(Error::Request { parameter: "stop".into(), reason });
        }
        let budget = budget.min(session.capacity + 1 - end);
        let reached = session.reached;
        let session = &*session;
        let mut words = [u32::MAX; MAX_STOPS];
        words[..stops.len()].copy_from_slice(stops);
        session.gpu.write(session.buffer(Slot::Stops)?, 0, bytemuck::cast_slice(&words));
        // The prefill's rows end at `end`: a state of one row there is correct for the first sample.
        session.set_sampling_state(end - 1, 1, step, budget)?;
        let mut decode = Self {
            in_flight: VecDeque::new(),
            // Recording more would delay the first token.
            batch: session.batch.get().min(4),
            last_ms: now_ms(),
            first: step,
            end,
            picked: Vec::new(),
            taken: step,
            budget: step + budget,
            reached,
            tail,
            pace: None,
            drafted: 0,
            accepted: 0,
            done: budget == 0,
        };
        let mut first = session.tail(tail)?;
        if let Some(lookup) = lookup.filter(|_| tail == Tail::Greedy && !session.is_paged()) {
            if lookup.context.len() != end {
                return Err(Error::Internal(format!(
                    "prompt lookup: the context has {} tokens, expected {end}",
                    lookup.context.len()
                )));
            }
            first = &session.speculation()?.tail;
            // Soft tokens are replaced by the last id of the vocabulary, so that lookup never drafts an image token.
            let known = |id: &u32| (*id).min(session.vocab() as u32 - 1);
            let history: Vec<u32> = lookup.context.iter().map(known).collect();
            session.gpu.write(session.buffer(Slot::History)?, 0, bytemuck::cast_slice(&history));
            session.gpu.write(session.buffer(Slot::Tokens)?, u64::from(RING + 2) * 4, &[0; 8]);
            decode.pace = Some(Pace::new(lookup.always));
            decode.batch = 1;
        }
        if !decode.done {
            session.gpu.submit(&[first.recorded()])?;
            // The first step's time includes the prompt: it counts only if no batch size is known yet.
            let whole = decode.batch == 1;
            decode.read(session, Batch { steps: 1, kind: Kind::Plain, whole })?;
        }
        Ok(decode)
    }

    /// Returns (drafted tokens, accepted tokens).
    pub fn drafts(&self) -> (usize, usize) {
        (self.drafted, self.accepted)
    }

    fn read(&mut self, session: &Session, batch: Batch) -> Result<()> {
        let read = session.gpu.read_later(session.buffer(Slot::Tokens)?, 0, RING_BYTES)?;
        self.in_flight.push_back((read, batch));
        Ok(())
    }

    /// Returns how many steps to submit next; steps in flight may already yield all remaining tokens.
    fn wanted(&self) -> usize {
        let gain = self.pace.as_ref().map_or(1.0, Pace::gain);
        let each = |(_, batch): &(_, Batch)| batch.steps as f64 * if batch.kind == Kind::Plain { 1.0 } else { gain };
        let left = (self.budget - self.taken) as f64 - self.in_flight.iter().map(each).sum::<f64>();
        self.batch.min((left / gain).ceil().max(0.0) as usize)
    }

    /// Submits the next batch of steps; returns whether there was one.
    async fn ahead(&mut self, session: &mut Session) -> Result<bool> {
        // With paged weights, a step cannot be submitted before the previous one's routing is known.
        let most = if session.is_paged() { self.wanted().min(1) } else { self.wanted() };
        if most == 0 || (session.is_paged() && !self.in_flight.is_empty()) {
            return Ok(false);
        }
        let (steps, kind) = match &mut self.pace {
            Some(pace) => pace.next(most),
            None => (most, Kind::Plain),
        };
        // The actual number of positions is known only at the end.
        let run = |(steps, kind): (usize, Kind)| if kind == Kind::Plain { steps } else { steps * DRAFT_ROWS as usize };
        let under_way: usize = self.in_flight.iter().map(|(_, batch)| run((batch.steps, batch.kind))).sum();
        let far = (self.end + self.taken - self.first + under_way + run((steps, kind))).min(session.capacity);
        if let Err(error) = session.room(far).await {
            // Return the results in flight first.
            return if self.in_flight.is_empty() { Err(error) } else { Ok(false) };
        }
        session.reached = session.reached.max(far);
        match self.pace {
            None if session.is_paged() => {
                session.submit_step(session.decode_step(far), 1, None).await?;
                session.gpu.submit(&[session.tail(self.tail)?.recorded()])?;
            }
            Some(_) => session.submit_looked_up(steps, kind != Kind::Plain, far)?,
            None => session.submit_steps(steps, self.tail, far)?,
        }
        self.read(session, Batch { steps, kind, whole: steps == most })?;
        Ok(true)
    }

    fn adapt(&mut self, took: f64) {
        if took < SMOOTH_MS {
            self.batch = (self.batch * 2).min(MAX_BATCH);
        } else if took > 2.0 * SMOOTH_MS {
            self.batch = (self.batch / 2).max(1);
        }
    }

    /// Processes the readback of a completed batch.
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
            (self.drafted, self.accepted) = (words[RING as usize + 2] as usize, words[RING as usize + 3] as usize);
            if self.taken > self.first {
                pace.took(batch.kind, batch.steps, tokens.len(), took);
            }
        }
        self.taken = count;
        self.picked.extend_from_slice(&tokens);
        tokens
    }

    /// Returns the next tokens in order, at least one; empty when the generation is complete.
    ///
    /// # Errors
    /// `NotFinite` when the logits contain NaN or infinity; `OutOfMemory` when the KV cache cannot grow.
    pub async fn next(&mut self, session: &mut Session) -> Result<Vec<u32>> {
        while !self.done {
            while self.in_flight.len() < 2 && self.ahead(session).await? {}
            let Some((read, batch)) = self.in_flight.pop_front() else { break };
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read.wait().await?);
            let tokens = self.take(batch, &words);
            session.batch.set(self.batch);
            if tokens.iter().any(|t| *t >= u32::MAX - 1) {
                return Err(session.sampling_fault(self.tail, self.taken).await);
            }
            if !tokens.is_empty() {
                return Ok(tokens);
            }
        }
        Ok(Vec::new())
    }

    /// Waits for steps in flight and updates the session's token list. Tokens sampled past the end are included; the
    /// session can be trimmed.
    ///
    /// # Errors
    /// Device errors.
    pub async fn finish(mut self, session: &mut Session) -> Result<()> {
        while let Some((read, batch)) = self.in_flight.pop_front() {
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read.wait().await?);
            self.take(batch, &words);
        }
        // The last token was sampled but not run.
        let run = &self.picked[..self.picked.len().saturating_sub(1)];
        if run.iter().any(|token| *token as usize >= session.vocab()) {
            session.clear();
            return Ok(());
        }
        let before = session.tokens.len();
        session.tokens.extend_from_slice(run);
        // Rejected drafts were written to the KV cache too.
        let beyond = if self.pace.is_some() { DRAFT_ROWS as usize } else { 0 };
        let written = session.held.min(before + run.len() + beyond);
        session.reached = self.reached.max(written);
        Ok(())
    }
}
