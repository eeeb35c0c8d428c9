//! Resizing of 8-bit images with antialiasing, bit-exact with torchvision's
//! `resize(antialias=True)` on uint8 tensors: 16-bit fixed-point weights, horizontal pass first,
//! rounded to 8 bits between the passes. Source: ATen `UpSampleKernel.cpp` and
//! `UpSampleKernelAVXAntialias.h`, which follow Pillow's `Resample.c`.

use super::rgb_image::RgbImage;
use std::f64::consts::PI;

/// Interpolation filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeFilter {
    /// Triangle filter.
    Bilinear,
    /// Keys' cubic filter with a = -0.5.
    Bicubic,
    /// Lanczos filter with three lobes.
    Lanczos,
}

impl ResizeFilter {
    /// Parses the number in preprocessor_config.json (Pillow's `Resampling`).
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Lanczos,
            2 => Self::Bilinear,
            3 => Self::Bicubic,
            _ => return None,
        })
    }

    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Returns the (input, weight) pairs of each of `to` outputs from `from` inputs.
    pub(super) fn weights(self, from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
        let (first, width, exact) = self.float_weights(from, to);

        first
            .into_iter()
            .zip(exact.chunks_exact(width))
            .map(|(first, weights): (u32, &[f64])| {
                let all = weights
                    .iter()
                    .enumerate()
                    .map(|(j, w)| (first as usize + j, *w as f32));
                all.filter(|(_, w)| *w != 0.0).collect()
            })
            .collect()
    }

    /// Returns the first input of each output, the maximum inputs per output `width`, and the
    /// weights `[to, width]`.
    fn float_weights(self, from: usize, to: usize) -> (Vec<u32>, usize, Vec<f64>) {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = self.support() * stretch;
        let width = (support.ceil() as usize * 2 + 1).min(from);
        let mut first = Vec::with_capacity(to);
        let mut exact = vec![0.0f64; to * width];
        for (i, weights) in exact.chunks_exact_mut(width).enumerate() {
            let center = scale * (i as f64 + 0.5);
            let low = ((center - support + 0.5) as i64).max(0);
            let high = ((center + support + 0.5) as i64).min(from as i64);
            let used = ((high - low).max(0) as usize).min(width);
            first.push(low as u32);
            for (j, w) in weights[..used].iter_mut().enumerate() {
                *w = self.weight(((j as i64 + low) as f64 - center + 0.5) / stretch);
            }
            let total: f64 = weights.iter().sum();
            if total != 0.0 {
                weights.iter_mut().for_each(|w| *w /= total);
            }
        }
        (first, width, exact)
    }

    fn weight(self, x: f64) -> f64 {
        let a = x.abs();
        let sinc = |x: f64| {
            if x == 0.0 {
                1.0
            } else {
                (x * PI).sin() / (x * PI)
            }
        };
        match self {
            Self::Bilinear if a < 1.0 => 1.0 - a,
            Self::Bicubic if a < 1.0 => (1.5 * a - 2.5) * a * a + 1.0,
            Self::Bicubic if a < 2.0 => (((a - 5.0) * a + 8.0) * a - 4.0) * -0.5,
            Self::Lanczos if a < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Fixed-point weights of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterTaps {
    /// Number of inputs.
    pub from: usize,
    /// Fractional bits of the weights.
    pub precision: u32,
    /// First input of each output.
    pub first: Vec<u32>,
    /// Weights per output, padded with zeros.
    pub width: usize,
    /// `[out, width]`.
    pub weights: Vec<i16>,
}

impl FilterTaps {
    /// Computes the weights of `to` outputs from `from` inputs.
    pub fn new(from: usize, to: usize, filter: ResizeFilter) -> Self {
        if from == to {
            return Self {
                from,
                precision: 0,
                first: (0..to as u32).collect(),
                width: 0,
                weights: Vec::new(),
            };
        }
        let (first, width, exact) = filter.float_weights(from, to);
        let largest = exact.iter().copied().fold(0.0f64, f64::max);
        // As many fractional bits as the largest weight leaves of 15.
        let precision = (0..22)
            .find(|p| (0.5 + largest * f64::from(1u32 << (p + 1))) as u32 >= 1 << 15)
            .unwrap_or(22);

        Self {
            from,
            precision,
            first,
            width,
            weights: exact
                .iter()
                .map(|w: &f64| (w * f64::from(1u32 << precision) + 0.5f64.copysign(*w)) as i16)
                .collect(),
        }
    }

    /// Returns the first input and the weights of output `i`.
    fn inputs(&self, i: usize) -> (usize, &[i16]) {
        let first = self.first[i] as usize;
        let weights = &self.weights[i * self.width..(i + 1) * self.width];
        (first, &weights[..self.width.min(self.from - first)])
    }

    fn rounded(&self, sum: i32) -> u8 {
        (sum >> self.precision).clamp(0, 255) as u8
    }

    /// Resizes one row of pixels of `channels` bytes and appends it as RGB.
    pub fn row(&self, row: &[u8], channels: usize, out: &mut Vec<u8>) {
        if self.width == 0 {
            let start = out.len();
            out.resize(start + row.len() / channels * 3, 0);
            for (to, from) in out[start..]
                .chunks_exact_mut(3)
                .zip(row.chunks_exact(channels))
            {
                (to[0], to[1], to[2]) = (from[0], from[1], from[2]);
            }
            return;
        }
        let half = 1i32 << (self.precision - 1);
        for i in 0..self.first.len() {
            let (first, weights) = self.inputs(i);
            let mut sum = [half; 3];
            for (pixel, w) in row[first * channels..].chunks_exact(channels).zip(weights) {
                for (s, value) in sum.iter_mut().zip(pixel) {
                    *s += i32::from(*value) * i32::from(*w);
                }
            }
            out.extend(sum.map(|s| self.rounded(s)));
        }
    }

    /// Resizes an image vertically.
    fn rows(&self, picture: &RgbImage) -> RgbImage {
        let pitch = picture.width * 3;
        let half = 1i32 << (self.precision - 1);
        let mut rgb = Vec::with_capacity(self.first.len() * pitch);
        let mut sums = vec![0i32; pitch];
        for i in 0..self.first.len() {
            let (first, weights) = self.inputs(i);
            sums.fill(half);
            for (row, w) in picture.rgb[first * pitch..]
                .chunks_exact(pitch)
                .zip(weights)
            {
                for (s, value) in sums.iter_mut().zip(row) {
                    *s += i32::from(*value) * i32::from(*w);
                }
            }
            rgb.extend(sums.iter().map(|s| self.rounded(*s)));
        }
        RgbImage {
            width: picture.width,
            height: self.first.len(),
            rgb,
        }
    }
}

/// Resizes an image.
pub fn resize(picture: &RgbImage, width: usize, height: usize, filter: ResizeFilter) -> RgbImage {
    let mut made = picture.clone();
    if width != picture.width {
        let taps = FilterTaps::new(picture.width, width, filter);
        let mut rgb = Vec::with_capacity(width * picture.height * 3);
        picture
            .rgb
            .chunks_exact(picture.width * 3)
            .for_each(|row| taps.row(row, 3, &mut rgb));
        made = RgbImage {
            width,
            height: picture.height,
            rgb,
        };
    }
    if height != made.height {
        made = FilterTaps::new(made.height, height, filter).rows(&made);
    }
    made
}
