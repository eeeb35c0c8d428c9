//! Execution plans: fusion, kernel selection and memory planning turn a graph into kernel launches over buffers. Needs
//! device capabilities but no device, so plans can be printed and tested anywhere.

mod ahead;
pub mod fuse;
mod halves;
mod lower;
mod memory;
mod reads;
mod rounds;
mod states;
mod weights;

pub use ahead::{GUESSED, look_ahead};
pub use fuse::Fusions;
pub use lower::{PlanOptions, RowsMode, lower};
pub use reads::bytes_per_token;
pub use states::{StatePlan, plan_states};
pub use weights::{WeightPlan, WeightPlans, plan_weights};

use crate::ir::{Dim, InputId, StateId, WeightId};
use crate::kernels::Launch;
use std::fmt;

/// A buffer of the engine by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// Token ids of the step.
    Ids,
    /// Position of each token in its sequence.
    Positions,
    /// Type of each token.
    Types,
    /// Step state (shaders/common/state.wgsl) that counts the given rows.
    Cursor(Dim),
    /// Ring of sampled tokens.
    Tokens,
    /// All tokens of the sequence by position.
    History,
    /// Tokens that end a generation.
    Stops,
    /// Maximum logits of the vocabulary slices.
    Candidates,
    /// Sampling parameters of a request.
    Sampling,
    /// Scratch of the sampler.
    SampleWork,
    /// The sampled token and a status.
    Picked,
    /// Occurrences of each token.
    Counts,
    /// Logit bias of each token.
    Bias,
    /// Logits after bias and penalties.
    Scores,
    /// First and end row of each row's sequence.
    Segments,
    /// End of each prompt row's visible keys, where it lies after the row.
    Ends,
    /// First and end row of each row's window.
    Windows,
    /// First and end row of another sequence that each row attends to.
    Memory,
    /// First and end row of each sequence, for pooling.
    Spans,
    /// An activation buffer; the plan gives its bytes.
    Activation(usize),
    /// Logits, or the graph's last value.
    Output,
    /// Elements or codes of a weight shard.
    WeightQ(WeightId, usize),
    /// Scales of a weight shard.
    WeightS(WeightId, usize),
    /// A vector, or the column order of a matrix.
    Vector(WeightId),
    /// Slots of the step's token rows in a paged table.
    Rows(WeightId),
    /// A RoPE table.
    Rope(usize),
    /// A plane of a sequence state.
    Sequence(StateId, u8),
    /// External rows.
    Input(InputId),
    /// Queries after RoPE; for packed sequences also keys.
    Rotated,
    /// Partial results of split attention.
    Scratch,
    /// Row-expert pairs sorted by expert.
    Buckets,
}

impl Slot {
    /// State of the step by its own rows.
    pub const CURSOR: Self = Self::Cursor(Dim::TOKENS);
}

/// Kernel launches and the buffers they need besides the model's own.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Launches in order.
    pub launches: Vec<Launch<Slot>>,
    /// Bytes of each activation buffer.
    pub activations: Vec<u64>,
    /// Bytes of the output.
    pub output: u64,
    /// Columns of the output.
    pub output_cols: usize,
    /// Bytes of the queries after RoPE.
    pub rotated: u64,
    /// Bytes of the scratch buffer.
    pub scratch: u64,
    /// Bytes of the sorted row-expert pairs.
    pub sorted: u64,
}

impl Plan {
    /// Returns the bytes of activations, output and scratch.
    pub fn bytes(&self) -> u64 {
        self.activations.iter().sum::<u64>() + self.output + self.rotated + self.scratch + self.sorted
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for launch in &self.launches {
            write!(f, "{}: {}", launch.label, launch.variant)?;
            for (name, slot) in &launch.binds {
                write!(f, " {name}={slot:?}")?;
            }
            writeln!(f, " {:?}", launch.grid)?;
        }
        writeln!(f, "{} steps, {} bytes of activations", self.launches.len(), self.bytes())
    }
}
