//! Sound files of the command line.

use crate::options::{Result, told};
use jerboa::audio::{RATE, resample::resample, wav};

/// The samples of a WAV file at the rate of models that hear.
pub fn read(file: &str) -> Result<Vec<f32>> {
    let bytes = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
    Ok(resample(wav::read(&bytes, file).map_err(told)?, RATE).samples)
}
