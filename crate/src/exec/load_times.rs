//! Where a load's time went, and what it took of memory. Knows a clock and counters, no file and no kernel.

use crate::util::clock::now_ms;
use serde::Serialize;

/// A load by what its time went into. `reading_ms`, `writing_ms`, `transcoding_ms`, `tuning_ms` and `compiling_ms` are times in which
/// nothing else of it went on; the rest of `total_ms` is planning and allocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadTimes {
    /// From the opened files to a model that can run.
    pub total_ms: f64,
    /// Waiting for bytes from the network, the cache or the disk.
    pub reading_ms: f64,
    /// Handing bytes to the device as they are.
    pub writing_ms: f64,
    /// Transcoding and quantizing: the CPU's part, recording the GPU's, waiting for the GPU.
    pub transcoding_ms: f64,
    /// Waiting for the measurement of which kernels are the fastest: what of it did not pass while the first bytes came.
    pub tuning_ms: f64,
    /// Waiting for kernels.
    pub compiling_ms: f64,
    /// Until the model's own kernels were there; in a browser most of it passes beside the rest.
    pub kernels_ms: f64,
    /// Bytes that came from the source.
    pub bytes: u64,
    /// Peak bytes allocated on the device.
    pub peak_bytes: u64,
}

/// A stopwatch whose laps are added to parts of a load.
pub(super) struct Lap(f64);

impl Lap {
    /// Begins now.
    pub fn start() -> Self {
        Self(now_ms())
    }

    /// Milliseconds since the start or the last lap.
    pub fn lap(&mut self) -> f64 {
        let now = now_ms();
        now - std::mem::replace(&mut self.0, now)
    }
}
