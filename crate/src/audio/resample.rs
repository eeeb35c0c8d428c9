//! Native resampling with a windowed sinc per phase of the rate ratio, exact in time. Browsers use
//! OfflineAudioContext.

use super::AudioClip;
use std::f64::consts::PI;

/// Zero crossings of the sinc on each side, at the lower of the two rates.
const CROSSINGS: f64 = 32.0;
/// Passband as a fraction of the lower rate's band.
const BAND: f64 = 0.95;

/// Resamples audio to another rate. The duration does not change.
pub fn resample(sound: AudioClip, rate: u32) -> AudioClip {
    if sound.rate == rate || sound.rate == 0 {
        return sound;
    }
    let common = gcd(sound.rate, rate);
    let up = (rate / common) as usize;
    let down = (sound.rate / common) as usize;

    let cutoff = BAND * (up as f64 / down as f64).min(1.0);
    let half = (CROSSINGS / cutoff).ceil() as usize;
    let phases: Vec<Vec<f32>> = (0..up)
        .map(|phase| taps(phase as f64 / up as f64, half, cutoff))
        .collect();
    let count = (sound.samples.len() * up).div_ceil(down);
    // Pad with silence by the width of the filter.
    let mut padded = vec![0.0; half];
    padded.extend(&sound.samples);
    padded.resize(padded.len() + half + 2, 0.0);

    AudioClip {
        rate,
        samples: (0..count)
            .map(|n: usize| -> f32 {
                let taps = &phases[n * down % up];
                padded[n * down / up..]
                    .iter()
                    .zip(taps)
                    .map(|(x, w)| x * w)
                    .sum()
            })
            .collect(),
    }
}

/// Returns the weights of samples `-half` to `half + 1`, for a point `fraction` of a sample after
/// sample 0.
fn taps(fraction: f64, half: usize, cutoff: f64) -> Vec<f32> {
    let weight = |i: usize| {
        let x = i as f64 - half as f64 - fraction;
        let sinc = if x == 0.0 {
            1.0
        } else {
            (PI * cutoff * x).sin() / (PI * cutoff * x)
        };
        // Blackman window.
        let place = PI * (x / (half as f64 + 1.0)).clamp(-1.0, 1.0);
        sinc * (0.42 + 0.5 * place.cos() + 0.08 * (2.0 * place).cos())
    };
    let weights: Vec<f64> = (0..2 * half + 2).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| (w / sum) as f32).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_keeps_frequency_phase_and_length() {
        for rate in [8_000u32, 11_025, 22_050, 44_100, 48_000] {
            let tone = |rate: u32, i: usize| {
                (i as f64 * 440.0 * std::f64::consts::TAU / f64::from(rate)).sin() as f32
            };
            let samples = (0..rate as usize).map(|i| tone(rate, i)).collect();
            let found = resample(AudioClip { rate, samples }, 16_000);
            assert_eq!((found.rate, found.samples.len()), (16_000, 16_000));
            let error = (400..15_600)
                .map(|i| (found.samples[i] - tone(16_000, i)).abs())
                .fold(0.0, f32::max);
            assert!(error < 1e-4, "{rate} Hz: {error}");
        }
        let same = AudioClip {
            rate: 16_000,
            samples: vec![0.5; 10],
        };
        assert_eq!(resample(same.clone(), 16_000), same);
    }

    #[test]
    fn frequencies_above_the_lower_nyquist_are_removed() {
        let samples = (0..48_000)
            .map(|i| (f64::from(i) * 10_000.0 * std::f64::consts::TAU / 48_000.0).sin() as f32)
            .collect();
        let found = resample(
            AudioClip {
                rate: 48_000,
                samples,
            },
            16_000,
        );
        assert!(found.samples[400..15_600].iter().all(|v| v.abs() < 1e-3));
    }
}
