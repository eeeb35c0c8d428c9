//! Decode loop: steps are submitted ahead, and the GPU feeds each token to the next step and stops
//! by itself. Tokens are read back in batches while later steps run. A step with drafts yields one
//! or more tokens. Steps that need the host for paged weights run one by one; those with a token
//! mask run ahead under a guessed mask, see `constrained`.

mod constrained;

use super::logits_pipeline::{
    CANDIDATES_BYTES, LogitsPipeline, LogitsStage, MAX_BATCH_STEPS, MAX_STOP_TOKENS,
    TARGET_BATCH_MS, TOKEN_RING_BYTES, TOKEN_RING_LEN,
};
use super::run_ahead::RunAhead;
use super::session::{DraftSession, PromptLookup, Session};
use super::speculation_controller::{BatchKind, SpeculationController};
use crate::gpu::{Backend, Command, Gpu, Readback};
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::Slot;
use crate::sample::TokenConstraint;
use crate::util::clock::now_ms;
use crate::{Error, Result};
use std::collections::VecDeque;

/// Parameters of a generation, which starts after a prefill.
pub struct DecodeParams<'a> {
    /// The position after the prompt.
    pub end: usize,
    /// Tokens that end the generation.
    pub stops: &'a [u32],
    /// Maximum number of new tokens.
    pub budget: usize,
    /// Number of tokens sampled before; it offsets the random number stream.
    pub sampled_before: usize,
    /// The stages from logits to tokens.
    pub pipeline: LogitsPipeline,
    /// Decides which tokens may come next; for a pipeline with a host input.
    pub constraint: Option<&'a mut dyn TokenConstraint>,
    /// Lets steps run ahead of the constraint; without, they run one by one.
    pub ahead: Option<&'a mut RunAhead>,
    /// Enables prompt lookup drafts (greedy sampling only); call [`Session::prepare_speculation`]
    /// first.
    pub lookup: Option<PromptLookup<'a>>,
    /// Lets a draft model propose tokens, unless drafts are looked up; call
    /// [`DraftSession::prepare`] first.
    pub draft: Option<&'a mut DraftSession>,
}

impl DecodeParams<'_> {
    /// Greedy decoding of up to `budget` tokens.
    pub fn greedy(end: usize, budget: usize) -> Self {
        Self {
            end,
            stops: &[],
            budget,
            sampled_before: 0,
            pipeline: LogitsPipeline::greedy(),
            constraint: None,
            ahead: None,
            lookup: None,
            draft: None,
        }
    }
}

/// Returns the steps of the next submission after one of `steps` steps took some milliseconds.
pub(super) fn pace_batches(steps: usize, took: f64) -> usize {
    if took < TARGET_BATCH_MS {
        (steps * 2).min(MAX_BATCH_STEPS)
    } else if took > 2.0 * TARGET_BATCH_MS {
        (steps / 2).max(1)
    } else {
        steps
    }
}

/// Returns why steps that were read back have sampled no token: the GPU did not run them.
pub(super) async fn steps_not_run(gpu: &Gpu) -> Error {
    let lost = || Error::DeviceLost {
        reason: "it did not run the steps that it was given".into(),
    };
    gpu.check().await.err().unwrap_or_else(lost)
}

/// A submitted batch of steps.
#[derive(Clone, Copy)]
struct InFlightBatch {
    steps: usize,
    kind: BatchKind,
    /// Whether its duration is representative for a batch of that size.
    is_representative: bool,
    /// Tokens that a draft model proposes in each step.
    proposals: usize,
}

/// Positions that a batch may take; the actual number is known only at its end.
fn positions(steps: usize, kind: BatchKind) -> usize {
    match kind {
        BatchKind::Plain => steps,
        _ => steps * DRAFT_ROWS as usize,
    }
}

/// A running generation.
pub struct DecodeLoop<'a> {
    in_flight: VecDeque<(Readback, InFlightBatch)>,
    batch_size: usize,
    /// Whether the batch size follows the measured speed.
    is_paced: bool,
    last_ms: f64,
    first: usize,
    /// The position after the prompt.
    end: usize,
    /// All tokens sampled so far, including those not yet returned.
    sampled: Vec<u32>,
    returned: usize,
    budget: usize,
    /// `written_until` of the session before the generation.
    written_until: usize,
    pipeline: LogitsPipeline,
    stops: &'a [u32],
    constraint: Option<&'a mut dyn TokenConstraint>,
    /// Queues steps of a constrained loop before their masks are known.
    ahead: Option<&'a mut RunAhead>,
    /// The last mask that was known.
    mask: Vec<u32>,
    /// Index of the last token that was sampled under its own mask.
    masked_token: usize,
    /// Whether all tokens are allowed in the mask on the device.
    masks_nothing: bool,
    /// Whether no more steps are queued, since forced tokens come behind those in flight.
    is_holding: bool,
    /// Whether steps in flight are dropped: the last token runs again.
    is_cut: bool,
    /// Whether the last token was read back before any step was queued behind it.
    was_alone: bool,
    /// What the constraint took after the last batch, in milliseconds.
    constraint_ms: f64,
    /// Times that tokens were read back.
    readbacks: usize,
    /// Whether steps may be submitted before the host has seen the tokens of the last.
    runs_ahead: bool,
    /// Whether the forward pass needs the host.
    needs_host: bool,
    /// Whether the forward pass of the last token was submitted, in a loop that does not run ahead.
    forward_submitted: bool,
    speculation: Option<SpeculationController>,
    /// Whether steps verified drafts.
    has_verified: bool,
    /// The draft model; without one, drafts are looked up.
    draft: Option<&'a mut DraftSession>,
    /// Whether the draft model has run the tokens before the next step.
    is_draft_current: bool,
    drafted: usize,
    accepted: usize,
    /// Whether the device has stopped.
    stopped: bool,
    done: bool,
    /// Whether the loop ends with the tokens in flight.
    is_ending: bool,
}

impl<'a> DecodeLoop<'a> {
    /// Starts a generation: samples the first token from the prefill's logits.
    ///
    /// # Errors
    /// `Request` for more stop tokens than the GPU supports; errors of the constraint.
    pub fn start(session: &mut Session, start: DecodeParams<'a>) -> Result<Self> {
        let DecodeParams {
            end,
            stops,
            budget,
            sampled_before: step,
            pipeline,
            constraint,
            ahead,
            lookup,
            draft,
        } = start;
        if constraint.is_some() != pipeline.host_input().is_some() {
            let reason = "decode: a token mask needs a constraint, and a constraint a token mask";
            return Err(Error::Internal(reason.into()));
        }
        if session.tokens().len() != end {
            return Err(Error::Internal(format!(
                "decode: the sequence has {} tokens, expected {end}",
                session.tokens().len()
            )));
        }
        if stops.len() > MAX_STOP_TOKENS {
            let reason = format!(
                "{} stop tokens exceed the limit of {MAX_STOP_TOKENS}. Remove some.",
                stops.len()
            );
            return Err(Error::Request {
                parameter: "stop".into(),
                reason,
            });
        }
        let budget = budget.min(session.capacity() + 1 - end);
        let needs_host = session.needs_host()?;
        let reached = session.written_until();
        let is_offloaded = session.is_offloaded_at(end);
        let session = &*session;
        let mut words = [u32::MAX; MAX_STOP_TOKENS];
        words[..stops.len()].copy_from_slice(stops);
        session.gpu().write(
            session.buffer(Slot::Stops)?,
            0,
            bytemuck::cast_slice(&words),
        );
        // The prefill's rows end at `end`: a state of one row there is correct for the first
        // sample.
        session.set_sampling_state(end - 1, 1, step, budget)?;
        let model = session.model();
        let batch_steps = model.options.batch_steps;
        let mut decode = Self {
            in_flight: VecDeque::new(),
            // Recording more would delay the first token.
            batch_size: batch_steps.unwrap_or_else(|| model.batch_size.get().min(4)),
            is_paced: batch_steps.is_none(),
            last_ms: now_ms(),
            first: step,
            end,
            sampled: Vec::new(),
            returned: step,
            budget: step + budget,
            written_until: reached,
            runs_ahead: !needs_host && !is_offloaded && constraint.is_none(),
            needs_host,
            pipeline,
            stops,
            constraint,
            ahead: ahead.filter(|_| !needs_host && !is_offloaded),
            mask: Vec::new(),
            masked_token: 0,
            masks_nothing: false,
            is_holding: false,
            is_cut: false,
            was_alone: false,
            constraint_ms: 0.0,
            readbacks: 0,
            forward_submitted: false,
            speculation: None,
            has_verified: false,
            draft: None,
            is_draft_current: false,
            drafted: 0,
            accepted: 0,
            stopped: false,
            done: budget == 0,
            is_ending: false,
        };
        let drafts = decode.runs_ahead && decode.pipeline == LogitsPipeline::greedy();
        if let Some(lookup) = lookup.filter(|_| drafts) {
            if lookup.context.len() != end {
                return Err(Error::Internal(format!(
                    "prompt lookup: the context has {} tokens, expected {end}",
                    lookup.context.len()
                )));
            }
            // Soft tokens are replaced by the last id of the vocabulary, so that lookup never
            // drafts an image token.
            let history: Vec<u32> = lookup
                .history()
                .iter()
                .map(|id: &u32| (*id).min(session.vocab() as u32 - 1))
                .collect();
            session.gpu().write(
                session.buffer(Slot::History)?,
                0,
                bytemuck::cast_slice(&history),
            );
            decode.speculate(session, lookup.draft_always)?;
        } else if let Some(draft) = draft.filter(|_| decode.runs_ahead)
            && draft.supports(session.tokens())
        {
            let always = draft.draft_always;
            decode.draft = Some(draft);
            decode.speculate(session, always)?;
        }
        if !decode.done {
            // The first step's time includes the prompt: it counts only if no batch size is known
            // yet.
            let is_representative = decode.batch_size == 1;
            decode.sample(session, is_representative)?;
        }
        Ok(decode)
    }

    /// Enables steps with drafts, in each step if `always`.
    fn speculate(&mut self, session: &Session, always: bool) -> Result<()> {
        let tokens = session.buffer(Slot::Tokens)?;
        let counts = u64::from(TOKEN_RING_LEN + 2) * 4;
        session.gpu().write(tokens, counts, &[0; 8]);
        // Whether a draft model pays off depends more on the device than on the text.
        let pause = session.model().draft_pause.get();
        let pause = pause.filter(|_| self.draft.is_some());
        self.speculation = Some(SpeculationController::new(always).with_pause(pause));
        self.has_verified = true;
        self.batch_size = 1;
        Ok(())
    }

    /// Steps that were submitted and not yet read back.
    fn steps_in_flight(&self) -> usize {
        self.in_flight.iter().map(|(_, batch)| batch.steps).sum()
    }

    /// Positions that these steps may take.
    fn positions_in_flight(&self) -> usize {
        let batches = self.in_flight.iter();
        batches
            .map(|(_, batch)| positions(batch.steps, batch.kind))
            .sum()
    }

    /// Whether drafts are looked up, so that plain steps must append to the history.
    fn looks_up(&self) -> bool {
        self.speculation.is_some() && self.draft.is_none()
    }

    /// Writes the host input, then samples a token from the last logits and reads it back.
    fn sample(&mut self, session: &Session, is_representative: bool) -> Result<()> {
        self.write_own_mask(session)?;
        let sampling = match self.looks_up() {
            true => session.append_history_step()?,
            false => session.sampling_step(&self.pipeline)?,
        };
        session.gpu().submit(&[sampling.recorded()])?;
        self.forward_submitted = false;
        let batch = InFlightBatch {
            steps: 1,
            kind: BatchKind::Plain,
            is_representative,
            proposals: 0,
        };
        self.read(session, batch)
    }

    /// The length of the sequence with the last token, which was sampled or is about to be.
    fn next_end(&self) -> usize {
        self.end + self.returned - self.first + self.in_flight.len()
    }

    /// Submits the forward pass of the last token, which was sampled or is about to be.
    async fn submit_forward(&mut self, session: &mut Session) -> Result<()> {
        if self.forward_submitted {
            return Ok(());
        }
        let end = self.next_end();
        session.reserve(end).await?;
        session.mark_written(end);
        session
            .submit_step(session.decode_step(end)?, (end - 1, 1), None)
            .await?;
        self.forward_submitted = true;
        Ok(())
    }

    /// Keeps the device busy: submits all steps that may run before the next token is read back.
    async fn submit_ahead(&mut self, session: &mut Session) -> Result<()> {
        if session.awaits_kernels(self.next_end()) {
            // Just after a load: the first token is returned before.
            if !self.in_flight.is_empty() {
                return Ok(());
            }
            session.prepare_decode(self.next_end()).await?;
            // The time of the next batch does not include it.
            self.last_ms = now_ms();
        }
        while self.runs_ahead {
            if self.in_flight.len() >= 2 || !self.submit_next(session).await? {
                return Ok(());
            }
        }
        if self.in_flight.is_empty() {
            self.submit_forward(session).await?;
            self.sample(session, self.constraint.is_none() || self.ahead.is_some())?;
        }
        if self.submit_guesses(session).await? {
            return Ok(());
        }
        // The device takes the token from its own memory, and runs nothing if it is the last.
        let is_last = self.returned + self.in_flight.len() >= self.budget;
        if !self.needs_host && !is_last {
            // Without memory for it, the token in flight is still returned.
            let _ = self.submit_forward(session).await;
        }
        Ok(())
    }

    /// Times that tokens were read back so far.
    pub fn readbacks(&self) -> usize {
        self.readbacks
    }

    /// Whether sampled tokens were dropped: the token counts on the device include them.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns (drafted tokens, accepted tokens).
    pub fn draft_counts(&self) -> (usize, usize) {
        (self.drafted, self.accepted)
    }

    fn read(&mut self, session: &Session, batch: InFlightBatch) -> Result<()> {
        let gpu = session.gpu();
        let tokens = session.buffer(Slot::Tokens)?;
        let read = match self.ahead.is_some() && self.pipeline.has(LogitsStage::Candidates) {
            true => {
                // One readback has both.
                let candidates = session.buffer(Slot::Candidates)?;
                gpu.submit(&[Command::Copy {
                    from: (tokens, 0),
                    to: (candidates, 0),
                    size: TOKEN_RING_BYTES,
                }])?;
                gpu.start_read(candidates, 0, CANDIDATES_BYTES)?
            }
            false => gpu.start_read(tokens, 0, TOKEN_RING_BYTES)?,
        };
        self.in_flight.push_back((read, batch));
        Ok(())
    }

    /// Returns how many steps to submit next; steps in flight may already yield all remaining
    /// tokens.
    fn next_batch_size(&self) -> usize {
        let gain = self
            .speculation
            .as_ref()
            .map_or(1.0, SpeculationController::tokens_per_step);

        let left = (self.budget - self.returned) as f64
            - self
                .in_flight
                .iter()
                .map(|(_, batch): &(_, InFlightBatch)| {
                    batch.steps as f64
                        * if batch.kind == BatchKind::Plain {
                            1.0
                        } else {
                            gain
                        }
                })
                .sum::<f64>();
        self.batch_size.min((left / gain).ceil().max(0.0) as usize)
    }

    /// Submits the next batch of steps; returns whether there was one.
    async fn submit_next(&mut self, session: &mut Session) -> Result<bool> {
        let most = self.next_batch_size();
        if most == 0 {
            return Ok(false);
        }
        let proposals = self.proposals(session, most).await;
        if proposals.is_some() && !self.is_draft_current {
            // The draft model starts behind the last token, which the host does not know yet.
            if !self.in_flight.is_empty() {
                return Ok(false);
            }
            self.catch_up(session).await?;
        }
        let (steps, kind) = match &mut self.speculation {
            // A step with proposals takes longer: it runs the draft model several times.
            Some(pace) if proposals.is_some() => pace.next_batch(most.div_ceil(2)),
            // The draft model cannot go on.
            Some(pace) if self.draft.is_some() && pace.drafts_next() => (most, BatchKind::Plain),
            Some(pace) => pace.next_batch(most),
            None => (most, BatchKind::Plain),
        };
        let under_way = self.positions_in_flight() + positions(steps, kind);
        let far = (self.end + self.returned - self.first + under_way).min(session.capacity());
        if session.is_offloaded_at(far) {
            // From here on the host divides each step, once those in flight are done.
            if self.in_flight.is_empty() {
                self.remember_pause(session);
                (self.runs_ahead, self.speculation) = (false, None);
            }
            return Ok(self.in_flight.is_empty());
        }
        if let Err(error) = session.reserve(far).await {
            // Return the results in flight first.
            return if self.in_flight.is_empty() {
                Err(error)
            } else {
                Ok(false)
            };
        }
        session.model().finish_parts().await;
        session.mark_written(far);
        self.is_draft_current &= kind != BatchKind::Plain;
        match &self.draft {
            Some(draft) if kind != BatchKind::Plain => draft.submit(session, steps, far)?,
            None if self.speculation.is_some() => {
                session.submit_speculative(steps, kind != BatchKind::Plain, far)?;
            }
            _ => session.submit_steps(steps, &self.pipeline, far)?,
        }
        let batch = InFlightBatch {
            steps,
            kind,
            is_representative: steps == most && proposals.is_none(),
            proposals: proposals.unwrap_or(0),
        };
        self.read(session, batch)?;
        Ok(true)
    }

    /// Returns how many tokens the draft model proposes in each step of the next batch of up to
    /// `most` steps; `None` for a batch without it.
    async fn proposals(&mut self, session: &Session, most: usize) -> Option<usize> {
        let pace = self.speculation.as_ref()?;
        let under_way = self.positions_in_flight() + most * DRAFT_ROWS as usize;
        let draft = self.draft.as_mut().filter(|_| pace.drafts_next())?;
        let far = self.end + self.returned - self.first + under_way;
        // Without room for it, steps go on without the draft model.
        let has_room = draft.reserve(far.min(session.capacity())).await;
        has_room.unwrap_or(false).then(|| draft.length.get())
    }

    /// Runs the tokens that the draft model lacks.
    async fn catch_up(&mut self, session: &Session) -> Result<()> {
        if let Some(draft) = &mut self.draft {
            let all = [session.tokens(), &self.sampled].concat();
            draft.catch_up(session, &all, self.returned).await?;
            self.is_draft_current = true;
            // The time of the next batch does not include it.
            self.last_ms = now_ms();
        }
        Ok(())
    }

    /// Processes the readback of a completed batch.
    fn process_batch(&mut self, batch: InFlightBatch, words: &[u32]) -> Vec<u32> {
        let now = now_ms();
        let took = now - std::mem::replace(&mut self.last_ms, now);
        if batch.is_representative && self.is_paced {
            // Batches under a guessed mask have fewer steps.
            let scale = match self.ahead {
                Some(_) => self.batch_size as f64 / batch.steps as f64,
                None => 1.0,
            };
            self.batch_size = pace_batches(self.batch_size, took * scale);
        }
        self.record_costs(batch, took);
        let count = words[TOKEN_RING_LEN as usize] as usize;
        let tokens: Vec<u32> = (self.returned..count)
            .map(|i| words[i % TOKEN_RING_LEN as usize])
            .collect();
        self.stopped = words[TOKEN_RING_LEN as usize + 1] != 0;
        self.done = self.stopped || count >= self.budget;
        if let Some(pace) = &mut self.speculation {
            let drafted = words[TOKEN_RING_LEN as usize + 2] as usize;
            let accepted = words[TOKEN_RING_LEN as usize + 3] as usize;
            if self.returned > self.first {
                pace.record_batch(batch.kind, batch.steps, tokens.len(), took);
            }
            if let Some(draft) = self.draft.as_mut().filter(|_| batch.proposals > 0) {
                draft.follow(self.end + count - self.first);
                let length = &mut draft.length;
                let new = (drafted - self.drafted, accepted - self.accepted);
                length.record(batch.proposals, new.0, new.1);
                if let Some(cost) = pace.step_cost() {
                    length.record_cost(batch.proposals, cost);
                }
            }
            (self.drafted, self.accepted) = (drafted, accepted);
        }
        self.returned = count;
        self.sampled.extend_from_slice(&tokens);
        tokens
    }

    /// Notes what a step of a constrained loop took.
    fn record_costs(&mut self, batch: InFlightBatch, took: f64) {
        let is_own = self.returned == self.masked_token;
        let is_alone = is_own && batch.steps == 1 && self.in_flight.is_empty();
        let was_alone = std::mem::replace(&mut self.was_alone, is_alone);
        let Some(ahead) = &mut self.ahead else {
            return;
        };
        // A sampled token needs its mask even if it was queued: a slow one says nothing about the wait.
        let waits = ahead.is_greedy || self.constraint_ms <= took / 2.0;
        let Some(costs) = ahead.costs.as_mut() else {
            return;
        };
        if is_alone && was_alone && waits {
            costs.record_alone(took);
        } else if !is_own && batch.is_representative {
            costs.record_queued(took / batch.steps as f64);
        }
    }

    /// Returns the next tokens in order, at least one. Empty when the generation is complete, or
    /// when the constraint forces tokens: run those after [`Self::finish`], and start another loop.
    ///
    /// # Errors
    /// `NotFinite` when the logits contain NaN or infinity; `OutOfMemory` when the KV cache cannot
    /// grow; `Request` when no token is allowed; `DeviceLost` when the GPU runs nothing; errors of
    /// the constraint.
    pub async fn next(&mut self, session: &mut Session) -> Result<Vec<u32>> {
        while !self.done {
            if !self.is_ending {
                self.submit_ahead(session).await?;
            }
            let Some((read, batch)) = self.in_flight.pop_front() else {
                break;
            };
            // The first token, tokens that a constraint waits for, and the last ones are urgent.
            let is_urgent = self.in_flight.is_empty()
                || self.constraint.is_some()
                || self.returned == self.first;
            let bytes = read.wait_urgently_if(is_urgent).await?;
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            self.readbacks += 1;
            if let Some(ahead) = &mut self.ahead {
                // Steps that were dropped before are done too; their staging buffers are free again.
                ahead.settle().await;
            }
            let first = self.returned;
            let mut tokens = self.process_batch(batch, &words);
            session.model().batch_size.set(self.batch_size);
            // Steps under a guessed mask may come to nothing.
            let must_sample = self.constraint.is_none() || first == self.masked_token;
            if must_sample && tokens.is_empty() && !self.done {
                return Err(steps_not_run(session.gpu()).await);
            }
            let own = match self.constraint {
                Some(_) => tokens
                    .len()
                    .min((self.masked_token + 1).saturating_sub(first)),
                None => tokens.len(),
            };
            if tokens[..own].iter().any(|t| *t >= u32::MAX - 1) {
                return Err(session.sampling_error(&self.pipeline, self.returned).await);
            }
            let began = now_ms();
            self.constrain(session, &mut tokens, own, &words)?;
            self.constraint_ms = now_ms() - began;
            if !tokens.is_empty() {
                return Ok(tokens);
            }
        }
        Ok(Vec::new())
    }

    /// Submits no further steps: [`Self::next`] returns the tokens in flight, then none. The
    /// generation may go on in another loop, or in a batch.
    pub fn end_soon(&mut self) {
        self.is_ending = true;
    }

    /// Waits for steps in flight and updates the session's token list. Tokens sampled past the end
    /// are included; the session can be trimmed.
    ///
    /// # Errors
    /// Device errors.
    pub async fn finish(mut self, session: &mut Session) -> Result<()> {
        if let Some(ahead) = &mut self.ahead {
            ahead.remember(session);
            if self.is_cut {
                ahead.discard(self.in_flight.drain(..).map(|(read, _)| read));
            }
        }
        while let Some((read, batch)) = self.in_flight.pop_front() {
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read.wait().await?);
            self.process_batch(batch, &words);
        }
        // Usually the last token was sampled but not run.
        let has_run = self.forward_submitted && !self.stopped && !self.is_cut;
        let count = self.sampled.len().saturating_sub(usize::from(!has_run));
        let run = &self.sampled[..count];
        if run.iter().any(|token| *token as usize >= session.vocab()) {
            session.clear();
            return Ok(());
        }
        let before = session.tokens().len();
        // Rejected drafts were written to the KV cache too, but not to recurrent states.
        let beyond = if self.has_verified && !session.model().is_recurrent() {
            DRAFT_ROWS as usize
        } else {
            0
        };
        let written = match self.is_cut {
            true => session.written_until(),
            false => session.kv_capacity().min(before + run.len() + beyond),
        };
        session.add_generated(run, self.written_until.max(written));
        self.remember_pause(session);
        if let Some(draft) = self.draft {
            draft.settle(session.tokens());
        }
        Ok(())
    }

    /// Notes how often the draft model pays off, for the next generation.
    fn remember_pause(&self, session: &Session) {
        if let (Some(_), Some(pace)) = (&self.draft, &self.speculation) {
            session.model().draft_pause.set(Some(pace.pause()));
        }
    }
}
