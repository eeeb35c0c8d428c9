//! Synthesis request and result, with the JavaScript API's field names.

use crate::sample::SamplingOptions;
use crate::schema::request_options;
use crate::task::request::parse_request;
use crate::{Error, Result};
use serde::Serialize;
use std::borrow::Cow;

request_options! {
    /// A synthesis request.
    pub struct SpeakRequest, SPEAK_OPTIONS {
        /// Text to synthesize.
        input: String = String::new() => RequestOption::text();
        /// Prompt ids, instead of those of `input`.
        ids: Option<Vec<u32>> = None => RequestOption::new(OptionType::TokenIds);
        /// Name of a voice or language that the model knows, put before the text unchecked; empty for none.
        voice: Option<String> = None => RequestOption::text();
        /// Speaker embedding, for models that support it.
        speaker: Option<Vec<f32>> = None => RequestOption::new(OptionType::Vector);
        /// Maximum codec tokens; four of them form a frame.
        max_tokens: Option<usize> = None => RequestOption::count(1.0)
            .default("the rest of the context")
            .of(&[Api::Speech]);
        /// Allows only valid codec tokens for the current codebook: slower, but robust against model errors.
        grammar: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Speech]);
        /// Continues after the end-of-speech token, for benchmarks.
        ignore_end: bool = false => RequestOption::boolean();
    }
    with {
        /// Sampling parameters.
        #[serde(flatten)]
        sampling: SamplingOptions;
    }
}

impl SpeakRequest {
    /// Parses a request from JSON.
    ///
    /// # Errors
    /// `Request`, which names the wrong field.
    pub fn from_json(text: &str) -> Result<Self> {
        parse_request::<Self>(text)?.checked()
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
        self.check_bounds()?;
        Ok(self)
    }

    /// Returns the text of the prompt: the voice's name, unless it is empty, and the input.
    pub(super) fn spoken_text(&self) -> Cow<'_, str> {
        match self
            .voice
            .as_deref()
            .filter(|voice| !voice.trim().is_empty())
        {
            Some(voice) => format!("{voice}: {}", self.input).into(),
            None => self.input.as_str().into(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_voice_is_none() {
        for (fields, spoken) in [
            (r#"{ "input": "Hello." }"#, "Hello."),
            (r#"{ "input": "Hello.", "voice": "" }"#, "Hello."),
            (r#"{ "input": "Hello.", "voice": " " }"#, "Hello."),
            (r#"{ "input": "Hello.", "voice": "anna" }"#, "anna: Hello."),
        ] {
            assert_eq!(
                SpeakRequest::from_json(fields).unwrap().spoken_text(),
                spoken
            );
        }
    }
}
