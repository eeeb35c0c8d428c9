//! Operations with a state of constant size: short convolutions, linear recurrences, gated norms.

use super::{Activation, StateId, WeightId};
use std::ops::RangeInclusive;

/// A causal depthwise convolution over rows. Inputs: x; if gated, also the input gate and the
/// output gate.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// `[channels][taps]`, oldest row first.
    pub weight: WeightId,
    /// `[channels]`.
    pub bias: Option<WeightId>,
    /// Kernel size, current row included.
    pub kernel_size: usize,
    /// Activation of the sums.
    pub act: Activation,
    /// Input scales by first column; the last entry at or before a column applies.
    pub scales: [(usize, f32); 3],
    /// Inputs before the step ([`StateSpec::Conv`](super::StateSpec::Conv)).
    pub state: StateId,
}

impl ShortConv {
    /// Kernel sizes that the kernels support.
    pub const KERNEL_SIZES: RangeInclusive<usize> = 2..=8;
}

/// State update of a row. The decay of a head is `exp(-exp(log_rate) * dt)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RecurrenceRule {
    /// Gated delta rule (arXiv 2412.06464): unit-length queries and keys, normed and gated output.
    Delta {
        /// Added to the norm's mean square.
        eps: f32,
    },
    /// Mamba-2 (arXiv 2405.21060).
    Ssm {
        /// Minimum and maximum dt.
        limits: [f32; 2],
        /// Multiplies dt before its bias.
        dt_scale: f32,
    },
}

/// A multi-head linear recurrence. Inputs: queries, keys and values in one value; dt before bias
/// and softplus, `[heads]`. The delta rule adds beta before its sigmoid, `[heads]`, and the output
/// gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrent {
    /// Value heads.
    pub heads: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Whether heads use the keys interleaved (head % key_heads) rather than in consecutive groups.
    pub interleaved: bool,
    /// Columns of a query and a key.
    pub key_dim: usize,
    /// Value columns per head.
    pub value_dim: usize,
    /// First columns of queries, keys and values in the first input.
    pub columns: [usize; 3],
    /// Update rule.
    pub rule: RecurrenceRule,
    /// One vector: per head the log rate, then per head the bias of dt. Then the norm gain
    /// `[value_dim]` (delta rule), or the skip scale per head (Mamba-2).
    pub gains: WeightId,
    /// Whether `gains` holds negative rates rather than logs.
    pub negative_rates: bool,
    /// State matrices, `[heads][key_dim][value_dim]`
    /// ([`StateSpec::Matrix`](super::StateSpec::Matrix)).
    pub state: StateId,
}

impl Recurrent {
    /// Maximum key columns of the delta rule: the keys of a scan launch.
    pub const MAX_DELTA_KEY_DIM: usize = 128;
    /// Maximum key columns of Mamba-2.
    pub const MAX_SSM_KEY_DIM: usize = 256;

    /// Whether the kernels support these columns of a head, for a rule with keys of up to
    /// `max_key_dim` columns.
    pub fn supports(max_key_dim: usize, key_dim: usize, value_dim: usize) -> bool {
        let slices = 1024 / value_dim.max(1);
        let fours = key_dim.is_multiple_of(4) && value_dim.is_multiple_of(4);
        fours
            && (4..=max_key_dim).contains(&key_dim)
            && slices > 0
            && key_dim.div_ceil(slices) <= 32
    }
}

/// `norm(x * silu(z)) * gain`, or `norm(x) * gain * silu(z)`, with one norm per column group.
/// Inputs: x, z.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedNorm {
    /// `[cols]`.
    pub gain: WeightId,
    /// Column groups, each with its own norm.
    pub groups: usize,
    /// Whether the gate precedes the norm.
    pub gate_first: bool,
    /// Added to the mean square.
    pub eps: f32,
}
