//! Symbolic row counts: a value's rows as a function of the step's size.

use std::fmt;

/// Row count of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A function of the step's rows: decoder tokens, vision patches or audio frames.
    Rows(RowFormula),
    /// One: the step's last token.
    Last,
    /// One per sequence of a packed step.
    Sequences,
}

/// `max(0, floor((rows * times + plus) / per))`. Chains of strided convolutions keep this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowFormula {
    /// Output rows per input row.
    pub multiply: u32,
    /// Added before the division.
    pub add: i32,
    /// Input rows per output row.
    pub divide: u32,
}

impl RowFormula {
    /// One output row per input row.
    pub const ONE: Self = Self {
        multiply: 1,
        add: 0,
        divide: 1,
    };

    /// Evaluates the formula.
    pub fn eval(self, rows: usize) -> usize {
        let scaled = rows as i64 * i64::from(self.multiply) + i64::from(self.add);
        scaled.max(0) as usize / self.divide.max(1) as usize
    }
}

/// Sizes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSizes {
    /// Rows of the step.
    pub rows: usize,
    /// Sequences of a packed step; otherwise 1.
    pub sequences: usize,
}

impl StepSizes {
    /// Creates the sizes of a single-sequence step.
    pub fn rows(rows: usize) -> Self {
        Self { rows, sequences: 1 }
    }
}

impl Dim {
    /// One per row of the step.
    pub const TOKENS: Self = Self::Rows(RowFormula::ONE);

    /// `k` per token, for top-k experts.
    pub fn top_k(k: usize) -> Self {
        Self::Rows(RowFormula {
            multiply: k as u32,
            add: 0,
            divide: 1,
        })
    }

    /// One per `per` rows, for merged patches or pooled frames.
    pub fn divided(self, per: usize) -> Self {
        self.then(1, 0, per)
    }

    /// Convolution output: `floor((n + 2 padding - kernel) / stride) + 1`. `kernel` includes
    /// dilation.
    pub fn convolved(self, kernel: usize, stride: usize, padding: usize) -> Self {
        self.windowed(kernel, stride, 2 * padding)
    }

    /// Convolution output with `padding` rows in total.
    pub fn windowed(self, span: usize, stride: usize, padding: usize) -> Self {
        self.then(1, padding as i64 - span as i64 + stride as i64, stride)
    }

    /// Transposed convolution output: `n * times + plus`. Requires rows that no division produced,
    /// as in audio codecs.
    pub fn conv_transposed(self, times: usize, plus: i64) -> Self {
        self.then(times, plus, 1)
    }

    fn then(self, times: usize, plus: i64, per: usize) -> Self {
        let Self::Rows(s) = self else { return self };
        debug_assert!(
            times == 1 || s.divide == 1,
            "a transposed convolution cannot follow a strided one"
        );
        // floor((floor(x / a) + b) / c) = floor((x + a b) / (a c)) for integers.
        let plus = i64::from(s.add) * times as i64 + plus * i64::from(s.divide);
        Self::Rows(RowFormula {
            multiply: s.multiply * times as u32,
            add: plus as i32,
            divide: s.divide * per as u32,
        })
    }

    /// Evaluates the rows for a step.
    pub fn eval(self, counts: StepSizes) -> usize {
        match self {
            Self::Rows(stride) => stride.eval(counts.rows),
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
            Self::Rows(RowFormula {
                multiply: times,
                add: plus,
                divide: per,
            }) => {
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
        let chain = Dim::TOKENS
            .convolved(127, 64, 0)
            .convolved(7, 3, 0)
            .convolved(3, 2, 0);
        let one = |n: usize, kernel: usize, stride: usize| {
            if n < kernel {
                0
            } else {
                (n - kernel) / stride + 1
            }
        };
        for samples in [0, 127, 894, 895, 1023, 16_000, 16_001, 48_123] {
            let expected = one(one(one(samples, 127, 64), 7, 3), 3, 2);
            assert_eq!(
                chain.eval(StepSizes::rows(samples)),
                expected,
                "{samples} samples"
            );
        }
        // Whisper: 3000 frames become 1500.
        assert_eq!(
            Dim::TOKENS
                .convolved(3, 1, 1)
                .convolved(3, 2, 1)
                .eval(StepSizes::rows(3000)),
            1500
        );
        assert_eq!(Dim::top_k(4).eval(StepSizes::rows(7)), 28);
        assert_eq!(Dim::TOKENS.divided(4).eval(StepSizes::rows(64)), 16);
        assert_eq!(
            Dim::TOKENS
                .conv_transposed(7, 0)
                .conv_transposed(3, -2)
                .eval(StepSizes::rows(5)),
            103
        );
        assert_eq!(
            Dim::Sequences.eval(StepSizes {
                rows: 9,
                sequences: 3
            }),
            3
        );
    }
}
