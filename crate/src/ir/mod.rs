//! Computation graph of a model, built at run time from config.json. Contains shapes and weight
//! names; encodings and kernels are decided later. The sequence length is symbolic: one graph
//! serves prefill, decode and encoding.

mod build;
mod dim;
mod dump;
mod lora;
mod ops;
pub mod rope;
mod state;
mod transform;
mod validate;

pub use build::GraphBuilder;
pub use dim::{Dim, RowFormula, StepSizes};
pub use lora::{LowRankUpdate, add_low_rank_updates};
pub(crate) use ops::with_ops;
pub use ops::{
    Activation, Add, AddPositionEmbedding, AddSoftTokens, Addend, AltUp, Asinh, Attention,
    CheckResult, Clip, Combine, Concat, ConcatHeads, ConvTranspose1d, Embed, EmbeddingBag,
    Epilogue, ExpertDown, ExpertGroups, ExpertUp, GateRows, Gated, GatedNorm, Gather, GroupNorm,
    HeadNorm, HeadSlice, IdSource, Im2Col, LastRow, Linear, LoadHidden, Mask, Mul, MulVector,
    NodeShape, Norm, NormLastRow, NormPerGroup, NormResidual, Op, OpDef, PadHeads, Pool, Pooling,
    Prologue, QuantizeActivations, ReadInput, RecurrenceRule, Recurrent, RouterScore, Scale,
    ShortConv, Snake, SoftTokens, StoreHidden, TopKRouter, Unary, selected_expert_stride,
};
pub use rope::{RopeScaling, RopeSpec};
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

/// An external input: image patches, audio frames, or the output of another graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Name, unique in the graph.
    pub name: String,
    /// Row count.
    pub rows: Dim,
    /// Columns, f32. Rows start at multiples of four.
    pub cols: usize,
}

/// An f32 matrix computed by the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name for plan dumps.
    pub name: String,
    /// Row count.
    pub rows: Dim,
    /// Column count.
    pub cols: usize,
    /// For a column range of another value: that value and the first column.
    pub view: Option<(ValueId, usize)>,
}

/// Use of a weight, which decides its storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// `[rows, cols]`, used in matmuls; may be quantized.
    Matrix,
    /// `[rows, cols]`, looked up by row; may be quantized, and may also be the output head.
    Table,
    /// `[rows, cols]`, a router with few rows; never quantized while loading.
    Router,
    /// `[experts * rows, cols]`, used in expert matmuls; may be quantized. An expert's rows stay
    /// together.
    Experts {
        /// Rows per expert.
        rows: usize,
    },
    /// `[cols]`, stored as f32.
    Vector,
    /// Column order of the matrix of that name, `[cols]`, u32.
    Order,
}

/// A weight and its checkpoint tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Checkpoint names (Hugging Face) of the stacked tensors, each with its rows.
    pub parts: Vec<(String, usize)>,
    /// Columns of all parts: K of a matrix. A vector has one column; its length is rows × cols.
    pub cols: usize,
    /// Use of the weight.
    pub kind: WeightKind,
}

impl Weight {
    /// Returns the rows of all parts.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|p| p.1).sum()
    }
}

/// One operation with its inputs and output.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Operation.
    pub op: Op,
    /// Input values.
    pub inputs: Vec<ValueId>,
    /// Output value.
    pub output: ValueId,
}

/// Computation graph of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// Architecture name.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// All nodes in execution order.
    pub nodes: Vec<Node>,
    /// All weights.
    pub weights: Vec<Weight>,
    /// RoPE tables.
    pub ropes: Vec<RopeSpec>,
    /// States that a sequence stores between steps.
    pub states: Vec<StateSpec>,
    /// External inputs.
    pub inputs: Vec<Input>,
    /// Hidden state after the last norm: one row per token, or only the last.
    pub hidden: ValueId,
    /// Logits of a language model.
    pub logits: Option<ValueId>,
}

impl Graph {
    /// Returns a value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Returns a weight.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// Returns the value that stores a view's columns, and its first column; for other values the
    /// value itself.
    pub fn root(&self, id: ValueId) -> (ValueId, usize) {
        match self.values[id.0].view {
            Some((of, first)) => {
                let (root, base) = self.root(of);
                (root, base + first)
            }
            None => (id, 0),
        }
    }

    /// Returns the root rows per row of the value.
    pub fn rows_per_row(&self, id: ValueId) -> usize {
        match (self.value(id).rows, self.value(self.root(id).0).rows) {
            (Dim::Rows(own), Dim::Rows(root)) => (own.divide / root.divide.max(1)).max(1) as usize,
            _ => 1,
        }
    }

    /// Returns the positions of the learned position tables; `usize::MAX` without one.
    pub fn max_positions(&self) -> usize {
        let shapes = self
            .nodes
            .iter()
            .map(|node| NodeShape { graph: self, node });
        shapes
            .filter_map(|shape| shape.node.op.definition().max_positions(&shape))
            .min()
            .unwrap_or(usize::MAX)
    }

    /// Returns how often nodes read each value, including through views. Outputs count once.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        let outputs = [Some(self.hidden), self.logits];
        let read = self
            .nodes
            .iter()
            .flat_map(|n| n.inputs.iter().copied())
            .chain(outputs.into_iter().flatten());
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
