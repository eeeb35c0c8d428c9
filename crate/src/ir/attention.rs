//! Attention as an operation of the graph: its heads, and which keys a query sees. Knows no cache.

use super::{StateId, WeightId};

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Those up to its own position, through the KV cache.
    Causal {
        /// Only the last so many, its own included; 0 for all.
        window: usize,
    },
    /// All rows of another sequence, such as an encoder's output: k and v have rows of their own.
    Memory,
    /// As causal, and in a prompt those of the row's own picture that come after it.
    Pictures {
        /// Only the last so many, its own included; 0 for all.
        window: usize,
    },
    /// Those of its own text in a packed step, without a cache.
    Segment {
        /// The most rows that a key may come before the query; `usize::MAX` for all.
        before: usize,
        /// The most rows that it may come after it.
        after: usize,
    },
    /// Those of its own window in a packed step, without a cache.
    Window,
}

impl Mask {
    /// The window of a causal one, and whether pictures are seen both ways.
    pub fn causal(self) -> Option<(usize, bool)> {
        match self {
            Self::Causal { window } => Some((window, false)),
            Self::Pictures { window } => Some((window, true)),
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
    /// Whether it comes after the rotation.
    pub after_rope: bool,
    /// Whether heads of v are normed too, without a gain; only where keys and values are kept.
    pub values: bool,
}

/// Scaled dot-product attention over q, k, v as the projections give them.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: Mask,
    /// `cap * tanh(score / cap)`; 0 for none.
    pub softcap: f32,
    /// `[32][heads]`, added to the scores by T5's buckets of the distance; only within packed texts.
    pub relative: Option<WeightId>,
    /// Per-head logits that join the softmax and are dropped.
    pub sinks: Option<WeightId>,
    /// Norm of q and k heads.
    pub head_norm: Option<HeadNorm>,
    /// Index into [`super::Graph::ropes`]; none for layers without rotation.
    pub rope: Option<usize>,
    /// Keys and values of the sequence ([`super::StateSpec::Kv`]); none for encoders.
    pub state: Option<StateId>,
}

/// Columns of an input that become a part of each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPart {
    /// The first head's first column.
    pub first: usize,
    /// Columns to the next head's; 0 where all heads share them.
    pub step: usize,
    /// Columns of a head.
    pub cols: usize,
}
