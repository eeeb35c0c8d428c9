//! Synthesis request and result, with the JavaScript API's field names.

use crate::sample::SamplingOptions;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A synthesis request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SpeakRequest {
    /// Text to synthesize.
    pub input: String,
    /// Prompt ids, instead of those of `input`.
    pub ids: Option<Vec<u32>>,
    /// Name of a voice or language that the model knows, put before the text.
    pub voice: Option<String>,
    /// Speaker embedding, for models that support it.
    pub speaker: Option<Vec<f32>>,
    /// Maximum codec tokens.
    pub max_tokens: Option<usize>,
    /// Allows only tokens of the next codebook. Slower, as the CPU writes a mask before each token.
    pub grammar: bool,
    /// Continues after the end-of-speech token, for benchmarks.
    pub ignore_end: bool,
    /// Sampling parameters.
    #[serde(flatten)]
    pub sampling: SamplingOptions,
}

impl SpeakRequest {
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
        if self.ids.is_none() && self.input.trim().is_empty() {
            return refuse("input", "there is no text. Give at least one word.".into());
        }
        if self.ids.as_ref().is_some_and(Vec::is_empty) {
            return refuse(
                "ids",
                "the list is empty. Give at least one token id.".into(),
            );
        }
        Ok(self)
    }
}

/// Result of a synthesis.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SynthesisResult {
    /// Frames decoded to audio.
    pub frames: usize,
    /// Frames dropped because their codebooks were out of order.
    pub dropped: usize,
    /// Seconds of audio.
    pub seconds: f64,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// Milliseconds to the first samples.
    pub first_ms: Option<f64>,
    /// Total milliseconds.
    pub total_ms: f64,
    /// Generated token ids.
    pub ids: Vec<u32>,
}
