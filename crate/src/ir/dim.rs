//! Symbolic row counts: a value's rows as a function of the step's size.

use std::fmt;

/// Row count of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A function of the step's rows: decoder tokens, vision patches or audio frames.
    Rows(Stride),
    /// One: the step's last token.
    Last,
    /// One per sequence of a packed step.
    Sequences,
}

/// `max(0, floor((rows * times + plus) / per))`. Chains of strided convolutions keep this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stride {
    /// Output rows per input row.
    pub times: u32,
    /// Added before the division.
    pub plus: i32,
    /// Input rows per output row.
    pub per: u32,
}

impl Stride {
    /// One output row per input row.
    pub const ONE: Self = Self { times: 1, plus: 0, per: 1 };

    /// Evaluates the formula.
    pub fn of(self, rows: usize) -> usize {
        let scaled = rows as i64 * i64::from(self.times) + i64::from(self.plus);
        scaled.max(0) as usize / self.per.max(1) as usize
    }
}

/// Sizes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Rows of the step.
    pub rows: usize,
    /// Sequences of a packed step; otherwise 1.
    pub sequences: usize,
}

impl Counts {
    /// Creates the sizes of a single-sequence step.
    pub fn rows(rows: usize) -> Self {
        Self { rows, sequences: 1 }
    }
}

impl Dim {
    /// One per row of the step.
    pub const TOKENS: Self = Self::Rows(Stride::ONE);

    /// `k` per token, for top-k experts.
    pub fn picks(k: usize) -> Self {
        Self::Rows(Stride { times: k as u32, plus: 0, per: 1 })
    }

    /// One per `per` rows, for merged patches or pooled frames.
    pub fn merged(self, per: usize) -> Self {
        self.then(1, 0, per)
    }

    /// Convolution output: `floor((n + 2 padding - kernel) / stride) + 1`. `kernel` includes dilation.
    pub fn convolved(self, kernel: usize, stride: usize, padding: usize) -> Self {
        self.windowed(kernel, stride, 2 * padding)
    }

    /// Convolution output with `padding` rows in total.
    pub fn windowed(self, span: usize, stride: usize, padding: usize) -> Self {
        self.then(1, padding as i64 - span as i64 + stride as i64, stride)
    }

    /// Transposed convolution output: `n * times + plus`. Requires rows that no division produced, as in audio codecs.
    pub fn upsampled(self, times: usize, plus: i64) -> Self {
        self.then(times, plus, 1)
    }

    fn then(self, times: usize, plus: i64, per: usize) -> Self {
        let Self::Rows(s) = self else { return self };
        debug_assert!(times == 1 || s.per == 1, "a transposed convolution cannot follow a strided one");
        // floor((floor(x / a) + b) / c) = floor((x + a b) / (a c)) for integers.
        let plus = i64::from(s.plus) * times as i64 + plus * i64::from(s.per);
        Self::Rows(Stride { times: s.times * times as u32, plus: plus as i32, per: s.per * per as u32 })
    }

    /// Evaluates the rows for a step.
    pub fn of(self, counts: Counts) -> usize {
        match self {
            Self::Rows(stride) => stride.of(counts.rows),
            Self::Last => 1,
            Self::Sequences => counts.sequences,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TOKENS => f.write_str("T"),
            Self::Last => f.write_str("1"),
            Self::Sequences => f.write_str("S"),
            Self::Rows(Stride { times, plus, per }) => {
                f.write_str("T")?;
                if times != 1 {
                    write!(f, "*{times}")?;
                }
                if plus != 0 {
                    write!(f, "{plus:+}")?;
                }
                if per != 1 {
                    write!(f, "/{per}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_strides_count_as_one_after_another() {
        // Moonshine's front end over a waveform: kernels 127, 7, 3 with strides 64, 3, 2.
        let chain = Dim::TOKENS.convolved(127, 64, 0).convolved(7, 3, 0).convolved(3, 2, 0);
        let one = |n: usize, kernel: usize, stride: usize| if n < kernel { 0 } else { (n - kernel) / stride + 1 };
        for samples in [0, 127, 894, 895, 1023, 16_000, 16_001, 48_123] {
            let expected = one(one(one(samples, 127, 64), 7, 3), 3, 2);
            assert_eq!(chain.of(Counts::rows(samples)), expected, "{samples} samples");
        }
        // Whisper: 3000 frames become 1500.
        assert_eq!(Dim::TOKENS.convolved(3, 1, 1).convolved(3, 2, 1).of(Counts::rows(3000)), 1500);
        assert_eq!(Dim::picks(4).of(Counts::rows(7)), 28);
        assert_eq!(Dim::TOKENS.merged(4).of(Counts::rows(64)), 16);
        assert_eq!(Dim::TOKENS.upsampled(7, 0).upsampled(3, -2).of(Counts::rows(5)), 103);
        assert_eq!(Dim::Sequences.of(Counts { rows: 9, sequences: 3 }), 3);
    }
}
