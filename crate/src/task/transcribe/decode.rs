//! Decoding of one audio window: greedy, sampled or beam search; on the GPU unless a rule needs the
//! logits.

use super::{TranscribeRequest, Transcriber};
use crate::audio::beam::log_softmax;
use crate::audio::repetition;
use crate::exec::{DecodeLoop, DecodeParams};
use crate::hub::AbortFlag;
use crate::sample::{Sampler, SamplingParams, TokenMask};
use crate::{Error, Result};

/// Compression ratio above which a result counts as repetitive.
const MAX_COMPRESSION: f64 = 2.4;
/// Mean log-probability below which a result counts as unreliable.
const MIN_MEAN_LOGPROB: f64 = -1.0;
/// No-speech probability above which an unreliable result counts as silence.
const MAX_NO_SPEECH: f32 = 0.6;

/// Decoding result of a window.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowResult {
    /// Tokens without the end token.
    pub ids: Vec<u32>,
    /// Mean log-probability of the tokens and the end token, if the logits were read.
    pub mean_logprob: Option<f64>,
    /// No-speech probability, if the model predicts it.
    pub no_speech: Option<f32>,
    /// Compression ratio of the text.
    pub compression: f64,
}

impl WindowResult {
    /// Whether the window counts as silence.
    pub fn is_silent(&self) -> bool {
        self.no_speech.is_some_and(|p| p > MAX_NO_SPEECH)
            && self.mean_logprob.is_some_and(|p| p < MIN_MEAN_LOGPROB)
    }

    fn is_unreliable(&self) -> bool {
        !self.is_silent()
            && (self.compression > MAX_COMPRESSION
                || self.mean_logprob.is_some_and(|p| p < MIN_MEAN_LOGPROB))
    }
}

/// Callback for partial results, with all tokens so far.
pub(super) type PartialCallback<'a> = &'a dyn Fn(&[u32]);

/// Inputs for decoding a window.
pub(super) struct WindowTask<'a> {
    pub prompt: &'a [u32],
    /// Maximum tokens after the prompt.
    pub max_tokens: usize,
    /// Whether to decode timestamp tokens.
    pub times: bool,
    pub request: &'a TranscribeRequest,
    pub abort: &'a AbortFlag,
    /// Called with all tokens so far after each step.
    pub on_tokens: Option<PartialCallback<'a>>,
}

impl WindowTask<'_> {
    fn emit(&self, ids: &[u32]) {
        if let Some(told) = self.on_tokens {
            told(ids);
        }
    }
}

impl Transcriber {
    /// Decodes the audio that was encoded last. Retries at higher temperatures while the result is
    /// unreliable.
    pub(super) async fn decode(&mut self, text: &WindowTask<'_>) -> Result<WindowResult> {
        let temperatures = text.request.temperatures();
        let mut found = WindowResult::default();
        for (index, temperature) in temperatures.iter().enumerate() {
            found = match text.request.beams {
                beams if beams > 1 && *temperature == 0.0 => self.decode_beams(text).await?,
                _ => self.decode_sampled(text, *temperature).await?,
            };
            found.compression =
                repetition::compression_ratio(self.decode_text(&found.ids).as_bytes());
            if index + 1 < temperatures.len() && found.is_unreliable() {
                continue;
            }
            break;
        }
        Ok(found)
    }

    /// Clears the session and prefills the prompt.
    pub(super) async fn prefill_prompt(&mut self, text: &WindowTask<'_>) -> Result<()> {
        self.session.clear();
        self.session
            .prefill_reusing_prefix(text.prompt, &|| text.abort.check("transcribing"))
            .await?;
        Ok(())
    }

    async fn decode_sampled(
        &mut self,
        text: &WindowTask<'_>,
        temperature: f64,
    ) -> Result<WindowResult> {
        let vocab = self.session.vocab();
        let banned = self
            .rules
            .suppress
            .iter()
            .filter(|id| (**id as usize) < vocab);
        let params = SamplingParams {
            greedy: temperature == 0.0,
            temperature,
            top_k: 0,
            logit_bias: banned.map(|id| (*id, f64::NEG_INFINITY)).collect(),
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(params, vocab, text.request.seed.unwrap_or(0))?;
        self.prefill_prompt(text).await?;
        let exact = text.times || text.request.logprobs || text.request.temperatures().len() > 1;
        let tail = if exact {
            None
        } else {
            self.session.prepare_sampling(&sampler).await?
        };
        let mut found = WindowResult::default();
        let mut sum = 0.0f64;
        let mut count = 0usize;

        while found.ids.len() < text.max_tokens {
            text.abort.check("transcribing")?;
            let first = found.ids.is_empty();
            if let Some(tail) = tail.filter(|_| !(first && self.has_first_rule())) {
                self.decode_on_gpu(text, &mut sampler, tail, &mut found.ids)
                    .await?;
                return Ok(found);
            }
            let (token, logprob) = self
                .sample_token(&mut sampler, &found.ids, text.times)
                .await?;
            sum += logprob;
            count += 1;
            if self.end_tokens.contains(&token) {
                break;
            }
            found.ids.push(token);
            if let Some(keep) = repetition::find_repetition(&found.ids).filter(|_| !text.times) {
                found.ids.truncate(keep);
                break;
            }
            text.emit(&found.ids);
            if found.ids.len() < text.max_tokens {
                self.session
                    .step(token, self.session.tokens().len())
                    .await?;
            }
        }
        found.mean_logprob = (count > 0).then(|| sum / count as f64);
        Ok(found)
    }

    /// Whether the first token has rules of its own.
    fn has_first_rule(&self) -> bool {
        !self.rules.begin_suppress.is_empty()
    }

    /// Samples the next token from the logits. Returns it with its log-probability among the
    /// allowed tokens.
    async fn sample_token(
        &self,
        sampler: &mut Sampler,
        ids: &[u32],
        times: bool,
    ) -> Result<(u32, f64)> {
        let logits = self.session.logits().await?;
        let mut row = logits.clone();
        self.rules.mask_logits(&mut row, ids, times);
        let token = if sampler.params().is_greedy() {
            let token = (0..row.len())
                .reduce(|best: usize, at: usize| if row[at] > row[best] { at } else { best })
                .unwrap_or(0) as u32;
            sampler.accept(token);
            token
        } else {
            let mut mask = vec![0u32; row.len().div_ceil(32)];
            for at in (0..row.len()).filter(|at| row[*at].is_finite()) {
                mask[at / 32] |= 1 << (at % 32);
            }
            sampler.sample(&logits, Some(TokenMask(&mask)))?
        };
        log_softmax(&mut row);
        Ok((token, f64::from(row[token as usize])))
    }

    /// Decodes the remaining tokens on the GPU without reading logits back.
    async fn decode_on_gpu(
        &mut self,
        text: &WindowTask<'_>,
        sampler: &mut Sampler,
        tail: crate::exec::SamplingMode,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let end = self.session.tokens().len();
        let step = sampler.step() as usize;

        let budget = text.max_tokens - ids.len();
        let start = DecodeParams {
            end,
            stops: &self.end_tokens,
            budget,
            sampled_before: step,
            sampling: tail,
            lookup: None,
        };
        let mut decode = DecodeLoop::start(&mut self.session, start)?;
        let outcome = loop {
            if let Err(error) = text.abort.check("transcribing") {
                break Err(error);
            }
            let tokens = match decode.next(&mut self.session).await {
                Ok(tokens) => tokens,
                Err(error) => break Err(error),
            };
            let ended = tokens
                .iter()
                .position(|token| self.end_tokens.contains(token));
            ids.extend(&tokens[..ended.unwrap_or(tokens.len())]);
            if let Some(keep) = repetition::find_repetition(ids) {
                ids.truncate(keep);
                break Ok(());
            }
            text.emit(ids);
            if tokens.is_empty() || ended.is_some() {
                break Ok(());
            }
        };
        decode.finish(&mut self.session).await?;
        outcome
    }

    /// Returns language probabilities, highest first, and the no-speech probability.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn detect(&mut self) -> Result<(Vec<(String, f32)>, Option<f32>)> {
        self.session.clear();
        self.session.prefill(&[self.rules.start], 0).await?;
        let logits = self.session.logits().await?;
        if logits.len() <= self.rules.start as usize {
            return Err(Error::Internal(
                "the start token is outside the vocabulary".into(),
            ));
        }
        Ok((
            self.rules.language_probabilities(&logits),
            self.rules.no_speech(&logits),
        ))
    }
}
