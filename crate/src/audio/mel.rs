//! Tables of Whisper's log-mel features: window, rotations of the Fourier transform, filters. What is done with them is in
//! shaders/sound/mel.wgsl and reference/sound.rs. The features: periodic Hann window of 400 samples, every 160 samples, centred
//! with the ends reflected, power, Slaney's mel scale and normalization, log10.

use std::f64::consts::TAU;

/// Samples of a window.
pub const WINDOW: usize = 400;
/// Samples from a frame to the next.
pub const HOP: usize = 160;
/// Frequencies of a window's transform.
pub const BINS: usize = WINDOW / 2 + 1;
/// Least power, before the logarithm.
pub const FLOOR: f32 = 1e-10;

/// Cosine and sine of each 400th of the circle, and the window's weight of that sample.
pub fn table() -> Vec<[f32; 3]> {
    let entry = |i: usize| {
        let (sin, cos) = (TAU * i as f64 / WINDOW as f64).sin_cos();
        [cos as f32, sin as f32, (0.5 - 0.5 * cos) as f32]
    };
    (0..WINDOW).map(entry).collect()
}

/// Frequencies in Hz as mels after Slaney: linear up to 1000 Hz, logarithmic from there.
fn mel(hz: f64) -> f64 {
    if hz < 1000.0 { hz * 3.0 / 200.0 } else { 15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

fn hz(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}

/// Triangles over the frequencies, `[mels][BINS]`, each of area 1 over its band in Hz.
pub fn filters(mels: usize) -> Vec<f32> {
    let top = mel(8000.0);
    let edges: Vec<f64> = (0..mels + 2).map(|i| hz(top * i as f64 / (mels + 1) as f64)).collect();
    let mut out = Vec::with_capacity(mels * BINS);
    for m in 0..mels {
        let (low, mid, high) = (edges[m], edges[m + 1], edges[m + 2]);
        out.extend((0..BINS).map(|k| {
            let f = 8000.0 * k as f64 / (BINS - 1) as f64;
            let slope = ((f - low) / (mid - low)).min((high - f) / (high - mid)).max(0.0);
            (slope * 2.0 / (high - low)) as f32
        }));
    }
    out
}

/// The sample that a place before the beginning or after the end of `count` samples stands for: ends are mirrored.
pub fn mirrored(at: isize, count: usize) -> usize {
    let last = count as isize - 1;
    let at = if at < 0 { -at } else { at };
    (if at > last { 2 * last - at } else { at }).clamp(0, last) as usize
}
