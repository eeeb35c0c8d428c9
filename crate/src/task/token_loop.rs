//! The loop from a prefilled prompt to the last token, for text, speech synthesis and
//! transcription. Samples on the GPU, or on the CPU where a rule needs the logits; both choose the
//! same tokens.

use crate::exec::{
    BatchMember, BatchOutput, DecodeLoop, DecodeParams, DraftSession, LogitsPipeline, PromptLookup,
    RunAhead, SequenceParams, Session, SharedSequence,
};
use crate::sample::{Sampler, TokenConstraint, TokenMask};
use crate::{Error, Result};
use std::ops::ControlFlow::{self, Break, Continue};

/// Receives the tokens of a loop and decides when it ends.
pub(super) trait TokenSink {
    /// Called before each step. An error or `Break` ends the loop, such as after an abort.
    fn check(&mut self) -> Result<ControlFlow<()>>;

    /// Returns the allowed tokens as in [`TokenMask`], if they depend on the logits. Called before
    /// each token that is sampled on the CPU.
    fn mask(&mut self, _logits: &[f32]) -> Option<Vec<u32>> {
        None
    }

    /// Changes the logits of a token that is sampled on the CPU. `Break` ends the loop before it.
    async fn process(&mut self, _logits: &mut Vec<f32>) -> Result<ControlFlow<()>> {
        Ok(Continue(()))
    }

    /// Takes the next tokens in order; with the logits before it, if a token comes from the CPU.
    /// `Break` ends the loop.
    async fn take(&mut self, tokens: &[u32], logits: Option<&[f32]>) -> Result<ControlFlow<()>>;
}

/// Numbers of tokens of a loop.
#[derive(Clone, Copy, Default)]
pub(super) struct TokenCounts {
    /// Drafted.
    pub drafted: usize,
    /// Drafted and accepted.
    pub accepted: usize,
    /// Decoded in one step with other generations.
    pub batched: usize,
    /// Readbacks of tokens, or of logits to sample from.
    pub readbacks: usize,
}

/// A generation in a session whose prompt was prefilled.
pub(super) struct TokenLoop<'a> {
    session: &'a mut Session,
    sampler: &'a mut Sampler,
    /// The stages on the GPU; without them tokens are sampled on the CPU.
    pipeline: Option<LogitsPipeline>,
    constraint: Option<&'a mut dyn TokenConstraint>,
    /// Samples ahead of the constraint.
    ahead: Option<RunAhead>,
    /// Tokens that end the generation.
    stops: &'a [u32],
    max_tokens: usize,
    /// How many of the first tokens are sampled on the CPU even with a pipeline.
    first_on_cpu: usize,
    /// The prompt, if tokens are drafted from it.
    lookup: Option<&'a [u32]>,
    /// The tokens that the answer probably repeats, to draft from too.
    prediction: &'a [u32],
    /// Proposes tokens.
    draft: Option<&'a mut DraftSession>,
    /// Length of the prompt.
    prompt: usize,
    /// The tokens so far.
    taken: Vec<u32>,
    /// Whether the pipeline has not seen tokens that were forced or sampled on the CPU.
    is_stale: bool,
    counts: TokenCounts,
    /// Decodes with other generations while there are any.
    member: Option<&'a BatchMember>,
}

impl<'a> TokenLoop<'a> {
    /// Prepares a loop of up to `max_tokens` tokens. `pipeline` is that of
    /// [`Session::prepare_sampling`] for the sampler.
    pub fn new(
        session: &'a mut Session,
        sampler: &'a mut Sampler,
        pipeline: Option<LogitsPipeline>,
        stops: &'a [u32],
        max_tokens: usize,
    ) -> Self {
        let prompt = session.tokens().len();
        Self {
            session,
            sampler,
            pipeline,
            constraint: None,
            ahead: None,
            stops,
            max_tokens,
            first_on_cpu: 0,
            lookup: None,
            prediction: &[],
            draft: None,
            prompt,
            taken: Vec::new(),
            is_stale: false,
            counts: TokenCounts::default(),
            member: None,
        }
    }

    /// Limits the tokens. The pipeline must have a token mask.
    pub fn constrained(mut self, constraint: Option<&'a mut dyn TokenConstraint>) -> Self {
        // An earlier loop may have ended with forced tokens.
        self.is_stale = constraint.is_some();
        let runs_ahead = constraint.as_ref().is_some_and(|limit| limit.runs_ahead());
        let pipeline = self.pipeline.as_ref().filter(|_| runs_ahead);
        self.ahead = pipeline.and_then(|p| RunAhead::new(self.session, self.sampler, p));
        self.constraint = constraint;
        self
    }

    /// Continues behind tokens that the pipeline has not seen.
    pub fn resumed(mut self, is_resumed: bool) -> Self {
        self.is_stale |= is_resumed;
        self
    }

    /// Samples the first `count` tokens on the CPU.
    pub fn first_on_cpu(mut self, count: usize) -> Self {
        self.first_on_cpu = count;
        self
    }

    /// Drafts tokens from the prompt and from a prediction of the answer.
    pub fn drafting(mut self, prompt: Option<&'a [u32]>, prediction: &'a [u32]) -> Self {
        self.lookup = prompt;
        self.prediction = prediction;
        self
    }

    /// Lets a draft model propose tokens.
    pub fn proposing(mut self, draft: Option<&'a mut DraftSession>) -> Self {
        self.draft = draft;
        self
    }

    /// Decodes in one step with the other generations, while there are any.
    pub fn shared(mut self, member: Option<&'a BatchMember>) -> Self {
        self.member = member;
        self
    }

    /// Generates until the sink ends it, a stop token, the token limit or a full context. Whatever
    /// happens, the session's tokens are those that its states hold.
    ///
    /// # Errors
    /// Errors of the sink, the constraint and the device; `Request` when no token is allowed.
    pub async fn run(mut self, sink: &mut impl TokenSink) -> Result<TokenCounts> {
        let outcome = self.run_to_end(sink).await;
        if let Some(ahead) = &mut self.ahead {
            ahead.settle().await;
        }
        outcome.map(|()| self.counts)
    }

    async fn run_to_end(&mut self, sink: &mut impl TokenSink) -> Result<()> {
        while !self.is_over() {
            self.run_sampled_tokens().await?;
            let forced = match &mut self.constraint {
                Some(constraint) => constraint.forced()?,
                None => Vec::new(),
            };
            let pipeline = self.pipeline.clone();
            let flow = match pipeline.filter(|_| self.taken.len() >= self.first_on_cpu) {
                None => self.step_on_cpu(forced.first().copied(), sink).await?,
                Some(_) if !forced.is_empty() => self.append(forced, sink).await?,
                Some(pipeline) => match self.join_batch().await {
                    Some(sequence) => self.decode_in_batch(sequence, sink).await?,
                    None => self.decode_on_gpu(pipeline, sink).await?,
                },
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Whether no further token may be sampled.
    fn is_over(&self) -> bool {
        self.taken.len() >= self.max_tokens
            || self.prompt + self.taken.len() > self.session.capacity()
            || self.taken.last().is_some_and(|id| self.stops.contains(id))
    }

    /// Runs the tokens that were taken but not run, so that the next logits are on the device.
    async fn run_sampled_tokens(&mut self) -> Result<()> {
        let end = self.session.tokens().len();
        match self.taken[end - self.prompt..] {
            [] => Ok(()),
            [token] => self.session.step(token, end).await,
            ref tokens => self.session.prefill(tokens, end).await,
        }
    }

    /// Records a token that the pipeline did not sample.
    fn accept(&mut self, token: u32) -> Result<()> {
        self.is_stale = true;
        self.sampler.accept(token);
        self.taken.push(token);
        match &mut self.constraint {
            Some(constraint) if !self.stops.contains(&token) => constraint.accept(token),
            _ => Ok(()),
        }
    }

    /// Appends the tokens that a constraint requires, without sampling.
    async fn append(
        &mut self,
        mut tokens: Vec<u32>,
        sink: &mut impl TokenSink,
    ) -> Result<ControlFlow<()>> {
        if sink.check()?.is_break() {
            return Ok(Break(()));
        }
        let room = self.session.capacity() + 1 - self.prompt - self.taken.len();
        tokens.truncate(room.min(self.max_tokens - self.taken.len()));
        if let Some(stop) = tokens.iter().position(|id| self.stops.contains(id)) {
            tokens.truncate(stop + 1);
        }
        let vocabulary = self.session.vocab();
        if let Some(unknown) = tokens.iter().find(|id| **id as usize >= vocabulary) {
            let reason =
                format!("token {unknown} is outside the vocabulary of {vocabulary} tokens");
            return Err(Error::Request {
                parameter: "constraint".into(),
                reason,
            });
        }
        for token in &tokens {
            self.accept(*token)?;
        }
        sink.take(&tokens, None).await
    }

    /// Takes one token on the CPU: the forced one, else a sampled one.
    async fn step_on_cpu(
        &mut self,
        forced: Option<u32>,
        sink: &mut impl TokenSink,
    ) -> Result<ControlFlow<()>> {
        if sink.check()?.is_break() {
            return Ok(Break(()));
        }
        let mut logits = self.session.logits().await?;
        self.counts.readbacks += 1;
        if sink.process(&mut logits).await?.is_break() {
            return Ok(Break(()));
        }
        let token = match forced {
            Some(token) => token,
            None => {
                let mut mask = sink.mask(&logits);
                if let Some(constraint) = &mut self.constraint {
                    let mut words = vec![0; logits.len().div_ceil(32)];
                    constraint.mask(&mut words)?;
                    for (word, other) in words.iter_mut().zip(mask.iter().flatten()) {
                        *word &= other;
                    }
                    mask = Some(words);
                }
                self.sampler
                    .select(&logits, mask.as_deref().map(TokenMask))?
            }
        };
        self.accept(token)?;
        sink.take(&[token], Some(&logits)).await
    }

    /// Adds the sequence to the batch of the running generations, if there are others.
    async fn join_batch(&mut self) -> Option<SharedSequence> {
        let member = self.member.filter(|member| member.is_shared())?;
        let params = SequenceParams {
            stops: self.stops,
            budget: self.max_tokens - self.taken.len(),
            sampler: Some(self.sampler),
            sampled_before: self.sampler.step() as usize,
            masked: self.constraint.is_some(),
        };
        let sequence = member.join(self.session, params).await;
        // What does not fit decodes alone to its end.
        if sequence.is_none() {
            self.member = None;
        }
        sequence
    }

    /// Samples in a batch until the end, until the constraint leaves no choice, or until no other
    /// generation is left.
    async fn decode_in_batch(
        &mut self,
        mut sequence: SharedSequence,
        sink: &mut impl TokenSink,
    ) -> Result<ControlFlow<()>> {
        self.is_stale = true;
        let model = self.session.model().clone();
        let turns = model.turns().decoding();
        let outcome = loop {
            match sink.check() {
                Ok(Continue(())) => {}
                ended => break ended,
            }
            if !self.member.is_some_and(BatchMember::is_shared) {
                break Ok(Continue(()));
            }
            if sequence.needs_mask() {
                match self.next_mask() {
                    Ok(Some(words)) => sequence.set_mask(words),
                    Ok(None) => break Ok(Continue(())),
                    Err(error) => break Err(error),
                }
            }
            let tokens = match sequence.next().await {
                BatchOutput::Tokens(tokens) => tokens,
                BatchOutput::Ended => break Ok(Continue(())),
                BatchOutput::Failed => {
                    self.member = None;
                    return Ok(Continue(()));
                }
            };
            turns.stepped();
            match self.take_from_batch(&tokens, sink).await {
                Ok(Continue(())) => {}
                ended => break ended,
            }
        };
        let rest = sequence.leave(self.session).await;
        let flow = outcome?;
        match rest {
            Ok(rest) if flow.is_continue() && !rest.is_empty() => {
                self.take_from_batch(&rest, sink).await
            }
            Ok(_) => Ok(flow),
            // The session has fewer tokens, which run again if the generation goes on.
            Err(_) => {
                self.member = None;
                Ok(flow)
            }
        }
    }

    /// Takes tokens that the batch has sampled.
    async fn take_from_batch(
        &mut self,
        tokens: &[u32],
        sink: &mut impl TokenSink,
    ) -> Result<ControlFlow<()>> {
        self.counts.batched += tokens.len();
        self.counts.readbacks += 1;
        for token in tokens {
            self.sampler.accept(*token);
            self.taken.push(*token);
            if let Some(constraint) = &mut self.constraint
                && !self.stops.contains(token)
            {
                constraint.accept(*token)?;
            }
        }
        sink.take(tokens, None).await
    }

    /// The mask of the next token; None if the constraint requires certain tokens.
    fn next_mask(&mut self) -> Result<Option<Vec<u32>>> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(None);
        };
        if !constraint.forced()?.is_empty() {
            return Ok(None);
        }
        let mut words = vec![0; self.session.vocab().div_ceil(32)];
        constraint.mask(&mut words)?;
        Ok(Some(words))
    }

    /// Samples on the GPU until the end, or until the constraint leaves no choice.
    async fn decode_on_gpu(
        &mut self,
        pipeline: LogitsPipeline,
        sink: &mut impl TokenSink,
    ) -> Result<ControlFlow<()>> {
        if std::mem::take(&mut self.is_stale) {
            self.session.write_request_input(&pipeline, self.sampler)?;
        }
        // The generation may continue after tokens of a batch.
        let context = self.lookup.map(|prompt| [prompt, &self.taken].concat());
        let params = DecodeParams {
            end: self.session.tokens().len(),
            stops: self.stops,
            budget: self.max_tokens - self.taken.len(),
            sampled_before: self.sampler.step() as usize,
            pipeline,
            constraint: match &mut self.constraint {
                Some(constraint) => Some(&mut **constraint),
                None => None,
            },
            ahead: self.ahead.as_mut(),
            lookup: context.as_ref().map(|context| PromptLookup {
                context,
                prediction: self.prediction,
                draft_always: false,
            }),
            draft: self.draft.as_deref_mut(),
        };
        let model = self.session.model().clone();
        let turns = model.turns().decoding();
        let mut decode = DecodeLoop::start(self.session, params)?;
        let outcome = loop {
            match sink.check() {
                Ok(Continue(())) => {}
                ended => break ended,
            }
            if self.member.is_some_and(BatchMember::is_shared) {
                // Others have come: join their batch.
                decode.end_soon();
                self.is_stale = true;
            }
            let tokens = match decode.next(self.session).await {
                Ok(tokens) if tokens.is_empty() => break Ok(Continue(())),
                Ok(tokens) => tokens,
                Err(error) => break Err(error),
            };
            turns.stepped();
            tokens.iter().for_each(|id| self.sampler.accept(*id));
            self.taken.extend_from_slice(&tokens);
            match sink.take(&tokens, None).await {
                Ok(Continue(())) => {}
                ended => break ended,
            }
        };
        let (drafted, accepted) = decode.draft_counts();
        self.counts.drafted += drafted;
        self.counts.accepted += accepted;
        self.counts.readbacks += decode.readbacks();
        self.is_stale |= decode.is_cut();
        // Also after an error, so that the session knows what its states hold.
        let finished = decode.finish(self.session).await;
        let flow = outcome?;
        finished.map(|()| flow)
    }
}
