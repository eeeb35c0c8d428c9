//! Gemma 3n AltUp operations on streams stored side by side in a row. Source: arXiv 2301.13310.

use super::{Activation, WeightId};

/// An operation on AltUp streams or on whole rows.
#[derive(Debug, Clone, PartialEq)]
pub enum AltUp {
    /// Predicts each stream as itself plus a mix of all. Inputs: streams; modes (one value per
    /// stream); optionally a row added first to all streams but the first.
    Predict {
        /// `[count][count][count]`: per output stream, per input stream, one value per mode.
        coefs: WeightId,
        /// Streams.
        count: usize,
    },
    /// Corrects each stream by a share of the layer's change to the first. Inputs: streams, modes,
    /// layer output.
    Correct {
        /// `[count][count]`: per stream, one value per mode; 1 is added to the result.
        coefs: WeightId,
        /// Streams.
        count: usize,
    },
    /// Scales column groups to the magnitude of another row. Inputs: x, that row, optionally a row
    /// to add.
    MatchMagnitude,
    /// `act(relu(gate - (mean + factor * deviation))) * up`.
    Sparse {
        /// The activation.
        act: Activation,
        /// Threshold in standard deviations above the mean.
        factor: f32,
    },
}

impl AltUp {
    /// Returns the weights of the operation.
    pub fn weights(&self) -> Vec<Option<WeightId>> {
        match self {
            Self::Predict { coefs, .. } | Self::Correct { coefs, .. } => vec![Some(*coefs)],
            Self::MatchMagnitude | Self::Sparse { .. } => vec![],
        }
    }

    /// Returns the input count, where `given` were passed.
    pub fn input_count(&self, given: usize) -> usize {
        match self {
            Self::Predict { .. } | Self::MatchMagnitude => given.clamp(2, 3),
            Self::Correct { .. } => 3,
            Self::Sparse { .. } => 2,
        }
    }

    /// Returns whether inputs of these columns give `out` columns, and the element count of the
    /// weight.
    pub fn fits(&self, cols: &[usize], out: usize) -> (bool, usize) {
        let last = cols.get(2).copied();
        match self {
            Self::Predict { count, .. } | Self::Correct { count, .. } => {
                let power = if matches!(self, Self::Predict { .. }) {
                    3
                } else {
                    2
                };
                let rest = last.is_none_or(|cols| cols * count == out);
                (
                    *count > 0 && cols[0] == out && cols[1] == *count && rest,
                    count.pow(power),
                )
            }
            Self::MatchMagnitude => {
                let runs = cols[1] > 0 && out.is_multiple_of(cols[1]);
                (
                    cols[0] == out && runs && last.is_none_or(|cols| cols == out),
                    0,
                )
            }
            Self::Sparse { .. } => (cols[0] == out && cols[1] == out, 0),
        }
    }
}
