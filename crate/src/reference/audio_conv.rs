//! CPU reference of shaders/audio: convolutions, Snake, group norm over time and Whisper's log-mel
//! features, in f64.

use crate::audio::mel::{BINS, HOP, MIN_POWER, WINDOW, filters, mirror_index};
use std::f64::consts::TAU;

/// Computes log-mel features `[frames, mels]` of samples zero-padded to `total`, one frame per 160
/// samples.
pub fn log_mel(samples: &[f32], total: usize, mels: usize) -> Vec<f32> {
    let filters = filters(mels);
    let turn: Vec<(f64, f64)> = (0..WINDOW)
        .map(|i| (TAU * i as f64 / WINDOW as f64).sin_cos())
        .collect();
    let frames = total / HOP;
    let mut out = Vec::with_capacity(frames * mels);
    for frame in 0..frames {
        let start = (frame * HOP) as isize - (WINDOW / 2) as isize;
        let x: Vec<f64> = (0..WINDOW)
            .map(|j| {
                let sample = samples
                    .get(mirror_index(start + j as isize, total))
                    .copied()
                    .unwrap_or(0.0);
                f64::from(sample) * (0.5 - 0.5 * turn[j].1)
            })
            .collect();
        let power: Vec<f64> = if x.iter().all(|v| *v == 0.0) {
            vec![0.0; BINS]
        } else {
            (0..BINS).map(|k| bin(&x, &turn, k)).collect()
        };
        out.extend((0..mels).map(|m| {
            let energy: f64 = filters[m * BINS..][..BINS]
                .iter()
                .zip(&power)
                .map(|(f, p)| f64::from(*f) * p)
                .sum();
            energy.max(f64::from(MIN_POWER)).log10()
        }));
    }
    let least = out.iter().copied().fold(f64::MIN, f64::max) - 8.0;
    out.into_iter()
        .map(|v| ((v.max(least) + 4.0) / 4.0) as f32)
        .collect()
}

/// Returns the power of one frequency bin.
fn bin(x: &[f64], turn: &[(f64, f64)], k: usize) -> f64 {
    let mut re = 0.0;
    let mut im = 0.0;

    for (j, v) in x.iter().enumerate() {
        let (sin, cos) = turn[j * k % WINDOW];
        re += v * cos;
        im += v * sin;
    }
    re * re + im * im
}

/// A direct convolution over rows of `cols` columns.
#[derive(Debug, Clone, Copy)]
pub struct Conv1dReference<'a> {
    /// Columns of the input.
    pub cols: usize,
    /// Kernel size.
    pub kernel_size: usize,
    /// Stride between windows in rows.
    pub stride: usize,
    /// Dilation in rows.
    pub dilation: usize,
    /// Zero rows before and after the input.
    pub padding: [usize; 2],
    /// `[outputs][cols][taps]`.
    pub weight: &'a [f32],
    /// `[outputs]`.
    pub bias: Option<&'a [f32]>,
}

impl Conv1dReference<'_> {
    /// Computes the output rows.
    pub fn of(&self, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.cols;
        let span = (self.kernel_size - 1) * self.dilation + 1;
        let windows = (rows + self.padding[0] + self.padding[1])
            .checked_sub(span)
            .map_or(0, |n| n / self.stride + 1);
        let outputs = self.weight.len() / self.cols / self.kernel_size;
        let mut y = Vec::with_capacity(windows * outputs);
        for window in 0..windows {
            for o in 0..outputs {
                let mut sum = self.bias.map_or(0.0, |b| f64::from(b[o]));
                for tap in 0..self.kernel_size {
                    let row =
                        (window * self.stride + tap * self.dilation).checked_sub(self.padding[0]);
                    let Some(row) = row.filter(|r| *r < rows) else {
                        continue;
                    };
                    for c in 0..self.cols {
                        let w = self.weight[(o * self.cols + c) * self.kernel_size + tap];
                        sum += f64::from(x[row * self.cols + c]) * f64::from(w);
                    }
                }
                y.push(sum as f32);
            }
        }
        y
    }
}

/// A causal grouped transposed convolution: `weight [inputs][outputs / groups][taps]`, `rate`
/// output rows per input row.
pub fn conv_transpose1d(
    x: &[f32],
    inputs: usize,
    groups: usize,
    taps: usize,
    rate: usize,
    weight: &[f32],
    bias: &[f32],
) -> Vec<f32> {
    let rows = x.len() / inputs;
    let outputs = bias.len();

    let own = outputs / groups;
    let fan = inputs / groups;

    let mut y: Vec<f64> = (0..rows * rate)
        .flat_map(|_| bias.iter().map(|b| f64::from(*b)))
        .collect();
    for row in 0..rows {
        for i in 0..inputs {
            for o in 0..own {
                for tap in 0..taps.min((rows - row) * rate) {
                    let w = f64::from(weight[(i * own + o) * taps + tap]);
                    y[(row * rate + tap) * outputs + i / fan * own + o] +=
                        f64::from(x[row * inputs + i]) * w;
                }
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}

/// Snake of the first columns, one per `alpha`; leaky ReLU of the others.
pub fn snake(x: &[f32], cols: usize, alpha: &[f32]) -> Vec<f32> {
    let one = |(i, v): (usize, &f32)| {
        let v = f64::from(*v);
        match alpha.get(i % cols) {
            Some(a) => v + (f64::from(*a) * v).sin().powi(2) / (f64::from(*a) + 1e-9),
            None => v.max(0.01 * v),
        }
    };
    x.iter().enumerate().map(one).map(|v| v as f32).collect()
}

/// Norm of column groups over all rows.
pub fn group_norm(x: &[f32], groups: usize, eps: f32, gain: &[f32], bias: &[f32]) -> Vec<f32> {
    let cols = gain.len();
    let wide = cols / groups;
    let moments = |g: usize| {
        let of = || {
            x.iter()
                .enumerate()
                .filter(move |(i, _)| i % cols / wide == g)
                .map(|(_, v)| f64::from(*v))
        };
        let count = of().count() as f64;
        let mean = of().sum::<f64>() / count;
        (
            mean,
            1.0 / (of().map(|v| (v - mean).powi(2)).sum::<f64>() / count + f64::from(eps)).sqrt(),
        )
    };
    let moments: Vec<(f64, f64)> = (0..groups).map(moments).collect();

    x.iter()
        .enumerate()
        .map(|(i, v): (usize, &f32)| {
            let (mean, factor) = moments[i % cols / wide];
            ((f64::from(*v) - mean) * factor * f64::from(gain[i % cols])
                + f64::from(bias[i % cols])) as f32
        })
        .collect()
}
