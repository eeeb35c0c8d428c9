//! Linear recurrences with a state of constant size, and the gated norm of their output.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, StateId, StateSpec, WeightId};

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
    /// ([`StateSpec::Matrix`]).
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

impl OpDef for Recurrent {
    fn input_count(&self, _given: usize) -> usize {
        match self.rule {
            RecurrenceRule::Delta { .. } => 4,
            RecurrenceRule::Ssm { .. } => 2,
        }
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.gains]
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let delta = matches!(self.rule, RecurrenceRule::Delta { .. });
        let max_key_dim = if delta {
            Self::MAX_DELTA_KEY_DIM
        } else {
            Self::MAX_SSM_KEY_DIM
        };
        if !Self::supports(max_key_dim, self.key_dim, self.value_dim) {
            return Err(format!(
                "no kernel has heads of {} by {}",
                self.key_dim, self.value_dim
            ));
        }
        let own = if delta { self.value_dim } else { self.heads };
        node.require_vector(self.gains, 2 * self.heads + own)?;
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            return Err(format!(
                "{} heads are not a multiple of {} key heads",
                self.heads, self.key_heads
            ));
        }
        let out = node.out();
        let [q, k, v] = self.columns;
        let keys = q.max(k) + self.key_heads * self.key_dim <= node.cols(0);
        let values = v + out <= node.cols(0) && out == self.heads * self.value_dim;
        let gates = !delta || (node.cols(2) == self.heads && node.cols(3) == out);
        let state = StateSpec::Matrix {
            heads: self.heads,
            rows: self.key_dim,
            cols: self.value_dim,
        };
        let stored = node.graph.states[self.state.0] == state;
        node.require(keys && values && node.cols(1) == self.heads && gates && stored)
    }

    fn describe(&self, _graph: &Graph) -> String {
        let rule = match self.rule {
            RecurrenceRule::Delta { .. } => "delta net",
            RecurrenceRule::Ssm { .. } => "ssm",
        };
        format!(
            "{rule}[{} of {} over {} of {}, state {}]",
            self.heads, self.value_dim, self.key_heads, self.key_dim, self.state.0
        )
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

impl OpDef for GatedNorm {
    fn input_count(&self, _given: usize) -> usize {
        2
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.gain]
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_vector(self.gain, node.out())?;
        let whole = self.groups > 0 && node.out().is_multiple_of(self.groups);
        node.require(node.is_elementwise() && whole)
    }

    fn describe(&self, graph: &Graph) -> String {
        let gain = graph.weight_name(self.gain);
        format!("gated rms norm[{gain}, {} runs]", self.groups)
    }
}
