//! The graph: what a model computes, made at run time from config.json. It knows shapes and names of weights, but
//! neither how weights are encoded nor what a GPU is. The sequence length is symbolic: one graph serves prefill,
//! decode and encoding.

mod altup;
mod attention;
mod build;
mod check;
mod dim;
mod dump;
pub mod experts;
mod op;
mod recurrent;
pub mod rope;
mod sound;
mod state;
mod surgery;

pub use altup::AltUp;
pub use attention::{Attention, HeadNorm, HeadPart, Mask};
pub use build::Builder;
pub use dim::{Counts, Dim, Stride};
pub use experts::{ExpertsIn, ExpertsOut, Groups, Routing, Score};
pub use op::{Activation, Ids, Linear, Norm, NormAdd, Op, Pooling, Soft};
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
