//! What a sequence keeps between steps, as data: a graph declares it, a plan gives it bytes, a session owns its buffers.

/// Index of a state in [`Graph::states`](super::Graph::states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub usize);

/// A state of one sequence. What reads it takes it as empty at position 0, so that a new sequence needs no clearing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSpec {
    /// Keys and values by position, `[position][kv_head][head_dim]` each. Layers that share keys and values name the same one.
    Kv {
        /// Key and value heads.
        kv_heads: usize,
        /// Columns of a head.
        head_dim: usize,
        /// Only the last so many positions are read, the row's own included; 0 for all.
        window: usize,
    },
    /// The last inputs of a causal convolution, `[taps - 1][channels]`, f32.
    Conv {
        /// Columns of the input.
        channels: usize,
        /// Width of the kernel.
        taps: usize,
    },
    /// A matrix per head that each token changes, `[heads][rows][cols]`, f32: linear attention, state spaces.
    Matrix {
        /// Heads.
        heads: usize,
        /// Rows of each matrix, such as columns of a key.
        rows: usize,
        /// Columns of each matrix, such as columns of a value.
        cols: usize,
    },
}

impl StateSpec {
    /// Whether each token changes all of it, so that what was before it is gone.
    pub fn is_recurrent(&self) -> bool {
        matches!(self, Self::Conv { .. } | Self::Matrix { .. })
    }

    /// What messages and buffer labels call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kv { .. } => "kv cache",
            Self::Conv { .. } => "convolution state",
            Self::Matrix { .. } => "recurrent state",
        }
    }
}
