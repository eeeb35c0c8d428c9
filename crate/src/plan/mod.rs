//! From a graph to steps over buffers: passes that fuse, the choice of kernels, the layout of memory. A plan can be
//! printed and tested without a device; it knows capabilities but not wgpu.

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

/// A buffer of the engine, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// Token ids of the step.
    Ids,
    /// Each token's place in its text.
    Positions,
    /// Each token's kind.
    Types,
    /// Where the step stands (shaders/common/state.wgsl), which counts so many rows for the step's.
    Cursor(Dim),
    /// Ring of sampled tokens.
    Tokens,
    /// All tokens of the text, by position.
    History,
    /// Tokens that end a generation.
    Stops,
    /// Best logits of the slices of the vocabulary.
    Candidates,
    /// What a request asks of the draw.
    Sampling,
    /// Scratch of the draw.
    SampleWork,
    /// The token that was drawn, with a status.
    Picked,
    /// How often each token occurred.
    Counts,
    /// The bias of each token.
    Bias,
    /// Logits after bias and penalties.
    Scores,
    /// The first and the end row of each row's text.
    Segments,
    /// Where what each row of a prompt sees ends, where that is behind the row.
    Ends,
    /// The first and the end row of each row's window.
    Windows,
    /// The first and the end row of what each row sees of another sequence.
    Memory,
    /// The first and the end row of each text, as pooling sees it.
    Spans,
    /// An activation buffer; the plan says how many bytes.
    Activation(usize),
    /// The logits, or what the graph's last value is.
    Output,
    /// Elements or codes of a weight's run of rows.
    WeightQ(WeightId, usize),
    /// Scales of a weight's run of rows.
    WeightS(WeightId, usize),
    /// A vector, or the order of a matrix' columns.
    Vector(WeightId),
    /// Where the rows of the step's tokens lie in a table that holds some of its rows.
    Rows(WeightId),
    /// A rotation table.
    Rope(usize),
    /// A plane of what the sequence keeps.
    Sequence(StateId, u8),
    /// Rows from outside.
    Input(InputId),
    /// Rotated queries; for packed texts the keys too.
    Rotated,
    /// Partial results of split attention.
    Scratch,
    /// Picks sorted by expert.
    Buckets,
}

impl Slot {
    /// Where the step stands, by its own rows.
    pub const CURSOR: Self = Self::Cursor(Dim::TOKENS);
}

/// Steps with the buffers that they need beyond the model's own.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The steps in order.
    pub launches: Vec<Launch<Slot>>,
    /// Bytes of each activation buffer.
    pub activations: Vec<u64>,
    /// Bytes of the output.
    pub output: u64,
    /// Columns of the output.
    pub output_cols: usize,
    /// Bytes of the rotated queries.
    pub rotated: u64,
    /// Bytes of the scratch buffer.
    pub scratch: u64,
    /// Bytes of the sorted picks.
    pub sorted: u64,
}

impl Plan {
    /// Bytes of activations, output and scratch.
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
