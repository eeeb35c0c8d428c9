//! What a speech is asked for, in the names of the JavaScript face, and what it came to.

use crate::sample::Overrides;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SpeakRequest {
    /// The text.
    pub input: String,
    /// The tokens before the codes, instead of those that the text makes.
    pub ids: Option<Vec<u32>>,
    /// A name or language that the model knows, set before the text.
    pub voice: Option<String>,
    /// A speaker's vector, for models that take one.
    pub speaker: Option<Vec<f32>>,
    /// The most codes.
    pub max_tokens: Option<usize>,
    /// Let only codes of the next codebook come, which the processor looks after: slower.
    pub grammar: bool,
    /// Go on after the end of speech: for benchmarks.
    pub ignore_end: bool,
    /// How codes are drawn.
    #[serde(flatten)]
    pub sampling: Overrides,
}

impl SpeakRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// `Request` that says which field is wrong.
    pub fn from_json(text: &str) -> Result<Self> {
        let refuse = |e: serde_json::Error| Error::Request { parameter: "request".into(), reason: e.to_string() };
        serde_json::from_str::<Self>(text).map_err(refuse)?.checked()
    }

    /// Refuses what cannot be.
    ///
    /// # Errors
    /// `Request` that says which field is wrong.
    pub fn checked(self) -> Result<Self> {
        let refuse = |parameter: &str, reason: String| Err(Error::Request { parameter: parameter.into(), reason });
        if self.ids.is_none() && self.input.trim().is_empty() {
            return refuse("input", "there is no text to speak".into());
        }
        if self.ids.as_ref().is_some_and(Vec::is_empty) {
            return refuse("ids", "there is no token".into());
        }
        Ok(self)
    }
}

/// What a speech came to.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spoken {
    /// Frames that sounded.
    pub frames: usize,
    /// Frames that were left out because their codes came out of turn.
    pub dropped: usize,
    /// Seconds of the sound.
    pub seconds: f64,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// Milliseconds to the first sound.
    pub first_ms: Option<f64>,
    /// Milliseconds of all.
    pub total_ms: f64,
    /// The tokens of the codes.
    pub ids: Vec<u32>,
}
