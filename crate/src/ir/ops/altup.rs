//! Gemma 3n AltUp operations on streams stored side by side in a row. Source: arXiv 2301.13310.

use super::{Activation, CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, WeightId};

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

impl OpDef for AltUp {
    fn input_count(&self, given: usize) -> usize {
        match self {
            Self::Predict { .. } | Self::MatchMagnitude => given.clamp(2, 3),
            Self::Correct { .. } => 3,
            Self::Sparse { .. } => 2,
        }
    }

    fn weights(&self) -> Vec<WeightId> {
        match self {
            Self::Predict { coefs, .. } | Self::Correct { coefs, .. } => vec![*coefs],
            Self::MatchMagnitude | Self::Sparse { .. } => vec![],
        }
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let out = node.out();
        // The columns of the third input, in copies that make the output.
        let third = |copies: usize| node.inputs() < 3 || node.cols(2) * copies == out;
        let fits = match self {
            Self::Predict { coefs, count } | Self::Correct { coefs, count } => {
                let modes = match self {
                    Self::Predict { .. } => count.pow(3),
                    _ => count.pow(2),
                };
                node.require_vector(*coefs, modes)?;
                *count > 0 && node.cols(1) == *count && third(*count)
            }
            Self::MatchMagnitude => {
                node.cols(1) > 0 && out.is_multiple_of(node.cols(1)) && third(1)
            }
            Self::Sparse { .. } => node.cols(1) == out,
        };
        node.require(fits && node.cols(0) == out && node.same_rows())
    }

    fn describe(&self, graph: &Graph) -> String {
        let name = |coefs: &WeightId| graph.weight_name(*coefs);
        match self {
            Self::Predict { coefs, count } => {
                format!("predict[{}, {count} streams]", name(coefs))
            }
            Self::Correct { coefs, count } => {
                format!("correct[{}, {count} streams]", name(coefs))
            }
            Self::MatchMagnitude => "match".into(),
            Self::Sparse { act, factor } => format!("sparse {act:?} above {factor}"),
        }
    }
}
