//! Audio files of the command line.

use crate::options::{Result, format_error};
use jerboa::audio::{SAMPLE_RATE, resample::resample, wav};

/// Reads a WAV file and resamples it to the rate of speech models.
pub fn read(file: &str) -> Result<Vec<f32>> {
    let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
    Ok(resample(wav::read(&bytes, file).map_err(format_error)?, SAMPLE_RATE).samples)
}
