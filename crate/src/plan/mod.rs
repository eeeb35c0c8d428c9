//! Execution plans: fusion, kernel selection and memory planning turn a graph into kernel launches
//! over buffers. Needs device capabilities but no device, so plans can be printed and tested
//! anywhere.

mod breaks;
mod bytes_read;
mod expert_prefetch;
pub mod fuse;
mod kv_offload;
mod lower;
mod memory;
mod states;
mod weights;

pub use breaks::{ExpertSelection, PlanBreak, PlanBreakKind};
pub use bytes_read::bytes_per_token;
pub use expert_prefetch::add_prefetch_routers;
pub use fuse::Fusions;
pub use kv_offload::KvOffloadPlan;
pub use lower::{MAX_GEMV_ROWS, PlanOptions, StepKind, lower};
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
    /// Ids, state and sampled tokens of the draft model, in launches that read both models'.
    DraftIds,
    /// As [`Slot::DraftIds`].
    DraftState,
    /// As [`Slot::DraftIds`].
    DraftTokens,
    /// All tokens of the sequence by position.
    History,
    /// Tokens that end a generation.
    Stops,
    /// Maximum logits of the vocabulary slices.
    ArgmaxPartials,
    /// Sampling parameters of a request.
    Sampling,
    /// Scratch of the sampler.
    SamplerScratch,
    /// The sampled token and a status.
    SampledToken,
    /// A copy of [`Slot::Tokens`], then the most likely tokens of the last steps.
    Candidates,
    /// Occurrences of each token.
    Counts,
    /// Logit bias of each token.
    Bias,
    /// Tokens allowed next, one bit each.
    TokenMask,
    /// Logits after bias, penalties and token mask.
    AdjustedLogits,
    /// First and end row of each row's sequence.
    SequenceSpans,
    /// End of each prompt row's visible keys, where it lies after the row.
    VisibleEnds,
    /// First and end row of each row's window.
    WindowSpans,
    /// First and end row of another sequence that each row attends to.
    CrossSpans,
    /// First and end row of each sequence, for pooling.
    PoolSpans,
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
    PagedRows(WeightId),
    /// A RoPE table.
    Rope(usize),
    /// A plane of a sequence state; in a batched step, of all sequences' states.
    State(StateId, u8),
    /// Page table of a batched step's KV caches.
    Pages,
    /// External rows.
    Input(InputId),
    /// Hidden states of a sequence by position, for the model's multi-token-prediction head.
    Hidden,
    /// Hidden state of the last row of such a head.
    LastHidden,
    /// Queries after RoPE; for packed sequences also keys.
    RopedQueries,
    /// Partial results of split attention.
    AttentionPartials,
    /// Input of a matmul in 8 bits, in the first or second buffer: a matmul reads one while it writes
    /// the input of the next to the other.
    QuantizedRows(usize),
    /// Sums of squares of rows that are quantized before their RMS is known.
    SquareSums,
    /// Row-expert pairs sorted by expert.
    ExpertTiles,
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
    /// Launches after a verification: they update recurrent states with the rows that were accepted.
    pub state_updates: Vec<Launch<Slot>>,
    /// Points where the host must act, in order. A step without breaks needs nothing from the host.
    pub breaks: Vec<PlanBreak>,
    /// Bytes of each activation buffer.
    pub activations: Vec<u64>,
    /// Bytes of the output.
    pub output: u64,
    /// Columns of the output.
    pub output_cols: usize,
    /// Bytes of the queries after RoPE.
    pub roped_queries: u64,
    /// Bytes of the scratch buffer.
    pub attention_partials: u64,
    /// Bytes of the largest matmul input in 8 bits, in each buffer.
    pub quantized_rows: [u64; 2],
    /// Bytes of the sums of squares.
    pub square_sums: u64,
    /// Bytes of the sorted row-expert pairs.
    pub expert_tiles: u64,
}

impl Plan {
    /// The row dimensions of its launches other than the step's tokens; some appear more than once.
    pub fn cursor_dims(&self) -> impl Iterator<Item = Dim> {
        let binds = self.launches.iter().flat_map(|launch| &launch.binds);
        binds.filter_map(|(_, slot)| match slot {
            Slot::Cursor(dim) if *dim != Dim::TOKENS => Some(*dim),
            _ => None,
        })
    }

    /// A plan of launches over buffers of its caller, such as sampling.
    pub fn sampling(launches: Vec<Launch<Slot>>) -> Self {
        Self {
            launches,
            state_updates: Vec::new(),
            breaks: Vec::new(),
            activations: Vec::new(),
            output: 0,
            output_cols: 0,
            roped_queries: 0,
            attention_partials: 0,
            quantized_rows: [0; 2],
            square_sums: 0,
            expert_tiles: 0,
        }
    }

    /// Returns the bytes of activations, output and scratch.
    pub fn bytes(&self) -> u64 {
        self.activations.iter().sum::<u64>()
            + self.output
            + self.scratch().iter().map(|(_, size)| size).sum::<u64>()
    }

    /// Returns the scratch buffers with their bytes, which may be 0.
    pub fn scratch(&self) -> [(Slot, u64); 6] {
        [
            (Slot::RopedQueries, self.roped_queries),
            (Slot::AttentionPartials, self.attention_partials),
            (Slot::QuantizedRows(0), self.quantized_rows[0]),
            (Slot::QuantizedRows(1), self.quantized_rows[1]),
            (Slot::SquareSums, self.square_sums),
            (Slot::ExpertTiles, self.expert_tiles),
        ]
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
        writeln!(
            f,
            "{} steps, {} bytes of activations",
            self.launches.len(),
            self.bytes()
        )
    }
}
