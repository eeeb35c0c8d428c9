//! What a transcription is asked for, in the names of the JavaScript face, and what it tells on its way.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// How closely a transcript is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Times {
    /// By the windows that were heard at once.
    #[default]
    None,
    /// By the model's own time tokens.
    Segment,
    /// By words too, from what the decoder looked at.
    Word,
}

/// A request.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TranscribeRequest {
    /// Code or English name of the language; none has it detected.
    pub language: Option<String>,
    /// Translate into English.
    pub translate: bool,
    /// How closely it is timed.
    pub timestamps: Times,
    /// Text before the sound: names and spellings to expect.
    pub prompt: Option<String>,
    /// The decoder's first tokens, instead of those that language, task and prompt make.
    pub ids: Option<Vec<u32>>,
    /// Temperatures, each tried when the text before it is doubtful; none means 0 alone.
    pub temperatures: Vec<f64>,
    /// Texts that are followed at a time; 1 takes the likeliest token each time.
    pub beams: usize,
    /// The power of a text's length that divides its score among beams.
    pub length_penalty: f32,
    /// The most tokens of a window; by default what its seconds or the model allow.
    pub max_tokens: Option<usize>,
    /// Hear only where somebody speaks; by default in sound that is longer than a window.
    pub vad: Option<bool>,
    /// Whether log-probabilities are wanted.
    pub logprobs: bool,
    /// The seed of draws.
    pub seed: Option<u64>,
    /// Whether text is told while it is decoded, too.
    pub partials: bool,
}

impl Default for TranscribeRequest {
    fn default() -> Self {
        Self {
            language: None,
            translate: false,
            timestamps: Times::None,
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
        if !(1..=16).contains(&self.beams) {
            return refuse("beams", format!("{} is not a number from 1 to 16", self.beams));
        }
        if let Some(t) = self.temperatures.iter().find(|t| !(0.0..=2.0).contains(*t)) {
            return refuse("temperature", format!("{t} is not a number from 0 to 2"));
        }
        if self.max_tokens == Some(0) {
            return refuse("maxTokens", "0 tokens were asked for; ask for at least one".into());
        }
        Ok(self)
    }

    /// Whether a text may be thrown away: for another temperature, or because nobody speaks.
    pub(super) fn retries(&self) -> bool {
        self.temperatures().len() > 1 || self.logprobs
    }

    /// The temperatures to try.
    pub(super) fn temperatures(&self) -> &[f64] {
        if self.temperatures.is_empty() { &[0.0] } else { &self.temperatures }
    }
}

/// What was heard: a stretch of the transcript that will not change any more, or all of the text behind the last such stretch
/// as far as it is decoded. A partial text takes the place of the one before it, and a settled stretch that of its beginning.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Heard {
    /// What was said.
    pub text: String,
    /// Seconds.
    pub start: f64,
    /// Seconds.
    pub end: f64,
    /// Seconds of the sound that have been heard.
    pub done: f64,
    /// Seconds of all of it.
    pub total: f64,
    /// Of a partial text, how much of its beginning will not change any more; none for a settled stretch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable: Option<String>,
}
