//! Sequence state between steps. A graph declares it, a plan sizes it, a session owns its buffers.

/// Index of a state in [`Graph::states`](super::Graph::states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub usize);

/// State of one sequence. Kernels read it as empty at position 0, so a new sequence needs no
/// clearing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSpec {
    /// Keys and values by position, `[position][kv_head][head_dim]` each. Layers that share a KV
    /// cache name the same state.
    Kv {
        /// Key and value heads.
        kv_heads: usize,
        /// Columns per head.
        head_dim: usize,
        /// Sliding window, the row's own position included; 0 for all.
        window: usize,
    },
    /// The last inputs of a causal convolution, `[taps - 1][channels]`, f32.
    Conv {
        /// Columns of the input.
        channels: usize,
        /// Kernel size.
        kernel_size: usize,
    },
    /// One matrix per head, updated by each token, `[heads][rows][cols]`, f32: linear attention,
    /// state-space models.
    Matrix {
        /// Heads.
        heads: usize,
        /// Rows of each matrix, such as key columns.
        rows: usize,
        /// Columns of each matrix, such as value columns.
        cols: usize,
    },
}

impl StateSpec {
    /// Whether each token overwrites the whole state, so that earlier states are lost.
    pub fn is_recurrent(&self) -> bool {
        matches!(self, Self::Conv { .. } | Self::Matrix { .. })
    }

    /// Returns the name used in messages and buffer labels.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kv { .. } => "kv cache",
            Self::Conv { .. } => "convolution state",
            Self::Matrix { .. } => "recurrent state",
        }
    }
}
