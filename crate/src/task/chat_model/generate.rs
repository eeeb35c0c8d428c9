//! Text generation: prefills uncached tokens, decodes the tokens of the loop to text and checks
//! stops.

use super::ChatModel;
use super::thought::{AnyToken, ThoughtState, WithOpener};
use crate::chat::{AnswerParser, AnswerPart};
use crate::exec::{LogitsPipeline, PagingStats};
use crate::hub::AbortFlag;
use crate::sample::fixed_point::BANNED_SCORE;
use crate::sample::{
    ALL_BANNED, Distribution, LogProbs, LogitsProcessor, Sampler, TokenConstraint,
    log_probabilities,
};
use crate::task::request::{ContextOverflow, GenerateRequest, SpeculationMode};
use crate::task::text_stream::{ParsedText, TextStream, TokenInfo};
use crate::task::token_loop::{TokenCounts, TokenLoop, TokenSink};
use crate::util::clock::now_ms;
use crate::{Error, Result};
use serde::Serialize;
use std::ops::ControlFlow::{self, Break, Continue};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// End-of-sequence token or stop string.
    Stop,
    /// Token limit, time limit or full context.
    Length,
    /// Abort by the caller.
    Abort,
    /// End of an answer with tool calls.
    #[serde(rename = "tool_calls")]
    ToolCalls,
}

/// Text and tokens generated since the last event.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TokenEvent {
    /// Whole characters; may be empty. Only content if the answer is parsed.
    pub text: String,
    /// The tokens.
    pub ids: Vec<u32>,
    /// What the text is: content, reasoning, tool calls; only if the answer is parsed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<AnswerPart>,
    /// One entry per token, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenInfo>>,
}

/// Result of a generation.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationResult {
    /// The whole text; only content if the answer is parsed.
    pub text: String,
    /// The generated tokens.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the KV cache.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub completion_tokens: usize,
    /// Tokens of the reasoning among them; counted if the answer is parsed.
    pub reasoning_tokens: usize,
    /// Tokens that speculation drafted.
    pub drafted_tokens: usize,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: usize,
    /// Tokens that were decoded in one step with those of other generations.
    pub batched_tokens: usize,
    /// Times that sampled tokens, or the logits to sample from, were read back from the GPU.
    pub readbacks: usize,
    /// Expert paging statistics since the load; None if all experts are on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paging: Option<PagingStats>,
    /// Milliseconds spent on encoding images before the generation.
    pub encode_ms: f64,
    /// Time to first token in milliseconds.
    pub prefill_ms: f64,
    /// Milliseconds from the first token to the last.
    pub decode_ms: f64,
}

/// What takes part in each step of a generation, besides its request.
#[derive(Default)]
pub struct GenerationHooks<'a> {
    /// Limits the tokens.
    pub constraint: Option<&'a mut dyn TokenConstraint>,
    /// Changes the logits. Every step then reads them back and samples on the CPU.
    pub processor: Option<&'a mut dyn LogitsProcessor>,
}

/// State of a generation.
struct GenerationState<'a> {
    text: TextStream<'a>,
    ids: Vec<u32>,
    finish: Option<FinishReason>,
    max_tokens: usize,
    /// Time limit, as clock time in milliseconds.
    deadline_ms: f64,
    eos: Vec<u32>,
    first_token_ms: f64,
    /// Alternatives per token, if log-probabilities are requested.
    top_logprobs: Option<usize>,
    distribution: Distribution,
    processor: Option<&'a mut dyn LogitsProcessor>,
    /// Whether a token that ends the answer only ends the thought, and is dropped.
    survives_end: bool,
    /// Whether such a token came.
    tried_to_end: bool,
    /// Whether the loop ends where the text leaves the thought.
    watches_thought: bool,
    /// Whether the first complete call ends the answer.
    single_call: bool,
    abort: &'a AbortFlag,
    on_event: &'a mut dyn FnMut(&TokenEvent),
}

impl TokenSink for GenerationState<'_> {
    fn check(&mut self) -> Result<ControlFlow<()>> {
        if self.abort.is_aborted() {
            self.finish = Some(FinishReason::Abort);
            return Ok(Break(()));
        }
        Ok(Continue(()))
    }

    async fn process(&mut self, logits: &mut Vec<f32>) -> Result<ControlFlow<()>> {
        let Some(processor) = &mut self.processor else {
            return Ok(Continue(()));
        };
        let vocabulary = logits.len();
        let flow = processor.process(logits, &self.ids).await?;
        check_processed(logits, vocabulary)?;
        if flow.is_break() {
            let is_aborted = self.abort.is_aborted();
            self.finish = Some(if is_aborted {
                FinishReason::Abort
            } else {
                FinishReason::Stop
            });
        }
        Ok(flow)
    }

    async fn take(&mut self, tokens: &[u32], logits: Option<&[f32]>) -> Result<ControlFlow<()>> {
        let logprobs = match (self.top_logprobs, logits) {
            (Some(top), Some(logits)) => {
                let token = tokens.first().copied().unwrap_or_default();
                let of_token = log_probabilities(logits, token, top, &mut self.distribution)?;
                Some(vec![of_token])
            }
            _ => None,
        };
        let end = tokens
            .iter()
            .position(|id| self.survives_end && self.eos.contains(id));
        self.tried_to_end |= end.is_some();
        let tokens = &tokens[..end.unwrap_or(tokens.len())];
        let event = self.push_tokens(tokens, logprobs.as_deref());
        (self.on_event)(&event);
        let is_over = self.finish.is_some()
            || self.tried_to_end
            || (self.watches_thought && !self.text.is_reasoning());
        Ok(if is_over { Break(()) } else { Continue(()) })
    }
}

/// Checks what a processor made of the logits; negative infinity bans a token.
fn check_processed(logits: &mut [f32], vocabulary: usize) -> Result<()> {
    let refuse = |reason: String| Error::Request {
        parameter: "logitsProcessor".into(),
        reason,
    };
    if logits.len() != vocabulary {
        let found = logits.len();
        let reason = format!("returned {found} logits. Return {vocabulary}, one for each token.");
        return Err(refuse(reason));
    }
    for (token, logit) in logits.iter_mut().enumerate() {
        if logit.is_nan() || *logit == f32::INFINITY {
            let reason = format!(
                "returned {logit} for token {token}. Return finite numbers, or -Infinity to ban a token."
            );
            return Err(refuse(reason));
        }
        *logit = logit.max(BANNED_SCORE);
    }
    if logits.iter().all(|logit| *logit <= ALL_BANNED) {
        let reason = "the logits processor left no token: it banned all of them. Leave at least one logit above -Infinity.";
        return Err(refuse(reason.into()));
    }
    Ok(())
}

impl GenerationState<'_> {
    /// Adds tokens that were not sampled.
    fn append(&mut self, tokens: &[u32], sampler: &mut Sampler) {
        if tokens.is_empty() || self.finish.is_some() {
            return;
        }
        let before = self.ids.len();
        let event = self.push_tokens(tokens, None);
        self.ids[before..].iter().for_each(|id| sampler.accept(*id));
        (self.on_event)(&event);
    }

    /// Adds tokens; returns the event to emit and sets `finish` when the generation is over.
    fn push_tokens(&mut self, tokens: &[u32], logprobs: Option<&[LogProbs]>) -> TokenEvent {
        if self.ids.is_empty() {
            self.first_token_ms = now_ms();
        }
        let mut event = TokenEvent {
            logprobs: logprobs.map(|_| Vec::new()),
            ..TokenEvent::default()
        };
        for (index, id) in tokens.iter().enumerate() {
            self.ids.push(*id);
            event.ids.push(*id);
            if self.eos.contains(id) {
                self.finish = Some(FinishReason::Stop);
                break;
            }
            let parsed = self.text.push(*id);
            event.text += &parsed.text;
            let call_end = parsed.parts.iter().position(|part| {
                self.single_call && matches!(part, AnswerPart::ToolCallEnd { .. })
            });
            let parts = parsed.parts.into_iter();
            event
                .parts
                .extend(parts.take(call_end.map_or(usize::MAX, |at| at + 1)));
            if call_end.is_some() {
                self.finish = Some(FinishReason::Stop);
            }
            if let (Some(all), Some(list)) = (logprobs, &mut event.logprobs) {
                list.extend(all.get(index).map(|l| self.text.token_info(l)));
            }
            if self.text.stopped().is_some() {
                self.finish = Some(FinishReason::Stop);
            }
            if self.finish.is_some() {
                break;
            }
            if self.ids.len() >= self.max_tokens {
                self.finish = Some(FinishReason::Length);
                break;
            }
        }
        if self.finish.is_none() && now_ms() > self.deadline_ms {
            self.finish = Some(FinishReason::Length);
        }
        event
    }
}

impl ChatModel {
    /// How a request speculates: by default with the draft model, if there is one.
    fn speculation(&self, request: &GenerateRequest) -> Result<SpeculationMode> {
        let has_draft = self.draft.loaded().is_some();
        match request.speculation {
            Some(SpeculationMode::Draft) if !has_draft => {
                let reason = "'draft' needs a draft model. Load the model with 'draft', or use prompt-lookup.";
                Err(Error::Request {
                    parameter: "speculation".into(),
                    reason: reason.into(),
                })
            }
            None if has_draft => Ok(SpeculationMode::Draft),
            mode => Ok(mode.unwrap_or_default()),
        }
    }

    /// Generates until a stop, a limit or an abort. Calls `on_event` with text and tokens as they
    /// are generated.
    ///
    /// # Errors
    /// `Request` for contradictory parameters; `ContextFull` for a prompt that does not fit; errors
    /// of the device.
    pub async fn generate(
        &mut self,
        request: &GenerateRequest,
        abort: &AbortFlag,
        on_event: impl FnMut(&TokenEvent),
    ) -> Result<GenerationResult> {
        self.generate_constrained(request, None, abort, on_event)
            .await
    }

    /// Generates only tokens that a constraint allows, such as the text of a grammar. See
    /// [`Self::generate`].
    ///
    /// # Errors
    /// As [`Self::generate`]; `Request` when no token is allowed; errors of the constraint.
    pub async fn generate_constrained(
        &mut self,
        request: &GenerateRequest,
        constraint: Option<&mut dyn TokenConstraint>,
        abort: &AbortFlag,
        on_event: impl FnMut(&TokenEvent),
    ) -> Result<GenerationResult> {
        let hooks = GenerationHooks {
            constraint,
            processor: None,
        };
        self.generate_with(request, hooks, abort, on_event).await
    }

    /// Generates with a constraint, a logits processor, or both. See [`Self::generate`].
    ///
    /// # Errors
    /// As [`Self::generate_constrained`]; errors of the processor.
    pub async fn generate_with(
        &mut self,
        request: &GenerateRequest,
        hooks: GenerationHooks<'_>,
        abort: &AbortFlag,
        mut on_event: impl FnMut(&TokenEvent),
    ) -> Result<GenerationResult> {
        let GenerationHooks {
            mut constraint,
            mut processor,
        } = hooks;
        let start_ms = now_ms();
        self.session.set_priority(request.priority);
        if std::mem::take(&mut self.needs_reset) {
            self.session.clear();
        }
        let defaults = self.defaults.clone();
        let mut params = defaults.params.merge(&request.sampling)?;
        let max_tokens = request.max_tokens.or(defaults.max_new_tokens);
        let room = max_tokens
            .unwrap_or(self.session.capacity() / 4)
            .min(self.session.capacity() / 2);
        let prompt = self.fit_prompt(request, room)?;
        if prompt.is_empty() {
            let reason = "the prompt is empty. Pass at least one token.".into();
            return Err(Error::Request {
                parameter: "prompt".into(),
                reason,
            });
        }
        let max_tokens = match defaults.max_length.filter(|_| max_tokens.is_none()) {
            Some(most) if most <= prompt.len() => {
                let tokens = prompt.len();
                let reason = format!(
                    "the prompt has {tokens} tokens, but 'max_length' of generation_config.json limits prompt and answer to {most}. Set maxTokens."
                );
                return Err(Error::Request {
                    parameter: "maxTokens".into(),
                    reason,
                });
            }
            Some(most) => Some(most - prompt.len()),
            None => max_tokens,
        };
        params.rules.drop_unused(prompt.len(), max_tokens);
        let seed = request.fallback_seed.unwrap_or((now_ms() * 1000.0) as u64);
        let mut sampler = Sampler::new(params, self.session.vocab(), seed)?;
        sampler.start(&prompt);
        sampler.set_max_tokens(max_tokens);
        sampler.set_processed(processor.is_some());
        let on_cpu = request.logprobs || processor.is_some();
        let is_constrained = constraint.is_some();
        let mut masked = is_constrained;
        let mut pipeline = match on_cpu {
            true => None,
            false => self.session.prepare_sampling(&sampler, masked).await?,
        };
        let speculation = self.speculation(request)?;
        // Looked-up drafts are verified against greedy tokens only.
        let drafting = (speculation == SpeculationMode::PromptLookup
            || request.prediction.is_some())
            && pipeline == Some(LogitsPipeline::greedy())
            && !self.session.model().is_paged();
        if drafting {
            self.session.prepare_speculation().await?;
        }
        let prediction = match &request.prediction {
            Some(text) if drafting => self.text.tokenizer()?.encode(text, false)?,
            _ => Vec::new(),
        };
        let parts = self.text.clone();
        let continues = request.messages.is_none() || request.continue_final_message;
        let before = if continues { &prompt[..] } else { &[] };
        let parser = self.answer_parser(request, &prompt, seed)?;
        let is_reasoning = parser.as_ref().is_some_and(AnswerParser::is_reasoning);
        let mut thought = self.thought(request, masked, is_reasoning, &prompt)?;
        let mut eos = if request.ignore_eos {
            Vec::new()
        } else {
            self.eos.to_vec()
        };
        // A stop string that is a special token ends the answer on the device.
        if let Ok(tokenizer) = parts.tokenizer() {
            let stops = request.stop.iter().chain(&defaults.stop_strings);
            let special = stops.filter(|text| tokenizer.special_spellings().contains(text));
            eos.extend(special.filter_map(|text| tokenizer.token_to_id(text)));
        }
        let mut run = GenerationState {
            text: TextStream::new(
                parts.tokenizer().ok(),
                &defaults.stop_strings,
                &request.stop,
                before,
                parser,
            ),
            ids: Vec::new(),
            finish: None,
            max_tokens: max_tokens.unwrap_or(usize::MAX),
            deadline_ms: defaults.max_ms.map_or(f64::INFINITY, |ms| start_ms + ms),
            eos,
            first_token_ms: start_ms,
            top_logprobs: request.logprobs.then_some(request.top_logprobs),
            distribution: Distribution::default(),
            processor: match &mut processor {
                Some(processor) => Some(&mut **processor),
                None => None,
            },
            survives_end: false,
            tried_to_end: false,
            watches_thought: false,
            single_call: request.single_call,
            abort,
            on_event: &mut on_event,
        };
        let eos = run.eos.clone();
        let mut counts = TokenCounts::default();
        let mut context = prompt.clone();
        let mut cached = None;
        let mut member = None;
        let mut appended = Vec::new();
        while run.finish.is_none() {
            if let Some(thought) = &mut thought {
                appended.extend(thought.take_forced_opener());
            }
            let before = run.ids.len();
            run.append(&std::mem::take(&mut appended), &mut sampler);
            context.extend_from_slice(&run.ids[before..]);
            if run.finish.is_some() {
                break;
            }
            let is_resumed = cached.is_some() && thought.is_some();
            let reused = match is_resumed {
                true => {
                    self.session
                        .prefill_rest(&context, &|| abort.check("generating"))
                        .await?
                }
                false => {
                    self.scheduler
                        .prefill(&mut self.session, &context, abort)
                        .await?
                }
            };
            // A retried or edited answer restarts here.
            if !is_resumed {
                self.session.checkpoint()?;
            }
            cached.get_or_insert(reused);
            let before = run.ids.len();
            let mut left = run.max_tokens - before;
            let mut stops = eos.clone();
            let mut opener = None;
            let mut any = AnyToken;
            let mut is_free = false;
            if let Some(thought) = &thought {
                left = left.min(thought.left());
                stops.extend_from_slice(thought.stops());
                run.survives_end = thought.survives_end();
                run.watches_thought = thought.is_watched();
                is_free = thought.state == ThoughtState::Open;
                opener = thought.opener_token();
            }
            let mut with_opener;
            let limit: Option<&mut dyn TokenConstraint> = match &mut constraint {
                _ if is_free && run.watches_thought => Some(&mut any),
                _ if is_free => None,
                Some(inner) if opener.is_some() => {
                    with_opener = WithOpener {
                        inner: &mut **inner,
                        opener,
                    };
                    Some(&mut with_opener)
                }
                Some(inner) => Some(&mut **inner),
                None => None,
            };
            if !on_cpu && masked != limit.is_some() {
                masked = limit.is_some();
                pipeline = self.session.prepare_sampling(&sampler, masked).await?;
            }
            if member.is_none() && pipeline.is_some() {
                member = self.scheduler.enter(&self.session);
            }
            let session = &mut self.session;
            let draft = match &pipeline {
                Some(pipeline)
                    if speculation == SpeculationMode::Draft && !drafting && limit.is_none() =>
                {
                    self.draft.prepare(session, pipeline, &sampler).await?
                }
                _ => None,
            };
            let tokens = TokenLoop::new(session, &mut sampler, pipeline.clone(), &stops, left)
                .constrained(limit)
                .resumed(is_resumed)
                .drafting(drafting.then_some(&context[..]), &prediction)
                .proposing(draft)
                .shared(member.as_ref());
            let counted = tokens.run(&mut run).await?;
            counts.drafted += counted.drafted;
            counts.accepted += counted.accepted;
            counts.batched += counted.batched;
            counts.readbacks += counted.readbacks;
            context.extend_from_slice(&run.ids[before..]);
            if let Some(thought) = thought.as_mut().filter(|_| run.finish.is_none()) {
                let is_reasoning = run.text.is_reasoning();
                let state = thought.state;
                let tried_to_end = std::mem::take(&mut run.tried_to_end);
                appended = thought.advance(&run.ids[before..], is_reasoning, tried_to_end);
                if thought.state != state {
                    continue;
                }
            }
            if run.finish.is_none() {
                if request.overflow != ContextOverflow::Rolling {
                    run.finish = Some(FinishReason::Length);
                } else {
                    // Drop the older half except the first token, which is the attention sink.
                    let half = context.len() - self.session.capacity() / 2;
                    let vocab = self.session.vocab() as u32;
                    let cut = self
                        .session
                        .soft_token_cache()
                        .borrow()
                        .next_cut(&context, vocab, half);
                    let keep = context.split_off(cut);
                    context.truncate(1);
                    context.extend(keep);
                }
            }
        }
        let end_ms = now_ms();
        let finish = run.finish.unwrap_or(FinishReason::Length);
        // What a grammar has begun is a call, not text that looks like one.
        let is_cut = is_constrained && finish == FinishReason::Length;
        let ParsedText { text, parts } = run.text.finish(is_cut);
        if !text.is_empty() || !parts.is_empty() {
            (run.on_event)(&TokenEvent {
                text,
                parts,
                ..TokenEvent::default()
            });
        }
        let finish_reason = match finish {
            FinishReason::Stop if run.text.has_calls() => FinishReason::ToolCalls,
            finish => finish,
        };
        Ok(GenerationResult {
            finish_reason,
            reasoning_tokens: run.text.reasoning_tokens,
            text: run.text.output,
            prompt_tokens: prompt.len(),
            cached_tokens: cached.unwrap_or(0),
            completion_tokens: run.ids.len(),
            drafted_tokens: counts.drafted,
            accepted_tokens: counts.accepted,
            batched_tokens: counts.batched,
            readbacks: counts.readbacks,
            paging: self.session.model().paging(),
            encode_ms: self
                .vision
                .as_ref()
                .map_or(0.0, |sight| sight.take_encode_ms()),
            prefill_ms: run.first_token_ms - start_ms,
            decode_ms: end_ms - run.first_token_ms,
            ids: run.ids,
        })
    }
}
