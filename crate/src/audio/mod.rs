//! Sound before and after a model: files, rates, features, voice activity, the rules of transcription and its formats.
//! Knows samples, token ids and seconds; no graph, no GPU and no tokenizer.

pub mod beam;
pub mod codec;
pub mod dtw;
pub mod formats;
pub mod frames;
pub mod guard;
pub mod languages;
pub mod live;
pub mod mel;
#[cfg(not(target_arch = "wasm32"))]
pub mod resample;
pub mod seams;
pub mod vad;
pub mod wav;
pub mod whisper;

use crate::{Error, Result};

/// Samples a second of everything that the models here hear.
pub const RATE: u32 = 16_000;

/// One channel of sound.
#[derive(Debug, Clone, PartialEq)]
pub struct Sound {
    /// Samples a second.
    pub rate: u32,
    /// Samples, as a rule in [-1, 1].
    pub samples: Vec<f32>,
}

impl Sound {
    /// How long it is.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}

/// Refuses what no model could hear: no samples, or samples that are not numbers.
///
/// # Errors
/// `Request`, with `parameter` as the name that the caller knows.
pub fn check(samples: &[f32], parameter: &str) -> Result<()> {
    let refuse = |reason: &str| Err(Error::Request { parameter: parameter.into(), reason: reason.into() });
    if samples.is_empty() {
        return refuse("there is no sound in it: it has no samples.");
    }
    if samples.iter().any(|s| !s.is_finite()) {
        return refuse("some of its samples are not numbers.");
    }
    Ok(())
}
