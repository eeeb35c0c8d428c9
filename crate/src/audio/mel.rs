//! Tables of Whisper's log-mel features: window, DFT factors and mel filters, which
//! shaders/audio/mel.wgsl and reference/audio_conv.rs use. Features: periodic Hann window of 400
//! samples, hop of 160, centered with reflected ends, power, Slaney's mel scale and normalization,
//! log10.

use std::f64::consts::TAU;

/// Window length in samples.
pub const WINDOW: usize = 400;
/// Hop length in samples.
pub const HOP: usize = 160;
/// Frequency bins of a window's DFT.
pub const BINS: usize = WINDOW / 2 + 1;
/// Minimum power before the logarithm.
pub const MIN_POWER: f32 = 1e-10;

/// Returns cosine, sine and Hann weight for each of the 400 samples of a window.
pub fn window_table() -> Vec<[f32; 3]> {
    (0..WINDOW)
        .map(|i: usize| {
            let (sin, cos) = (TAU * i as f64 / WINDOW as f64).sin_cos();
            [cos as f32, sin as f32, (0.5 - 0.5 * cos) as f32]
        })
        .collect()
}

/// Converts Hz to Slaney's mel scale: linear up to 1000 Hz, logarithmic above.
fn mel(hz: f64) -> f64 {
    if hz < 1000.0 {
        hz * 3.0 / 200.0
    } else {
        15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f64.ln()
    }
}

fn hz(mel: f64) -> f64 {
    if mel < 15.0 {
        mel * 200.0 / 3.0
    } else {
        1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp()
    }
}

/// Returns the triangular mel filters, `[mels][BINS]`, each with area 1 over its band in Hz.
pub fn filters(mels: usize) -> Vec<f32> {
    let top = mel(8000.0);
    let edges: Vec<f64> = (0..mels + 2)
        .map(|i| hz(top * i as f64 / (mels + 1) as f64))
        .collect();
    let mut out = Vec::with_capacity(mels * BINS);
    for m in 0..mels {
        let low = edges[m];
        let mid = edges[m + 1];
        let high = edges[m + 2];

        out.extend((0..BINS).map(|k| {
            let f = 8000.0 * k as f64 / (BINS - 1) as f64;
            let slope = ((f - low) / (mid - low))
                .min((high - f) / (high - mid))
                .max(0.0);
            (slope * 2.0 / (high - low)) as f32
        }));
    }
    out
}

/// Mirrors an index outside of `0..count` back inside.
pub fn mirror_index(at: isize, count: usize) -> usize {
    let last = count as isize - 1;
    let at = if at < 0 { -at } else { at };
    (if at > last { 2 * last - at } else { at }).clamp(0, last) as usize
}
