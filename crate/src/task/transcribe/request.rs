//! Transcription request and progress events, with the JavaScript API's field names.

use crate::Result;
use crate::sample::SAMPLING_OPTIONS;
use crate::schema::{MAX_SAFE_INTEGER, OptionValue, request_options};
use crate::task::request::parse_request;
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

request_options! {
    /// A transcription request.
    pub struct TranscribeRequest, TRANSCRIBE_OPTIONS {
        /// Language code or English name.
        language: Option<String> = None => RequestOption::text()
            .default("detected")
            .of(&[Api::Transcribe, Api::Listen, Api::Transcriptions]);
        /// Translates into English.
        translate: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Transcribe, Api::Listen]);
        /// Timestamp granularity: `segment` from the model's timestamp tokens, `word` from cross-attention.
        timestamps: TimestampMode = TimestampMode::None => RequestOption::one_of(&["none", "segment", "word"])
            .default("none")
            .of(&[Api::Transcribe]);
        /// Text before the audio: names and spellings to expect.
        prompt: Option<String> = None => RequestOption::text()
            .default("none")
            .of(&[Api::Transcribe, Api::Listen, Api::Transcriptions]);
        /// First decoder tokens, instead of those of language, task and prompt.
        ids: Option<Vec<u32>> = None => RequestOption::new(OptionType::TokenIds);
        /// A temperature, or a list of fallbacks for doubtful results.
        temperatures: Vec<f64> = Vec::new() => RequestOption::numbers(MIN_TEMPERATURE, MAX_TEMPERATURE)
            .public_name("temperature")
            .default("0")
            .of(&[Api::Transcribe, Api::Transcriptions]);
        /// Beam search width.
        beams: usize = 1 => RequestOption::integer(1.0, 16.0)
            .default("1")
            .of(&[Api::Transcribe]);
        /// Exponent of the length that divides a beam's score.
        length_penalty: f32 = 1.0 => RequestOption::new(OptionType::Number);
        /// Maximum tokens per audio window.
        max_tokens: Option<usize> = None => RequestOption::count(1.0)
            .default("the model's")
            .of(&[Api::Transcribe]);
        /// Transcribes speech regions only. Requires `vad` of `loadModel`.
        vad: Option<bool> = None => RequestOption::boolean()
            .default("for long audio")
            .of(&[Api::Transcribe]);
        /// Adds log-probabilities to segments.
        logprobs: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Transcribe]);
        /// Sampling seed.
        seed: Option<u64> = None => RequestOption::integer(0.0, MAX_SAFE_INTEGER);
        /// Emits partial text during decoding.
        partials: bool = false => RequestOption::boolean();
    }
}

/// The bounds of the sampling option `temperature`.
const MIN_TEMPERATURE: f64 = SAMPLING_OPTIONS[0].min;
const MAX_TEMPERATURE: f64 = SAMPLING_OPTIONS[0].max;

impl OptionValue for TimestampMode {}

impl TranscribeRequest {
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
        self.check_bounds()?;
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
