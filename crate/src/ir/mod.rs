//! The graph: what a model computes, made at run time from config.json. It knows shapes and names of weights, but
//! neither how weights are encoded nor what a GPU is. The sequence length is symbolic: one graph serves prefill,
//! decode and encoding.

mod altup;
mod check;
mod dim;
mod dump;
pub mod experts;
mod recurrent;
pub mod rope;
mod sound;
mod state;
mod surgery;

use crate::Result;
pub use altup::AltUp;
pub use dim::{Counts, Dim, Stride};
pub use experts::{ExpertsIn, ExpertsOut, Groups, Routing, Score};
pub use recurrent::{GatedNorm, Recurrent, Rule, ShortConv};
pub use rope::{RopeScaling, RopeSpec};
pub use sound::{Upsample, Windows};
pub use state::{StateId, StateSpec};

/// Index of a value in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// Index of a weight in [`Graph::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Index of an input in [`Graph::inputs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InputId(pub usize);

/// Rows that come from outside the graph: patches of a picture, frames of a sound, what another graph made.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its name, unique in the graph.
    pub name: String,
    /// Its rows.
    pub rows: Dim,
    /// Its columns, f32; rows start at multiples of four.
    pub cols: usize,
}

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

/// A matrix of f32 that the graph computes.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// For dumps.
    pub name: String,
    /// Its rows.
    pub rows: Dim,
    /// Its columns.
    pub cols: usize,
    /// Set when it is a range of another value's columns: that value and the first column.
    pub view: Option<(ValueId, usize)>,
}

/// What a weight is used as, which decides how it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// `[rows, cols]`, used by matrix products; may be quantized.
    Matrix,
    /// `[rows, cols]`, looked up by row; may be quantized, and be the output head as well.
    Table,
    /// `[rows, cols]`, of few rows whose product decides what else is computed; never quantized while loading.
    Router,
    /// `[experts * rows, cols]`, used by products of experts; may be quantized. An expert's rows stay together.
    Experts {
        /// Rows of an expert.
        rows: usize,
    },
    /// `[cols]`, kept as f32.
    Vector,
    /// The order in which the columns of the matrix of that name are kept, `[cols]`, u32.
    Order,
}

/// A weight by the names of the tensors it is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Names in the checkpoint (HuggingFace's), one under another; each with its rows.
    pub parts: Vec<(String, usize)>,
    /// Columns of all parts (K of a matrix, the length of a vector is rows × cols with one column).
    pub cols: usize,
    /// What it is used as.
    pub kind: WeightKind,
}

impl Weight {
    /// Rows of all parts.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|p| p.1).sum()
    }
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
    /// `y = act(gate) * up`.
    pub gated: bool,
    /// Applied to the product (to the gate when gated).
    pub act: Activation,
    /// Whether the node's second input is added last.
    pub residual: bool,
    /// Multiplies the product.
    pub scale: f32,
    /// `cap * tanh(y / cap)`; 0 for none.
    pub softcap: f32,
}

impl Linear {
    /// `y = x Wᵀ (+ bias)`.
    pub fn new(weight: WeightId, bias: Option<WeightId>) -> Self {
        let act = Activation::None;
        Self { weight, row0: 0, bias, norm: None, gated: false, act, residual: false, scale: 1.0, softcap: 0.0 }
    }
}

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
    /// Index into [`Graph::ropes`]; none for layers without rotation.
    pub rope: Option<usize>,
    /// Keys and values of the sequence ([`StateSpec::Kv`]); none for encoders.
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
            Op::Gather { order: vector } | Op::Times(vector) => vec![Some(*vector)],
            Op::Route(r) => vec![r.bias],
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
            Op::NormEach(..) | Op::Times(_) | Op::Round(_) | Op::NormAdd(_) => None,
        }
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// What it makes.
    pub output: ValueId,
}

/// A model's computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The architecture's name.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// All nodes, in an order in which they can run.
    pub nodes: Vec<Node>,
    /// All weights.
    pub weights: Vec<Weight>,
    /// Rotation tables.
    pub ropes: Vec<RopeSpec>,
    /// What a sequence keeps between steps.
    pub states: Vec<StateSpec>,
    /// What comes from outside.
    pub inputs: Vec<Input>,
    /// The hidden state after the last norm, one row per token or the last one.
    pub hidden: ValueId,
    /// The logits of a language model.
    pub logits: Option<ValueId>,
}

impl Graph {
    /// The value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// The weight.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// The value that holds a view's columns, and the first of them; the value itself when it is no view.
    pub fn root(&self, id: ValueId) -> (ValueId, usize) {
        match self.values[id.0].view {
            Some((of, first)) => {
                let (root, base) = self.root(of);
                (root, base + first)
            }
            None => (id, 0),
        }
    }

    /// How many rows of its root one row of the value is made of.
    pub fn folded(&self, id: ValueId) -> usize {
        match (self.value(id).rows, self.value(self.root(id).0).rows) {
            (Dim::Rows(own), Dim::Rows(root)) => (own.per / root.per.max(1)).max(1) as usize,
            _ => 1,
        }
    }

    /// How many positions its tables of learned positions have; `usize::MAX` where there is none.
    pub fn places(&self) -> usize {
        let rows = |node: &Node| match node.op {
            Op::Embed { table, ids: Ids::Positions, .. } => Some(self.weight(table).rows()),
            Op::AddPositions { table } => Some(self.weight(table).rows() / self.value(node.output).cols),
            _ => None,
        };
        self.nodes.iter().filter_map(rows).min().unwrap_or(usize::MAX)
    }

    /// How often each value is read by nodes, reads of its views included, outputs counted once.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        let outputs = [Some(self.hidden), self.logits];
        let read = self.nodes.iter().flat_map(|n| n.inputs.iter().copied()).chain(outputs.into_iter().flatten());
        for id in read {
            let mut at = Some(id);
            while let Some(v) = at {
                uses[v.0] += 1;
                at = self.values[v.0].view.map(|(of, _)| of);
            }
        }
        uses
    }
}

/// Builds a graph in the order of the forward pass.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
}

impl Builder {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        let graph = Graph {
            name: name.into(),
            values: Vec::new(),
            nodes: Vec::new(),
            weights: Vec::new(),
            ropes: Vec::new(),
            states: Vec::new(),
            inputs: Vec::new(),
            hidden: ValueId(0),
            logits: None,
        };
        Self { graph }
    }

    /// Goes on with a graph that is there.
    pub fn resume(graph: Graph) -> Self {
        Self { graph }
    }

    /// The graph as it is.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph as it is, to be changed.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Declares a weight `[rows, cols]` that is looked up in the checkpoint by name; the same name is declared once.
    pub fn weight(&mut self, name: &str, rows: usize, cols: usize, kind: WeightKind) -> WeightId {
        let parts = vec![(name.to_string(), rows)];
        if let Some(found) = self.graph.weights.iter().position(|w| w.parts == parts && w.cols == cols) {
            return WeightId(found);
        }
        self.graph.weights.push(Weight { parts, cols, kind });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Declares a matrix `[rows, cols]`.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> WeightId {
        self.weight(name, rows, cols, WeightKind::Matrix)
    }

    /// `y = x Wᵀ (+ bias)` that decides what else is computed.
    pub fn router(&mut self, name: &str, x: ValueId, rows: usize, bias: bool) -> ValueId {
        let weight = self.weight(&format!("{name}.weight"), rows, self.cols(x), WeightKind::Router);
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), rows));
        self.node(name, Op::Linear(Linear::new(weight, bias)), &[x], rows)
    }

    /// Declares a vector.
    pub fn vector(&mut self, name: &str, len: usize) -> WeightId {
        self.weight(name, len, 1, WeightKind::Vector)
    }

    /// Declares vectors that are stored one after another.
    pub fn vectors(&mut self, names: &[String], len: usize) -> WeightId {
        let parts = names.iter().map(|n| (n.clone(), len)).collect();
        self.graph.weights.push(Weight { parts, cols: 1, kind: WeightKind::Vector });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Declares one vector of parts of any lengths, one after another.
    pub fn joined(&mut self, parts: impl IntoIterator<Item = (String, usize)>) -> WeightId {
        let parts = parts.into_iter().collect();
        self.stacked(parts, 1, WeightKind::Vector)
    }

    /// Declares a weight that is made of tensors one under another, each with its rows.
    pub fn stacked(&mut self, parts: Vec<(String, usize)>, cols: usize, kind: WeightKind) -> WeightId {
        self.graph.weights.push(Weight { parts, cols, kind });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Declares a rotation; equal ones share a table.
    pub fn rope(&mut self, spec: RopeSpec) -> usize {
        if let Some(found) = self.graph.ropes.iter().position(|r| *r == spec) {
            return found;
        }
        self.graph.ropes.push(spec);
        self.graph.ropes.len() - 1
    }

    /// Declares a state of the sequence.
    pub fn state(&mut self, spec: StateSpec) -> StateId {
        self.graph.states.push(spec);
        StateId(self.graph.states.len() - 1)
    }

    /// Rows that come from outside, as a value.
    pub fn input(&mut self, name: &str, rows: Dim, cols: usize) -> ValueId {
        let id = self.declare_input(name, rows, cols);
        let value = self.node(name, Op::Input(id), &[], cols);
        self.graph.values[value.0].rows = rows;
        value
    }

    /// Declares rows that come from outside and are named by an op.
    pub fn declare_input(&mut self, name: &str, rows: Dim, cols: usize) -> InputId {
        self.graph.inputs.push(Input { name: name.into(), rows, cols });
        InputId(self.graph.inputs.len() - 1)
    }

    /// Columns of a value.
    pub fn cols(&self, id: ValueId) -> usize {
        self.graph.value(id).cols
    }

    /// Adds a node with `cols` output columns.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId], cols: usize) -> ValueId {
        let rows = match (&op, inputs.first()) {
            (Op::LastRow, _) => Dim::Last,
            (Op::Pool(_), _) => Dim::Sequences,
            (Op::Windows(windows), Some(input)) => windows.of(self.graph.value(*input).rows),
            (Op::Upsample(upsample), Some(input)) => self.graph.value(*input).rows.upsampled(upsample.rate, 0),
            (_, Some(input)) => self.graph.value(*input).rows,
            (_, None) => Dim::TOKENS,
        };
        self.graph.values.push(Value { name: name.into(), rows, cols, view: None });
        let output = ValueId(self.graph.values.len() - 1);
        self.graph.nodes.push(Node { op, inputs: inputs.to_vec(), output });
        output
    }

    /// A range of a value's columns.
    pub fn view(&mut self, name: &str, of: ValueId, first: usize, cols: usize) -> ValueId {
        let rows = self.graph.value(of).rows;
        self.graph.values.push(Value { name: name.into(), rows, cols, view: Some((of, first)) });
        ValueId(self.graph.values.len() - 1)
    }

    /// Rows joined end to end, `count` at a time; the columns of `of` are a multiple of four.
    pub fn fold(&mut self, name: &str, of: ValueId, count: usize) -> ValueId {
        let Value { rows, cols, .. } = *self.graph.value(of);
        self.graph.values.push(Value {
            name: name.into(),
            rows: rows.merged(count),
            cols: cols * count,
            view: Some((of, 0)),
        });
        ValueId(self.graph.values.len() - 1)
    }

    /// `y = x Wᵀ (+ bias)` with the tensors `{name}.weight` and `{name}.bias`.
    pub fn linear(&mut self, name: &str, x: ValueId, rows: usize, bias: bool) -> ValueId {
        let cols = self.cols(x);
        let weight = self.matrix(&format!("{name}.weight"), rows, cols);
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), rows));
        self.node(name, Op::Linear(Linear::new(weight, bias)), &[x], rows)
    }

    /// `a + b`.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let cols = self.cols(a);
        self.node(name, Op::Add, &[a, b], cols)
    }

    /// The finished graph.
    ///
    /// # Errors
    /// `Error::Internal` when a node reads a value before it is made, or shapes do not meet.
    pub fn finish(mut self, hidden: ValueId, logits: Option<ValueId>) -> Result<Graph> {
        self.graph.hidden = hidden;
        self.graph.logits = logits;
        self.graph.check()?;
        Ok(self.graph)
    }
}
