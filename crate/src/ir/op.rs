//! Graph operations with their weights and state.

use super::{
    AltUp, Attention, ConvTranspose1d, ExpertDown, ExpertUp, GatedNorm, HeadSlice, Im2Col, InputId,
    Recurrent, Routing, ShortConv, StateId, WeightId,
};

/// Token property that indexes a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdSource {
    /// The token's id.
    Tokens,
    /// Position in its sequence, as the model counts it.
    Positions,
    /// Token type, such as question or passage.
    Types,
}

/// Pooling of a sequence to one row. Codes match shaders/pool/pool.wgsl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all tokens.
    Mean = 0,
    /// First token.
    First = 1,
    /// Last token.
    Last = 2,
    /// Maximum per column.
    Max = 3,
    /// Sum divided by the square root of the token count.
    MeanSqrt = 4,
    /// Mean weighted by position, counted from 1.
    Weighted = 5,
}

impl Pooling {
    /// Whether it selects one token unchanged. Row-wise operations may then follow the pooling.
    pub fn selects_token(self) -> bool {
        matches!(self, Self::First | Self::Last)
    }
}

/// Meaning of ids past the end of a token table: image embeddings and other soft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftTokens {
    /// Rows of an input, not scaled.
    Rows(InputId),
    /// This row of the table.
    Row(u32),
}

/// Activation functions. Codes match shaders/common/activation.wgsl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    None = 0,
    /// x · sigmoid(x), also called swish.
    Silu = 1,
    /// GELU, tanh approximation.
    GeluTanh = 2,
    /// GELU, exact (error function).
    Gelu = 3,
    /// max(x, 0).
    Relu = 4,
    /// 1 / (1 + exp(-x)).
    Sigmoid = 5,
    /// tanh(x).
    Tanh = 6,
    /// max(x, 0)².
    Relu2 = 7,
    /// x · sigmoid(1.702 x).
    QuickGelu = 8,
}

impl Activation {
    /// Parses the name used in config.json (`hidden_act`).
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Self::GeluTanh,
            "gelu" => Self::Gelu,
            "relu" => Self::Relu,
            "relu2" => Self::Relu2,
            "quick_gelu" => Self::QuickGelu,
            "sigmoid" => Self::Sigmoid,
            "tanh" => Self::Tanh,
            "linear" => Self::None,
            _ => return None,
        })
    }
}

/// RMSNorm or LayerNorm over the columns of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Gain; None means 1.
    pub gain: Option<WeightId>,
    /// Bias of a LayerNorm.
    pub bias: Option<WeightId>,
    /// Whether the mean is subtracted (LayerNorm).
    pub layer: bool,
    /// Added to the gain: 1 for Gemma 2 and 3.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// A norm fused with one or two residuals: `(rest + norm(x) + more) * scale * by`.
#[derive(Debug, Clone, PartialEq)]
pub struct NormResidual {
    /// The norm.
    pub norm: Norm,
    /// Multiplies the sum.
    pub scale: f32,
    /// Scalar that also multiplies the sum.
    pub scale_weight: Option<WeightId>,
}

/// A matmul with its fused prologue and epilogue.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[n, k]`; if gated `[2n, k]`, gate rows first.
    pub weight: WeightId,
    /// First weight row to use. Must be 0 with a bias or gate.
    pub row0: usize,
    /// One value per weight row.
    pub bias: Option<WeightId>,
    /// RMSNorm of the input.
    pub norm: Option<Norm>,
    /// Whether the input, or its norm, is quantized as in [`Op::Round`].
    pub quantize: bool,
    /// `y = act(gate) * up`.
    pub gated: bool,
    /// Applied to the result (to the gate if gated).
    pub act: Activation,
    /// Whether the node's second input is added last.
    pub residual: bool,
    /// Whether the second input multiplies the result instead.
    pub multiply: bool,
    /// Multiplies the result.
    pub scale: f32,
    /// `cap * tanh(y / cap)`; 0 for none.
    pub softcap: f32,
}

impl Linear {
    /// Creates `y = x Wᵀ (+ bias)`.
    pub fn new(weight: WeightId, bias: Option<WeightId>) -> Self {
        let act = Activation::None;
        let quantize = false;
        let gated = false;
        let residual = false;
        let multiply = false;

        Self {
            weight,
            row0: 0,
            bias,
            norm: None,
            quantize,
            gated,
            act,
            residual,
            multiply,
            scale: 1.0,
            softcap: 0.0,
        }
    }
}

/// Operation of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Scaled table rows by index. No inputs.
    Embed {
        /// The table.
        table: WeightId,
        /// Multiplies the rows.
        scale: f32,
        /// Token property used as index.
        ids: IdSource,
        /// Meaning of indices past the table's end. Prompts only.
        soft: Option<SoftTokens>,
    },
    /// External rows. No inputs.
    Input(InputId),
    /// Weighted sums of table rows. The input has `2 * taps` columns: pairs of a row index (its
    /// bits) and a weight. With `taps` 0, the columns weight all table rows: a matmul with a matrix
    /// stored `[in, out]`.
    EmbeddingBag {
        /// The table.
        table: WeightId,
        /// Pairs per row, or 0.
        taps: usize,
    },
    /// Adds rows of an input where a token id is past the end of a table. Prompts only. Used for
    /// features of deeper vision layers.
    AddSoftTokens {
        /// Input rows.
        rows: InputId,
        /// Token table.
        table: WeightId,
        /// First input column to use.
        column: usize,
    },
    /// Concatenates the inputs' columns.
    Concat,
    /// Matmul.
    Linear(Linear),
    /// Norm of each row.
    Norm(Norm),
    /// Attention. Inputs: q, k, v, or q only over another layer's KV cache.
    Attention(Attention),
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// `act(a) * b`; a single column of `a` broadcasts.
    Gated(Activation),
    /// `act(a)`.
    Unary(Activation),
    /// `a * factor`.
    Scale(f32),
    /// Builds heads from the columns of one or two inputs, zero-padded.
    ConcatHeads {
        /// Columns per head.
        head_dim: usize,
        /// Columns to read from each input.
        parts: Vec<HeadSlice>,
    },
    /// Row of the step's last token.
    LastRow,
    /// Reorders columns.
    Gather {
        /// Input column of each output column.
        order: WeightId,
    },
    /// Pools each sequence of a packed step to one row.
    Pool(Pooling),
    /// Maps the logits of all experts to ids and weights of the selected ones.
    TopKRouter(Routing),
    /// Up matmul of the selected experts. Inputs: x, selection.
    ExpertUp(ExpertUp),
    /// Down matmul of the selected experts, summed. Inputs: up output, selection.
    ExpertDown(ExpertDown),
    /// Im2col windows of a convolution, the input of its matmul.
    Im2Col(Im2Col),
    /// Causal grouped transposed convolution.
    ConvTranspose1d(ConvTranspose1d),
    /// Snake, `x + sin(a x)² / a`, of the first columns; leaky ReLU of the others.
    Snake {
        /// One `a` per Snake column.
        alpha: WeightId,
    },
    /// Norm of column groups over all rows.
    GroupNorm {
        /// Number of groups.
        groups: usize,
        /// One value per column.
        gain: WeightId,
        /// One value per column.
        bias: WeightId,
        /// Added to the mean square.
        eps: f32,
    },
    /// `asinh(x * exp(k))`.
    Asinh {
        /// Scalar.
        k: WeightId,
    },
    /// Adds to each row the table row of its position in the sequence.
    AddPositionEmbedding {
        /// `[positions * cols]`, stored as f32.
        table: WeightId,
    },
    /// Widens heads with zero columns, or narrows them.
    PadHeads {
        /// Number of heads.
        count: usize,
    },
    /// Norm of each group of this many columns; all groups share the gain.
    NormPerGroup(Norm, usize),
    /// `a * w`, where w is a vector of as many columns or a scalar.
    MulVector(WeightId),
    /// Clamps `a` between the two values of a vector.
    Clip(WeightId),
    /// Quantizes each row to 8 bits: multiples of 1/127 of its largest magnitude. A norm may
    /// precede.
    QuantizeActivations(Option<Norm>),
    /// Norm of each row added to one or two residuals. Inputs: x, residuals.
    NormResidual(NormResidual),
    /// Causal convolution over rows.
    ShortConv(ShortConv),
    /// Linear recurrence over rows.
    Recurrent(Recurrent),
    /// Gated norm.
    GatedNorm(GatedNorm),
    /// Gemma 3n AltUp operation.
    AltUp(AltUp),
}

impl Op {
    /// Returns the weights in planning and loading order. All weights of an operation are listed
    /// here only.
    pub fn weights(&self) -> Vec<WeightId> {
        let found = match self {
            Op::Embed { table, .. } | Op::EmbeddingBag { table, .. } => vec![Some(*table)],
            Op::Linear(l) => vec![Some(l.weight), l.bias, l.norm.as_ref().and_then(|n| n.gain)],
            Op::Norm(n) | Op::NormPerGroup(n, _) | Op::QuantizeActivations(Some(n)) => {
                vec![n.gain, n.bias]
            }
            Op::NormResidual(n) => vec![n.norm.gain, n.norm.bias, n.scale_weight],
            Op::Attention(a) => vec![a.sinks, a.relative, a.head_norm.as_ref().map(|h| h.gains)],
            Op::Gather { order: vector } | Op::MulVector(vector) | Op::Clip(vector) => {
                vec![Some(*vector)]
            }
            Op::TopKRouter(r) => vec![r.bias, r.gain],
            Op::ExpertUp(e) => vec![Some(e.weight), e.bias, e.norm.as_ref().and_then(|n| n.gain)],
            Op::ExpertDown(e) => vec![Some(e.weight), e.bias],
            Op::ShortConv(c) => vec![Some(c.weight), c.bias],
            Op::Recurrent(r) => vec![Some(r.gains)],
            Op::GatedNorm(n) => vec![Some(n.gain)],
            Op::AltUp(a) => a.weights(),
            Op::Add | Op::Mul | Op::Gated(_) | Op::Unary(_) | Op::Scale(_) | Op::LastRow => vec![],
            Op::Pool(_)
            | Op::Input(_)
            | Op::AddSoftTokens { .. }
            | Op::Concat
            | Op::QuantizeActivations(None) => {
                vec![]
            }
            Op::ConvTranspose1d(u) => vec![Some(u.weight), u.bias],
            Op::Snake { alpha: one }
            | Op::Asinh { k: one }
            | Op::AddPositionEmbedding { table: one } => {
                vec![Some(*one)]
            }
            Op::GroupNorm { gain, bias, .. } => vec![Some(*gain), Some(*bias)],
            Op::Im2Col(_) | Op::PadHeads { .. } | Op::ConcatHeads { .. } => vec![],
        };
        found.into_iter().flatten().collect()
    }

    /// Returns the sequence state of the operation.
    pub fn state(&self) -> Option<StateId> {
        match self {
            Op::Attention(a) => a.state,
            Op::ShortConv(c) => Some(c.state),
            Op::Recurrent(r) => Some(r.state),
            Op::GatedNorm(_) | Op::AltUp(_) => None,
            Op::Embed { .. }
            | Op::Linear(_)
            | Op::Norm(_)
            | Op::Gather { .. }
            | Op::Pool(_)
            | Op::Input(_) => None,
            Op::Add | Op::Mul | Op::Gated(_) | Op::Unary(_) | Op::Scale(_) | Op::LastRow => None,
            Op::TopKRouter(_) | Op::ExpertUp(_) | Op::ExpertDown(_) | Op::ConcatHeads { .. } => {
                None
            }
            Op::EmbeddingBag { .. } | Op::AddSoftTokens { .. } | Op::Concat => None,
            Op::Im2Col(_) | Op::ConvTranspose1d(_) | Op::Snake { .. } | Op::GroupNorm { .. } => {
                None
            }
            Op::Asinh { .. } | Op::AddPositionEmbedding { .. } | Op::PadHeads { .. } => None,
            Op::NormPerGroup(..)
            | Op::MulVector(_)
            | Op::Clip(_)
            | Op::QuantizeActivations(_)
            | Op::NormResidual(_) => None,
        }
    }
}
