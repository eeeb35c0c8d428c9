//! Quantizes unquantized weights to affine codes on load: the CPU reference of
//! shaders/transcode/quantize.wgsl.
//!
//! Groups of 32 with f16 scale and bias. The range of a group is clipped by 0, 1, 2 or 4 quarters
//! of a step at either end. With 4 bits a line is then fitted to the codes of each clipping, up to
//! three times. The pair with the smallest squared error wins. Every choice compares integers or
//! values that are rounded once. The GPU, whose division is inexact and whose additions may be
//! fused, therefore computes the same bits.

use super::layout::{AffineForm, Float, PackedMatrix, WeightLayout};
use half::f16;

/// Line fits per clipping; each starts from the codes of the previous one.
const MAX_LINE_FITS: usize = 3;

/// The smallest normal and the smallest subnormal f16: 2^-14 and 2^-24.
const SMALLEST_NORMAL: f32 = 1.0 / 16_384.0;
const SMALLEST_SUBNORMAL: f32 = 1.0 / 16_777_216.0;
/// 2^-40. Below this scale all weights of a group round to the same f16, and a GPU may flush the
/// range to 0.
const SMALLEST_SPREAD: f32 = 1.0 / 1_099_511_627_776.0;

/// The target layout for 4 or 8 bits.
pub fn layout(bits: u8) -> WeightLayout {
    WeightLayout::Affine {
        bits,
        group: 32,
        form: AffineForm::Bias,
        scale: Float::F16,
    }
}

/// The step size of a range of 1.
pub fn quantization_step(bits: u8) -> f32 {
    1.0 / ((1u32 << bits) - 1) as f32
}

/// Quantizes a matrix; `value` returns element (row, column).
pub fn quantize(
    bits: u8,
    rows: usize,
    cols: usize,
    value: impl Fn(usize, usize) -> f32,
) -> PackedMatrix {
    let mut out = PackedMatrix::zeros(layout(bits), rows, cols);
    for row in 0..rows {
        for block in 0..cols.div_ceil(32) {
            let n = (cols - block * 32).min(32);
            let x: Vec<f32> = (0..n)
                .map(|i| value(row, block * 32 + i).clamp(-65504.0, 65504.0))
                .collect();
            let (scale, bias) = best_pair(&x, bits);
            let mut codes = [0u8; 32];
            for (code, v) in codes.iter_mut().zip(&x) {
                *code = nearest_code(*v, scale, bias, bits) as u8;
            }
            out.set_codes(row, block, &codes);
            out.set_pair(row, block, (scale, bias));
        }
    }
    out
}

fn best_pair(x: &[f32], bits: u8) -> (f32, f32) {
    let low = x.iter().copied().fold(3.0e38, f32::min);
    let high = x.iter().copied().fold(-3.0e38, f32::max);
    let range = high - low;
    let quarter = range * quantization_step(bits) * 0.25;
    // Errors are in units of 2^(exponent of the range - 12), or - 16 with 8 bits.
    let exponent = (range.to_bits() >> 23).max(1);
    let fine = if bits == 8 { 16 } else { 12 };
    let unit = f32::from_bits((254 + fine - exponent).clamp(1, 254) << 23);
    let mut best = (u32::MAX, (0.0, 0.0));
    let mut offer = |pair: (f32, f32)| {
        let error = x.iter().fold(0u32, |sum, v| {
            let q = nearest_code(*v, pair.0, pair.1, bits) as f32;
            let e = ((v - (q * pair.0 + pair.1)).abs() * unit)
                .round_ties_even()
                .min(8191.0) as u32;
            sum.wrapping_add(e * e)
        });
        if error < best.0 {
            best = (error, pair);
        }
    };
    for clip in 0..16u32 {
        let low_c = low + ((1u32 << (clip & 3)) >> 1) as f32 * quarter;
        let high_c = high - ((1u32 << (clip >> 2)) >> 1) as f32 * quarter;
        let mut pair = (
            f16_scale((high_c - low_c) * quantization_step(bits)),
            f16::from_f32(low_c).to_f32(),
        );
        offer(pair);
        // Sums of 8-bit codes would overflow 32 bits; 8 bits do not need the fit.
        let fits = if bits == 4 && (32..223).contains(&exponent) {
            MAX_LINE_FITS
        } else {
            0
        };
        for _ in 0..fits {
            match fit_line(x, low, pair, unit) {
                Some(better) if better != pair => pair = better,
                _ => break,
            }
            offer(pair);
        }
    }
    best.1
}

/// Rounds a scale to f16: to the next larger value where f16 is subnormal.
///
/// Subnormals are multiples of 2^-24, so a scale rounded down could leave much of the range above
/// the largest code, or become 0. A larger scale spans the range and costs less than one multiple.
fn f16_scale(scale: f32) -> f32 {
    if scale < SMALLEST_SPREAD {
        0.0
    } else if scale < SMALLEST_NORMAL {
        (scale / SMALLEST_SUBNORMAL).ceil() * SMALLEST_SUBNORMAL
    } else {
        f16::from_f32(scale).to_f32()
    }
}

/// Fits a least-squares line through the codes of a pair, in integers of 1 / `unit` above `low`.
fn fit_line(x: &[f32], low: f32, pair: (f32, f32), unit: f32) -> Option<(f32, f32)> {
    let n = x.len() as i32;
    let mut q1 = 0i32;
    let mut q2 = 0i32;
    let mut x1 = 0i32;
    let mut qx = 0i32;

    for v in x {
        let q = nearest_code(*v, pair.0, pair.1, 4) as i32;
        let at = ((v - low) * unit).round_ties_even() as i32;
        (q1, q2, x1, qx) = (q1 + q, q2 + q * q, x1 + at, qx + q * at);
    }
    let square = n * q2 - q1 * q1;
    let slope = n * qx - q1 * x1;
    let start = x1 * q2 - q1 * qx;

    if square <= 0 || slope <= 0 {
        return None;
    }
    let sixteenths = (slope as u32 * 16 + square as u32 / 2) / square as u32;
    let half = if start < 0 { -(square / 2) } else { square / 2 };
    let start = (start + half) / square;
    if start.abs() > 1 << 20 {
        return None;
    }
    let inverse = 1.0 / unit;
    let scale = f16::from_f32(sixteenths as f32 * 0.0625 * inverse).to_f32();
    Some((scale, f16::from_f32(low + start as f32 * inverse).to_f32()))
}

/// The code whose value is nearest to `v`; the smaller one on ties.
fn nearest_code(v: f32, scale: f32, bias: f32, bits: u8) -> u32 {
    let steps = (1i32 << bits) - 1;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let guess = ((v - bias) * inverse)
        .round_ties_even()
        .clamp(0.0, steps as f32) as i32;
    let error = |code: i32| (v - (code as f32 * scale + bias)).abs();
    let mut best = (guess - 1).max(0);
    for code in best + 1..=(guess + 1).min(steps) {
        if error(code) < error(best) {
            best = code;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::dequant::dequant;

    /// Groups whose scale is a subnormal f16, or below all of them, keep their values apart: the
    /// error is at most that of rounding to the spacing of subnormals.
    #[test]
    fn tiny_groups_span_their_range() {
        let mut seed = 9u32;
        let noise: Vec<f32> = (0..32)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect();
        for bits in [4, 8] {
            for exponent in 6..40 {
                let size = 0.5f32.powi(exponent);
                let packed = quantize(bits, 1, 32, |_, i| noise[i] * size);
                let (low, high) = noise
                    .iter()
                    .fold((1.0f32, -1.0f32), |(l, h), v| (l.min(*v), h.max(*v)));
                let step = (high - low) * size * quantization_step(bits);
                // Half a step of a scale rounded up, and a bias rounded to nearest.
                let limit = 0.5 * step + SMALLEST_SUBNORMAL + low.abs() * size / 2048.0;
                let found = dequant(&packed);
                let squares = found
                    .iter()
                    .zip(&noise)
                    .map(|(found, v)| (found - v * size).powi(2));
                let error = (squares.sum::<f32>() / 32.0).sqrt();
                assert!(
                    error <= limit,
                    "q{bits}, 2^-{exponent}: {error:e} > {limit:e}"
                );
            }
        }
    }

    #[test]
    fn subnormal_scales_round_up() {
        for (scale, expected) in [
            (0.0, 0.0),
            (SMALLEST_SPREAD / 2.0, 0.0),
            (SMALLEST_SPREAD, SMALLEST_SUBNORMAL),
            (0.3 * SMALLEST_SUBNORMAL, SMALLEST_SUBNORMAL),
            (SMALLEST_SUBNORMAL, SMALLEST_SUBNORMAL),
            (1.3 * SMALLEST_SUBNORMAL, 2.0 * SMALLEST_SUBNORMAL),
            (1022.5 * SMALLEST_SUBNORMAL, 1023.0 * SMALLEST_SUBNORMAL),
            (1023.5 * SMALLEST_SUBNORMAL, SMALLEST_NORMAL),
            (SMALLEST_NORMAL, SMALLEST_NORMAL),
            (1.0003, 1.0),
        ] {
            assert_eq!(f16_scale(scale), expected, "{scale:e}");
            assert_eq!(f16::from_f32(expected).to_f32(), expected);
        }
    }
}
