//! Audio processing around a model: files, sample rates, features, voice activity, transcription
//! rules and output formats. Does not depend on graphs, the GPU or a tokenizer.

pub mod beam;
pub mod codec_tokens;
pub mod dtw;
pub mod fsq;
pub mod languages;
pub mod mel;
pub mod overlap;
pub mod repetition;
#[cfg(not(target_arch = "wasm32"))]
pub mod resample;
pub mod stream_vad;
pub mod subtitles;
pub mod vad;
pub mod wav;
pub mod whisper;

use crate::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// Sample rate of speech-to-text models, in Hz.
pub const SAMPLE_RATE: u32 = 16_000;

/// Mono audio.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioClip {
    /// Sample rate in Hz.
    pub rate: u32,
    /// Samples, usually in [-1, 1].
    pub samples: Vec<f32>,
}

impl AudioClip {
    /// Duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}

/// Samples that are read window by window, so that hours of audio stay where they are.
pub trait SampleReader {
    /// Number of samples.
    fn count(&self) -> usize;
    /// Samples of a range.
    fn read(&self, range: Range<usize>) -> Cow<'_, [f32]>;
}

impl SampleReader for &[f32] {
    fn count(&self) -> usize {
        self.len()
    }

    fn read(&self, range: Range<usize>) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self[range])
    }
}

/// Rejects audio without samples and samples that are NaN or infinite.
///
/// # Errors
/// `Request`, with the name `parameter`.
pub fn check_samples(samples: &[f32], parameter: &str) -> Result<()> {
    let refuse = |reason: &str| {
        Err(Error::Request {
            parameter: parameter.into(),
            reason: reason.into(),
        })
    };
    if samples.is_empty() {
        return refuse("the audio has no samples. Check the recording or the file.");
    }
    if samples.iter().any(|s| !s.is_finite()) {
        return refuse("some samples are NaN or infinite. Check how the audio was decoded.");
    }
    Ok(())
}
