//! What a node of the graph can do, with the weights and the state of each operation. Knows no kernels.

use super::{
    AltUp, Attention, ExpertsIn, ExpertsOut, GatedNorm, HeadPart, InputId, Recurrent, Routing, ShortConv, StateId,
    Upsample, WeightId, Windows,
};

/// Which numbers of a token look up rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The token's id.
    Tokens,
    /// Its place in its text, as the model counts.
    Positions,
    /// Its kind, such as question or passage.
    Types,
}

/// How the tokens of a text become one row; the numbers are those of shaders/pool/pool.wgsl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean = 0,
    /// The first one.
    First = 1,
    /// The last one.
    Last = 2,
    /// The largest of each column.
    Max = 3,
    /// Their sum over the root of their count.
    MeanSqrt = 4,
    /// Their mean, each weighted by its place counted from 1.
    Weighted = 5,
}

impl Pooling {
    /// Whether it takes one token as it is: what works on each row alone may then come after it.
    pub fn picks(self) -> bool {
        matches!(self, Self::First | Self::Last)
    }
}

/// What numbers past the end of a table of tokens mean: pictures and other soft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soft {
    /// Rows of an input, which are not scaled.
    Rows(InputId),
    /// This number of the table.
    Number(u32),
}

/// Activation functions; the numbers are those of shaders/common/activation.wgsl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    None = 0,
    /// x · sigmoid(x), also called swish.
    Silu = 1,
    /// GELU by its tanh approximation.
    GeluTanh = 2,
    /// GELU by the error function.
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
    /// The activation of that name in config.json (`hidden_act`).
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

/// An RMS or layer norm over the columns of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// The gain; none means 1.
    pub gain: Option<WeightId>,
    /// The bias of a layer norm.
    pub bias: Option<WeightId>,
    /// Whether the mean is subtracted.
    pub layer: bool,
    /// Added to the gain: 1 for Gemma 2 and 3.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// A norm of each row that fusion has taken a residual, or two, along with: `(rest + norm(x) + more) * scale * by`.
#[derive(Debug, Clone, PartialEq)]
pub struct NormAdd {
    /// The norm.
    pub norm: Norm,
    /// Multiplies the sum.
    pub scale: f32,
    /// One number that multiplies it too.
    pub by: Option<WeightId>,
}

/// A matrix product with all that fusion may hang on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[n, k]`; `[2n, k]` with the gate's rows first when gated.
    pub weight: WeightId,
    /// The first row of the weight that is used; others than the first only without bias and gate.
    pub row0: usize,
    /// One per row of the weight.
    pub bias: Option<WeightId>,
    /// RMSNorm of the input.
    pub norm: Option<Norm>,
    /// Whether the input, or its norm, is rounded as [`Op::Round`] does it.
    pub round: bool,
    /// `y = act(gate) * up`.
    pub gated: bool,
    /// Applied to the product (to the gate when gated).
    pub act: Activation,
    /// Whether the node's second input is added last.
    pub residual: bool,
    /// Whether it multiplies the product instead.
    pub times: bool,
    /// Multiplies the product.
    pub scale: f32,
    /// `cap * tanh(y / cap)`; 0 for none.
    pub softcap: f32,
}

impl Linear {
    /// `y = x Wᵀ (+ bias)`.
    pub fn new(weight: WeightId, bias: Option<WeightId>) -> Self {
        let act = Activation::None;
        let (round, gated, residual, times) = (false, false, false, false);
        Self { weight, row0: 0, bias, norm: None, round, gated, act, residual, times, scale: 1.0, softcap: 0.0 }
    }
}

/// What a node does.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows of a table by number, scaled. No inputs.
    Embed {
        /// The table.
        table: WeightId,
        /// Multiplies the rows.
        scale: f32,
        /// Which numbers.
        ids: Ids,
        /// What numbers from the table's end on mean, in prompts only.
        soft: Option<Soft>,
    },
    /// Rows from outside. No inputs.
    Input(InputId),
    /// Sums of rows of a table: the input has `2 * taps` columns, pairs of a row's number (its bits) and its weight; where
    /// `taps` is 0 its columns weigh all rows of the table, which is a product with a matrix stored `[in, out]`.
    Blend {
        /// The table.
        table: WeightId,
        /// Pairs of a row, or 0.
        taps: usize,
    },
    /// Rows of an input are added where a token's number is past the end of a table, in prompts only: features of a picture's
    /// deeper layers.
    AddSoft {
        /// The rows.
        rows: InputId,
        /// The table.
        table: WeightId,
        /// The first of their columns that is used.
        column: usize,
    },
    /// The inputs' columns side by side.
    Beside,
    /// A matrix product.
    Linear(Linear),
    /// A norm of each row.
    Norm(Norm),
    /// Attention; inputs q, k, v, or q alone over keys and values that another layer has written.
    Attention(Attention),
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// `act(a) * b`, where `a` may have one column for all.
    Gated(Activation),
    /// `act(a)`.
    Unary(Activation),
    /// `a * factor`.
    Scale(f32),
    /// Heads of so many columns put together of one input's columns or of two's, the rest zero.
    HeadParts {
        /// Columns of a head.
        head_dim: usize,
        /// What is taken of each input.
        parts: Vec<HeadPart>,
    },
    /// The row of the step's last token.
    LastRow,
    /// The columns in another order.
    Gather {
        /// The input's column for each of the output's.
        order: WeightId,
    },
    /// One row for each text of a packed step.
    Pool(Pooling),
    /// Logits of all experts to numbers and weights of those that are picked.
    Route(Routing),
    /// The first product of the picked experts; inputs x, picks.
    Experts(ExpertsIn),
    /// The second one, summed; inputs what the first gave, picks.
    Mix(ExpertsOut),
    /// The windows of a convolution over rows: what a product makes it with.
    Windows(Windows),
    /// A causal transposed convolution in groups.
    Upsample(Upsample),
    /// `x + sin(a x)² / a` of the first columns, leaky ReLU of the others.
    Snake {
        /// An `a` for each of the first columns.
        alpha: WeightId,
    },
    /// A norm over all rows of groups of columns.
    GroupNorm {
        /// Groups.
        groups: usize,
        /// One for each column.
        gain: WeightId,
        /// One for each column.
        bias: WeightId,
        /// Added to the mean square.
        eps: f32,
    },
    /// `asinh(x * exp(k))`.
    Asinh {
        /// One number.
        k: WeightId,
    },
    /// Adds the row of a table at each row's position in its sequence.
    AddPositions {
        /// `[positions * cols]`, kept as f32.
        table: WeightId,
    },
    /// Heads made wider by columns of zeros, or narrower.
    Heads {
        /// How many.
        count: usize,
    },
    /// A norm of each so many columns of a row; the gain is that of one group.
    NormEach(Norm, usize),
    /// `a * w`: a vector of as many columns, or of one number.
    Times(WeightId),
    /// `a`, no lower than a vector's first number and no higher than its second.
    Clip(WeightId),
    /// Each row in whole steps of a 127th of its largest magnitude, as 8 bits would hold it; a norm may come before.
    Round(Option<Norm>),
    /// A norm of each row that is added to another row, or two; inputs x and those.
    NormAdd(NormAdd),
    /// A causal convolution over rows.
    ShortConv(ShortConv),
    /// A linear recurrence over rows.
    Recurrent(Recurrent),
    /// A norm with a gate.
    GatedNorm(GatedNorm),
    /// What Gemma 3n does with its streams.
    AltUp(AltUp),
}

impl Op {
    /// The weights that it reads, in the order in which they are planned and loaded: the one place that names them.
    pub fn weights(&self) -> Vec<WeightId> {
        let found = match self {
            Op::Embed { table, .. } | Op::Blend { table, .. } => vec![Some(*table)],
            Op::Linear(l) => vec![Some(l.weight), l.bias, l.norm.as_ref().and_then(|n| n.gain)],
            Op::Norm(n) | Op::NormEach(n, _) | Op::Round(Some(n)) => vec![n.gain, n.bias],
            Op::NormAdd(n) => vec![n.norm.gain, n.norm.bias, n.by],
            Op::Attention(a) => vec![a.sinks, a.relative, a.head_norm.as_ref().map(|h| h.gains)],
            Op::Gather { order: vector } | Op::Times(vector) | Op::Clip(vector) => vec![Some(*vector)],
            Op::Route(r) => vec![r.bias, r.gain],
            Op::Experts(e) => vec![Some(e.weight), e.bias, e.norm.as_ref().and_then(|n| n.gain)],
            Op::Mix(e) => vec![Some(e.weight), e.bias],
            Op::ShortConv(c) => vec![Some(c.weight), c.bias],
            Op::Recurrent(r) => vec![Some(r.gains)],
            Op::GatedNorm(n) => vec![Some(n.gain)],
            Op::AltUp(a) => a.weights(),
            Op::Add | Op::Mul | Op::Gated(_) | Op::Unary(_) | Op::Scale(_) | Op::LastRow => vec![],
            Op::Pool(_) | Op::Input(_) | Op::AddSoft { .. } | Op::Beside | Op::Round(None) => vec![],
            Op::Upsample(u) => vec![Some(u.weight), u.bias],
            Op::Snake { alpha: one } | Op::Asinh { k: one } | Op::AddPositions { table: one } => vec![Some(*one)],
            Op::GroupNorm { gain, bias, .. } => vec![Some(*gain), Some(*bias)],
            Op::Windows(_) | Op::Heads { .. } | Op::HeadParts { .. } => vec![],
        };
        found.into_iter().flatten().collect()
    }

    /// What it keeps of a sequence between steps.
    pub fn state(&self) -> Option<StateId> {
        match self {
            Op::Attention(a) => a.state,
            Op::ShortConv(c) => Some(c.state),
            Op::Recurrent(r) => Some(r.state),
            Op::GatedNorm(_) | Op::AltUp(_) => None,
            Op::Embed { .. } | Op::Linear(_) | Op::Norm(_) | Op::Gather { .. } | Op::Pool(_) | Op::Input(_) => None,
            Op::Add | Op::Mul | Op::Gated(_) | Op::Unary(_) | Op::Scale(_) | Op::LastRow => None,
            Op::Route(_) | Op::Experts(_) | Op::Mix(_) | Op::HeadParts { .. } => None,
            Op::Blend { .. } | Op::AddSoft { .. } | Op::Beside => None,
            Op::Windows(_) | Op::Upsample(_) | Op::Snake { .. } | Op::GroupNorm { .. } => None,
            Op::Asinh { .. } | Op::AddPositions { .. } | Op::Heads { .. } => None,
            Op::NormEach(..) | Op::Times(_) | Op::Clip(_) | Op::Round(_) | Op::NormAdd(_) => None,
        }
    }
}
