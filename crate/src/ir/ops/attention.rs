//! Attention as a graph operation: heads and mask.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, StateId, StateSpec, WeightId};

/// Keys visible to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Causal attention through the KV cache.
    Causal {
        /// Sliding window, own position included; 0 for all.
        window: usize,
    },
    /// Cross attention: all rows of another sequence, such as an encoder's output. k and v have
    /// their own rows.
    CrossAttention,
    /// Causal, plus later rows of the same image within a prompt.
    BidirectionalImages {
        /// Sliding window, own position included; 0 for all.
        window: usize,
    },
    /// Rows of the same sequence in a packed step, without a cache.
    Packed {
        /// Maximum distance of a key before the query, in rows; `usize::MAX` for all.
        before: usize,
        /// Maximum distance of a key after the query, in rows.
        after: usize,
    },
    /// Rows of the same window in a packed step, without a cache.
    PackedWindow,
}

impl Mask {
    /// Returns the window of a causal mask, and whether images are bidirectional.
    pub fn causal(self) -> Option<(usize, bool)> {
        match self {
            Self::Causal { window } => Some((window, false)),
            Self::BidirectionalImages { window } => Some((window, true)),
            _ => None,
        }
    }
}

/// Norm of each head of q and k.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNorm {
    /// `[2 * head_dim]`: q's gain, then k's.
    pub gains: WeightId,
    /// Added to the gains.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the norm follows RoPE.
    pub after_rope: bool,
    /// Whether v heads are normed too, without a gain. Requires a KV cache.
    pub values: bool,
}

/// Scaled dot-product attention over projected q, k and v. Inputs: q, k, v, or q only over another
/// layer's KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Attention mask.
    pub mask: Mask,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// T5 relative position bias by distance bucket, `[32][heads]`, added to the scores. Packed
    /// sequences only.
    pub relative: Option<WeightId>,
    /// Attention sinks: one logit per head that joins the softmax without a value.
    pub sinks: Option<WeightId>,
    /// Norm of q and k heads.
    pub head_norm: Option<HeadNorm>,
    /// Index into [`Graph::ropes`]; None without RoPE.
    pub rope: Option<usize>,
    /// KV cache of the sequence ([`StateSpec::Kv`]); None for encoders.
    pub state: Option<StateId>,
}

impl Attention {
    /// Checks the KV cache, whose window must be long enough.
    fn check_state(&self, id: StateId, spec: StateSpec) -> CheckResult {
        let StateSpec::Kv {
            kv_heads,
            head_dim,
            window: stored,
        } = spec
        else {
            return Err(format!("state {} is not a KV cache", id.0));
        };
        if (kv_heads, head_dim) != (self.kv_heads, self.head_dim) {
            return Err(format!(
                "state {} stores {kv_heads} heads of {head_dim}, unlike the attention",
                id.0
            ));
        }
        let window = self.mask.causal().map_or(0, |(window, _)| window);
        if stored > 0 && (window == 0 || window > stored) {
            return Err(format!(
                "state {} stores {stored} positions, {window} are needed (0 for all)",
                id.0
            ));
        }
        Ok(())
    }

    fn describe_mask(&self) -> String {
        const ALL: usize = usize::MAX;
        match self.mask {
            Mask::Causal { window: 0 } => "causal".into(),
            Mask::Causal { window } => format!("causal window {window}"),
            Mask::BidirectionalImages { window } => {
                format!("causal window {window}, bidirectional images")
            }
            Mask::CrossAttention => "memory".into(),
            Mask::Packed {
                before: ALL,
                after: ALL,
            } => "segment".into(),
            Mask::Packed {
                before: ALL,
                after: 0,
            } => "segment causal".into(),
            Mask::Packed { before, after } => format!("segment {before} before, {after} after"),
            Mask::PackedWindow => "window".into(),
        }
    }
}

impl OpDef for Attention {
    fn input_count(&self, given: usize) -> usize {
        if self.state.is_some() && given == 1 {
            1
        } else {
            3
        }
    }

    fn weights(&self) -> Vec<WeightId> {
        let gains = self.head_norm.as_ref().map(|norm| norm.gains);
        let weights = [self.sinks, self.relative, gains];
        weights.into_iter().flatten().collect()
    }

    fn state(&self) -> Option<StateId> {
        self.state
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let shared = node.inputs() == 1;
        node.require_vector(self.sinks, self.heads)?;
        node.require_vector(self.relative, 32 * self.heads)?;
        let gains = self.head_norm.as_ref().map(|norm| norm.gains);
        let normed = if shared { 1 } else { 2 };
        node.require_vector(gains, normed * self.head_dim)?;
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "{} heads are not a multiple of {} key heads",
                self.heads, self.kv_heads
            ));
        }
        let wide = |rope: &usize| {
            let spec = node.graph.ropes.get(*rope);
            spec.is_none_or(|spec| spec.dim > self.head_dim)
        };
        if let Some(rope) = self.rope.filter(wide) {
            return Err(format!(
                "RoPE table {rope} is missing or wider than a head of {}",
                self.head_dim
            ));
        }
        if let Some(id) = self.state {
            self.check_state(id, node.graph.states[id.0])?;
        }
        let kv_cols = self.kv_heads * self.head_dim;
        let kv = shared || (node.cols(1) == kv_cols && node.cols(2) == kv_cols);
        node.require(node.cols(0) == self.heads * self.head_dim && kv)
    }

    fn describe(&self, _graph: &Graph) -> String {
        let mask = self.describe_mask();
        let rope = self
            .rope
            .map_or(String::new(), |rope| format!(", rope {rope}"));
        let norm = match &self.head_norm {
            Some(norm) if norm.values => ", head norm of q, k and v",
            Some(_) => ", head norm",
            None => "",
        };
        format!(
            "attention[{}/{} heads of {}, {mask}{rope}{norm}]",
            self.heads, self.kv_heads, self.head_dim
        )
    }
}
