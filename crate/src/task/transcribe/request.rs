//! Transcription request and progress events, with the JavaScript API's field names.

use crate::sample::SamplingOption;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Granularity of timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimestampMode {
    /// Time ranges of windows.
    #[default]
    None,
    /// Segments, from the model's timestamp tokens.
    Segment,
    /// Segments and words; words from cross-attention weights.
    Word,
}

/// A transcription request.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TranscribeRequest {
    /// Language code or English name; None detects it.
    pub language: Option<String>,
    /// Translates into English.
    pub translate: bool,
    /// Granularity of timestamps.
    pub timestamps: TimestampMode,
    /// Text that conditions the decoder: names and spellings to expect.
    pub prompt: Option<String>,
    /// First decoder tokens, instead of those of language, task and prompt.
    pub ids: Option<Vec<u32>>,
    /// Temperatures, tried in order until a result is reliable; empty means 0 only.
    pub temperatures: Vec<f64>,
    /// Number of beams, 1 to 16; 1 means no beam search.
    pub beams: usize,
    /// Exponent of the length that divides a beam's score.
    pub length_penalty: f32,
    /// Maximum tokens per window; by default what its seconds or the model allow.
    pub max_tokens: Option<usize>,
    /// Whether to transcribe detected speech only; by default for audio longer than a window.
    pub vad: Option<bool>,
    /// Whether to return log-probabilities.
    pub logprobs: bool,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Whether to emit partial text during decoding.
    pub partials: bool,
}

impl Default for TranscribeRequest {
    fn default() -> Self {
        Self {
            language: None,
            translate: false,
            timestamps: TimestampMode::None,
            prompt: None,
            ids: None,
            temperatures: Vec::new(),
            beams: 1,
            length_penalty: 1.0,
            max_tokens: None,
            vad: None,
            logprobs: false,
            seed: None,
            partials: false,
        }
    }
}

impl TranscribeRequest {
    /// Parses a request from JSON.
    ///
    /// # Errors
    /// `Request`, which names the wrong field.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str::<Self>(text)
            .map_err(|e: serde_json::Error| Error::Request {
                parameter: "request".into(),
                reason: e.to_string(),
            })?
            .checked()
    }

    /// Validates the fields.
    ///
    /// # Errors
    /// `Request`, which names the wrong field.
    pub fn checked(self) -> Result<Self> {
        let refuse = |parameter: &str, reason: String| {
            Err(Error::Request {
                parameter: parameter.into(),
                reason,
            })
        };
        if !(1..=16).contains(&self.beams) {
            return refuse(
                "beams",
                format!("{} is out of range. Use 1 to 16.", self.beams),
            );
        }
        let temperature = SamplingOption::named("temperature")?;
        if let Some(wrong) = self.temperatures.iter().find(|t| !temperature.accepts(**t)) {
            let reason = format!(
                "{wrong} is out of range; it must be {}.",
                temperature.bounds()
            );
            return refuse("temperature", reason);
        }
        if self.max_tokens == Some(0) {
            return refuse("maxTokens", "0 is too small. Use at least 1.".into());
        }
        Ok(self)
    }

    /// Whether a result may be discarded, for a retry or as silence.
    pub(super) fn may_discard(&self) -> bool {
        self.temperatures().len() > 1 || self.logprobs
    }

    /// Returns the temperatures to try.
    pub(super) fn temperatures(&self) -> &[f64] {
        if self.temperatures.is_empty() {
            &[0.0]
        } else {
            &self.temperatures
        }
    }
}

/// A transcription event: a final segment, or the partial text after the last final segment.
/// Partial text replaces the previous partial text; a final segment replaces its beginning.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentEvent {
    /// Transcribed text.
    pub text: String,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Seconds of audio transcribed so far.
    pub done: f64,
    /// Total seconds of audio.
    pub total: f64,
    /// The final prefix of partial text; None for a final segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable: Option<String>,
}
