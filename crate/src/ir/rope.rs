//! RoPE: frequencies and tables as in transformers' `modeling_rope_utils`, in f32.

use std::f64::consts::PI;
use std::ops::Range;

/// Frequency scaling of RoPE.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// base^(-2i/d).
    Default,
    /// Rotates only the first pairs of a head, with the frequencies of the whole head (Gemma 4).
    Proportional {
        /// Rotated pairs.
        pairs: usize,
    },
    /// Divides positions by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Dynamic NTK: the base grows with the sequence length.
    Dynamic {
        /// The factor.
        factor: f64,
        /// Maximum length with the original base.
        max_position: usize,
    },
    /// Llama 3: divides low frequencies, preserves high ones, interpolates between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max / low` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_max / high` are high frequencies.
        high_freq_factor: f64,
        /// Pretraining length.
        original_max_position: usize,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// Divides the low frequencies.
        factor: f64,
        /// Rotations from which frequencies count as high.
        beta_fast: f64,
        /// Rotations up to which frequencies count as low.
        beta_slow: f64,
        /// Pretraining length.
        original_max_position: usize,
        /// Whether the boundary dimensions are rounded to integers.
        truncate: bool,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
    /// LongRoPE: per-frequency factors, one list up to the pretraining length and one beyond.
    LongRope {
        /// Divides each frequency up to `original_max_position`.
        short: Vec<f64>,
        /// Divides each frequency beyond it.
        long: Vec<f64>,
        /// Pretraining length.
        original_max_position: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
}

/// RoPE of the first `dim` columns of each head.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Rotated columns; even.
    pub dim: usize,
    /// Base (`rope_theta`).
    pub base: f64,
    /// Frequency scaling.
    pub scaling: RopeScaling,
    /// Whether pairs are adjacent (2i, 2i+1) rather than half apart (i, i + dim/2).
    pub interleaved: bool,
}

impl RopeSpec {
    /// Creates an unscaled RoPE with pairs half apart.
    pub fn plain(dim: usize, base: f64) -> Self {
        Self {
            dim,
            base,
            scaling: RopeScaling::Default,
            interleaved: false,
        }
    }

    /// Returns (cos, sin) per pair for tokens at these positions, which may be fractional.
    pub fn table_at(&self, positions: &[f32]) -> Vec<[f32; 2]> {
        let (frequencies, factor) = self.frequencies(positions.len());
        let pair = |position: f32, f: f32| {
            let angle = f64::from(position * f);
            [(angle.cos() as f32) * factor, (angle.sin() as f32) * factor]
        };
        positions
            .iter()
            .flat_map(|p| frequencies.iter().map(|f| pair(*p, *f)).collect::<Vec<_>>())
            .collect()
    }

    /// Returns (cos, sin) per pair for multi-axis positions; `place(token, pair)` is the position
    /// of a frequency.
    pub fn table_of(
        &self,
        tokens: Range<usize>,
        place: impl Fn(usize, usize) -> u32,
    ) -> Vec<[f32; 2]> {
        let (frequencies, factor) = self.frequencies(tokens.end);
        let pair = |token: usize, (j, f): (usize, &f32)| {
            let angle = f64::from(place(token, j) as f32 * f);
            [(angle.cos() as f32) * factor, (angle.sin() as f32) * factor]
        };
        tokens
            .flat_map(|token| frequencies.iter().enumerate().map(move |p| (token, p)))
            .map(|(t, p)| pair(t, p))
            .collect()
    }

    /// Whether the table depends on the total sequence length.
    pub fn depends_on_length(&self) -> bool {
        matches!(
            self.scaling,
            RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. }
        )
    }

    /// Returns (cos, sin) per pair for positions `first..first + count` of a sequence of `total`
    /// tokens. With `total` 0, each position is the last of its sequence, as in decoding.
    pub fn table(&self, first: usize, count: usize, total: usize) -> Vec<[f32; 2]> {
        let half = self.dim / 2;
        let mut table = Vec::with_capacity(count * half);
        let fixed = self.frequencies(first + count);
        for position in first..first + count {
            let own = (self.depends_on_length())
                .then(|| self.frequencies(if total == 0 { position + 1 } else { total }));
            let (frequencies, factor) = own.as_ref().unwrap_or(&fixed);
            for f in frequencies {
                // The angle is rounded to f32 as in the reference; its cos and sin are exact.
                let angle = f64::from(position as f32 * f);
                table.push([(angle.cos() as f32) * factor, (angle.sin() as f32) * factor]);
            }
        }
        table
    }

    /// Returns the frequency of each pair and the factor of cos and sin, for a sequence of `length`
    /// tokens.
    fn frequencies(&self, length: usize) -> (Vec<f32>, f32) {
        let plain = |base: f64| -> Vec<f64> {
            (0..self.dim / 2)
                .map(|i| base.powf(-((2 * i) as f64) / self.dim as f64))
                .collect()
        };
        let (values, factor) = match &self.scaling {
            RopeScaling::Default => (plain(self.base), 1.0),
            RopeScaling::Proportional { pairs } => (
                plain(self.base)
                    .into_iter()
                    .enumerate()
                    .map(|(i, f): (usize, f64)| if i < *pairs { f } else { 0.0 })
                    .collect(),
                1.0,
            ),
            RopeScaling::Linear { factor } => {
                (plain(self.base).iter().map(|f| f / factor).collect(), 1.0)
            }
            RopeScaling::Dynamic {
                factor,
                max_position,
            } => {
                let seen = length.max(*max_position) as f64;
                let dim = self.dim as f64;
                let stretch = factor * seen / *max_position as f64 - (factor - 1.0);
                (plain(self.base * stretch.powf(dim / (dim - 2.0))), 1.0)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => {
                let original = *original_max_position as f64;

                (
                    plain(self.base)
                        .into_iter()
                        .map(|f: f64| {
                            let wavelength = 2.0 * PI / f;
                            if wavelength < original / high_freq_factor {
                                return f;
                            }
                            if wavelength > original / low_freq_factor {
                                return f / factor;
                            }
                            let smooth = (original / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - smooth) * f / factor + smooth * f
                        })
                        .collect(),
                    1.0,
                )
            }
            RopeScaling::Yarn {
                attention_factor, ..
            } => (self.yarn(), *attention_factor),
            RopeScaling::LongRope {
                short,
                long,
                original_max_position,
                attention_factor,
            } => {
                let list = if length > *original_max_position {
                    long
                } else {
                    short
                };
                (
                    plain(self.base)
                        .iter()
                        .zip(list)
                        .map(|(f, by)| f / by)
                        .collect(),
                    *attention_factor,
                )
            }
        };
        (
            values.into_iter().map(|f| f as f32).collect(),
            factor as f32,
        )
    }

    fn yarn(&self) -> Vec<f64> {
        let RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position,
            truncate,
            ..
        } = &self.scaling
        else {
            return Vec::new();
        };
        let dim = self.dim as f64;
        let border = |rotations: f64| {
            dim * (*original_max_position as f64 / (rotations * 2.0 * PI)).ln()
                / (2.0 * self.base.ln())
        };
        let mut low = border(*beta_fast);
        let mut high = border(*beta_slow);

        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let frequency = |i: usize| self.base.powf(-((2 * i) as f64) / dim);
        (0..self.dim / 2)
            .map(|i| frequency(i) / factor * ramp(i) + frequency(i) * (1.0 - ramp(i)))
            .collect()
    }
}
