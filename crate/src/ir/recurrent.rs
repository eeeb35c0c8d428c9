//! Operations of layers that keep a state of one size: short convolutions, linear recurrences, gated norms. Knows shapes
//! and states, no layers.

use super::{Activation, StateId, WeightId};

/// A causal depthwise convolution over rows; inputs x, and where it is gated what multiplies x and what multiplies the output.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// `[channels][taps]`, the oldest row first.
    pub weight: WeightId,
    /// `[channels]`.
    pub bias: Option<WeightId>,
    /// Rows that an output sees, its own included.
    pub taps: usize,
    /// Applied to the sums.
    pub act: Activation,
    /// What multiplies the inputs from a column on, by the first column; the last that begins before a column counts.
    pub scales: [(usize, f32); 3],
    /// The inputs before a step ([`StateSpec::Conv`](super::StateSpec::Conv)).
    pub state: StateId,
}

/// What a row does to the matrix of a head, whose decay is `exp(-exp(log_rate) * dt)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The gated delta rule (arXiv 2412.06464): queries and keys of length 1, the output normed and gated.
    Delta {
        /// Added to the norm's mean square.
        eps: f32,
    },
    /// Mamba-2 (arXiv 2405.21060).
    Ssm {
        /// The least and the largest dt.
        limits: [f32; 2],
        /// Multiplies dt before its bias.
        dt_scale: f32,
    },
}

/// A linear recurrence of many heads; inputs: queries, keys and values in one value; dt before its bias and softplus,
/// `[heads]`; for the delta rule beta before its sigmoid, `[heads]`, and the gate of the output.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrent {
    /// Heads of values.
    pub heads: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Whether heads take turns with the keys (head % key_heads) rather than sharing them in runs.
    pub turns: bool,
    /// Columns of a query and of a key.
    pub key_dim: usize,
    /// Columns of a head's values.
    pub value_dim: usize,
    /// Columns of the first input at which queries, keys and values begin.
    pub columns: [usize; 3],
    /// What a row does.
    pub rule: Rule,
    /// One vector: of each head the log of its rate, then its bias of dt, then for the delta rule the gain of the norm,
    /// `[value_dim]`, for Mamba-2 the share of each head's values in its output.
    pub gains: WeightId,
    /// Whether the gains have the negative rates rather than logs.
    pub raw: bool,
    /// The matrices, `[heads][key_dim][value_dim]` ([`StateSpec::Matrix`](super::StateSpec::Matrix)).
    pub state: StateId,
}

/// `norm(x * silu(z)) * gain`, or `norm(x) * gain * silu(z)`, with a norm for each run of columns; inputs x, z.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedNorm {
    /// `[cols]`.
    pub gain: WeightId,
    /// Runs of columns, each with its norm.
    pub runs: usize,
    /// Whether the gate comes before the norm.
    pub first: bool,
    /// Added to the mean square.
    pub eps: f32,
}
