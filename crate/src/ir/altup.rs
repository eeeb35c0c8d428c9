//! What Gemma 3n does with its streams, which lie side by side in a row. Source: arXiv 2301.13310. Knows shapes, not kernels.

use super::{Activation, WeightId};

/// An operation on streams or on a row as a whole.
#[derive(Debug, Clone, PartialEq)]
pub enum AltUp {
    /// Each stream and a mix of all; inputs streams and modes (a number for each stream), and what is added to all streams
    /// but the first before, if anything.
    Predict {
        /// `[count][count][count]`: of each stream, of each other, one for each mode.
        coefs: WeightId,
        /// Streams.
        count: usize,
    },
    /// Each stream and a share of what the first one's layer has changed; inputs streams, modes, what the layer gives.
    Correct {
        /// `[count][count]`: of each stream, one for each mode; 1 is added to what they make.
        coefs: WeightId,
        /// Streams.
        count: usize,
    },
    /// Runs of columns at the magnitude of another row; inputs x and that row, and a row that is added, if any.
    Match,
    /// `act(relu(gate - (mean + factor * deviation))) * up`.
    Sparse {
        /// The activation.
        act: Activation,
        /// Deviations above the mean that a column must have.
        factor: f32,
    },
}

impl AltUp {
    /// The weights that it reads.
    pub fn weights(&self) -> Vec<Option<WeightId>> {
        match self {
            Self::Predict { coefs, .. } | Self::Correct { coefs, .. } => vec![Some(*coefs)],
            Self::Match | Self::Sparse { .. } => vec![],
        }
    }

    /// How many inputs it has where it was given so many.
    pub fn inputs(&self, given: usize) -> usize {
        match self {
            Self::Predict { .. } | Self::Match => given.clamp(2, 3),
            Self::Correct { .. } => 3,
            Self::Sparse { .. } => 2,
        }
    }

    /// Whether inputs of so many columns give `out`, and how many numbers its weight has.
    pub fn fits(&self, cols: &[usize], out: usize) -> (bool, usize) {
        let last = cols.get(2).copied();
        match self {
            Self::Predict { count, .. } | Self::Correct { count, .. } => {
                let power = if matches!(self, Self::Predict { .. }) { 3 } else { 2 };
                let rest = last.is_none_or(|cols| cols * count == out);
                (*count > 0 && cols[0] == out && cols[1] == *count && rest, count.pow(power))
            }
            Self::Match => {
                let runs = cols[1] > 0 && out.is_multiple_of(cols[1]);
                (cols[0] == out && runs && last.is_none_or(|cols| cols == out), 0)
            }
            Self::Sparse { .. } => (cols[0] == out && cols[1] == out, 0),
        }
    }
}
