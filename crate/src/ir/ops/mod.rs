//! Graph operations. One file defines an operation: fields, inputs, weights, state, shape check and
//! text form. `plan/lower` lowers it in a file of the same name.

mod activation;
mod altup;
mod attention;
mod columns;
mod conv;
mod elementwise;
mod embed;
mod embedding_bag;
mod experts;
mod group_norm;
mod hidden;
mod input;
mod linear;
mod norm;
mod pool;
mod position_embedding;
mod recurrent;
mod shape;
mod short_conv;
mod snake;

pub use activation::Activation;
pub use altup::AltUp;
pub use attention::{Attention, HeadNorm, Mask};
pub use columns::{Concat, ConcatHeads, Gather, HeadSlice, PadHeads};
pub use conv::{ConvTranspose1d, Im2Col};
pub use elementwise::{Add, Asinh, Clip, Gated, Mul, MulVector, Scale, Unary};
pub use embed::{AddSoftTokens, Embed, IdSource, SoftTokens};
pub use embedding_bag::EmbeddingBag;
pub use experts::{
    ExpertDown, ExpertGroups, ExpertUp, GateRows, RouterScore, TopKRouter, selected_expert_stride,
};
pub use group_norm::GroupNorm;
pub use hidden::{LoadHidden, StoreHidden};
pub use input::ReadInput;
pub use linear::{Addend, Combine, Epilogue, Linear, Prologue};
pub use norm::{Norm, NormLastRow, NormPerGroup, NormResidual, QuantizeActivations};
pub use pool::{LastRow, Pool, Pooling};
pub use position_embedding::AddPositionEmbedding;
pub use recurrent::{GatedNorm, RecurrenceRule, Recurrent};
pub use shape::{CheckResult, NodeShape};
pub use short_conv::ShortConv;
pub use snake::Snake;

use super::{Dim, Graph, StateId, WeightId};

/// Definition of an operation.
pub trait OpDef {
    /// Returns the number of inputs that a node needs; it has `given`.
    fn input_count(&self, given: usize) -> usize;

    /// Returns all weights, in planning and loading order.
    fn weights(&self) -> Vec<WeightId> {
        Vec::new()
    }

    /// Returns the sequence state.
    fn state(&self) -> Option<StateId> {
        None
    }

    /// Returns the output rows from those of the first input. Without inputs there is one row per
    /// token.
    fn output_rows(&self, input: Option<Dim>) -> Dim {
        input.unwrap_or(Dim::TOKENS)
    }

    /// Returns the number of positions of a learned position table.
    fn max_positions(&self, _node: &NodeShape<'_>) -> Option<usize> {
        None
    }

    /// Returns how many experts of a weight a row reads, and how many there are.
    fn read_share(&self, _weight: WeightId) -> Option<(usize, usize)> {
        None
    }

    /// Checks shapes, weights and state. [`super::Graph::validate`] has checked the number of
    /// inputs, and that the graph has the weights and the state.
    ///
    /// # Errors
    /// A description of the mismatch.
    fn check(&self, node: &NodeShape<'_>) -> CheckResult;

    /// Returns the text form for plan dumps.
    fn describe(&self, graph: &Graph) -> String;
}

/// Calls a macro with the types of all operations, in the order of [`Op`].
macro_rules! with_ops {
    ($apply:ident) => {
        $apply! {
            Embed, ReadInput, EmbeddingBag, AddSoftTokens, AddPositionEmbedding,
            Linear,
            Norm, NormLastRow, NormPerGroup, NormResidual, QuantizeActivations, GroupNorm, GatedNorm,
            Attention, ShortConv, Recurrent,
            Add, Mul, Gated, Unary, Scale, MulVector, Clip, Asinh, Snake,
            Concat, ConcatHeads, PadHeads, Gather,
            LastRow, Pool,
            TopKRouter, ExpertUp, ExpertDown,
            Im2Col, ConvTranspose1d,
            AltUp,
            StoreHidden, LoadHidden,
        }
    };
}
pub(crate) use with_ops;

macro_rules! define_op {
    ($($name:ident,)*) => {
        /// Operation of a node.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Op {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $name($name),
            )*
        }

        impl Op {
            /// Returns the definition of the operation.
            pub fn definition(&self) -> &dyn OpDef {
                match self {
                    $(Self::$name(op) => op,)*
                }
            }
        }

        $(
            impl From<$name> for Op {
                fn from(op: $name) -> Self {
                    Self::$name(op)
                }
            }
        )*
    };
}
with_ops!(define_op);

impl Op {
    /// Returns all weights, in planning and loading order.
    pub fn weights(&self) -> Vec<WeightId> {
        self.definition().weights()
    }

    /// Returns the sequence state.
    pub fn state(&self) -> Option<StateId> {
        self.definition().state()
    }
}
