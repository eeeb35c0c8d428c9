//! Decoding of one audio window: greedy, sampled or beam search; on the GPU unless a rule needs the
//! logits.

use super::{TranscribeRequest, Transcriber};
use crate::audio::beam::log_softmax;
use crate::audio::repetition;
use crate::audio::whisper::WhisperRules;
use crate::hub::AbortFlag;
use crate::sample::{Sampler, SamplingParams};
use crate::task::token_loop::{TokenLoop, TokenSink};
use crate::{Error, Result};
use std::ops::ControlFlow::{self, Break, Continue};

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
        if let Some(callback) = self.on_tokens {
            callback(ids);
        }
    }
}

/// Collects the tokens of a window.
struct WindowSink<'a> {
    text: &'a WindowTask<'a>,
    rules: &'a WhisperRules,
    end_tokens: &'a [u32],
    found: WindowResult,
    /// Logits of the allowed tokens before the next one, on the CPU.
    row: Vec<f32>,
    sum_logprobs: f64,
    count_logprobs: usize,
    count: usize,
}

impl TokenSink for WindowSink<'_> {
    fn check(&mut self) -> Result<ControlFlow<()>> {
        self.text.abort.check("transcribing").map(Continue)
    }

    fn mask(&mut self, logits: &[f32]) -> Option<Vec<u32>> {
        self.row.clear();
        self.row.extend_from_slice(logits);
        self.rules
            .mask_logits(&mut self.row, &self.found.ids, self.text.times);
        let mut mask = vec![0u32; logits.len().div_ceil(32)];
        for (id, _) in self.row.iter().enumerate().filter(|(_, v)| v.is_finite()) {
            mask[id / 32] |= 1 << (id % 32);
        }
        Some(mask)
    }

    async fn take(&mut self, tokens: &[u32], logits: Option<&[f32]>) -> Result<ControlFlow<()>> {
        self.count += tokens.len();
        if logits.is_some() {
            // The log-probability among the allowed tokens.
            log_softmax(&mut self.row);
            let logprobs = tokens.iter().filter_map(|id| self.row.get(*id as usize));
            self.sum_logprobs += logprobs.map(|p| f64::from(*p)).sum::<f64>();
            self.count_logprobs += tokens.len();
        }
        let ended = tokens.iter().position(|id| self.end_tokens.contains(id));
        let ids = &mut self.found.ids;
        ids.extend(&tokens[..ended.unwrap_or(tokens.len())]);
        if logits.is_some() && ended.is_some() {
            return Ok(Break(()));
        }
        if let Some(keep) = repetition::find_repetition(ids).filter(|_| !self.text.times) {
            ids.truncate(keep);
            return Ok(Break(()));
        }
        self.text.emit(ids);
        let is_over = ended.is_some();
        Ok(if is_over { Break(()) } else { Continue(()) })
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
        let pipeline = if exact {
            None
        } else {
            self.session.prepare_sampling(&sampler, false).await?
        };
        let mut sink = WindowSink {
            text,
            rules: &self.rules,
            end_tokens: &self.end_tokens,
            found: WindowResult::default(),
            row: Vec::new(),
            sum_logprobs: 0.0,
            count_logprobs: 0,
            count: 0,
        };
        // The first token may have rules of its own.
        let first_on_cpu = usize::from(!self.rules.begin_suppress.is_empty());
        let limit = text.max_tokens;
        let stops = &self.end_tokens;
        TokenLoop::new(&mut self.session, &mut sampler, pipeline, stops, limit)
            .first_on_cpu(first_on_cpu)
            .run(&mut sink)
            .await?;
        let WindowSink {
            mut found,
            sum_logprobs,
            count_logprobs,
            count,
            ..
        } = sink;
        let all_read = count > 0 && count_logprobs == count;
        found.mean_logprob = all_read.then(|| sum_logprobs / count as f64);
        Ok(found)
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
