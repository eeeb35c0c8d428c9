//! Time and memory spent in each phase of a load.

use crate::util::clock::now_ms;
use serde::Serialize;

/// Times of a load by phase. `reading_ms`, `writing_ms`, `transcoding_ms`, `tuning_ms` and
/// `compiling_ms` are exclusive; the rest of `total_ms` is planning and allocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadTimes {
    /// From opened files to a runnable model.
    pub total_ms: f64,
    /// Waiting for bytes from the network, the cache or the disk.
    pub reading_ms: f64,
    /// Writing bytes to the device unchanged.
    pub writing_ms: f64,
    /// Transcoding and quantizing: CPU work, recording of GPU work, and waiting for it.
    pub transcoding_ms: f64,
    /// Waiting for autotuning, beyond the time in which the first bytes arrive.
    pub tuning_ms: f64,
    /// Waiting for kernels to compile.
    pub compiling_ms: f64,
    /// Time until the model's kernels were compiled; in browsers mostly parallel to the rest.
    pub kernels_ms: f64,
    /// Bytes read from the source.
    pub bytes: u64,
    /// Peak bytes allocated on the device.
    pub peak_bytes: u64,
}

/// Stopwatch for the phases of a load.
pub(super) struct Stopwatch(f64);

impl Stopwatch {
    /// Starts the stopwatch.
    pub fn start() -> Self {
        Self(now_ms())
    }

    /// Milliseconds since the start or the last lap.
    pub fn lap(&mut self) -> f64 {
        let now = now_ms();
        now - std::mem::replace(&mut self.0, now)
    }
}
