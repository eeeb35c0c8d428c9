//! Attention as a graph operation: heads and mask.

use super::{StateId, WeightId};

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

/// Scaled dot-product attention over projected q, k and v.
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
    /// Index into [`super::Graph::ropes`]; None without RoPE.
    pub rope: Option<usize>,
    /// KV cache of the sequence ([`super::StateSpec::Kv`]); None for encoders.
    pub state: Option<StateId>,
}

/// Input columns that become a part of each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSlice {
    /// First column of the first head.
    pub first: usize,
    /// Stride to the next head's columns; 0 if all heads share them.
    pub step: usize,
    /// Columns per head.
    pub cols: usize,
}
