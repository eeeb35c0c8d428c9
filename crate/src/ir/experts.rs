//! Mixtures of experts in a graph: a router's choice, and the two products of the experts that it picked. Knows shapes and
//! rules, not how they are computed.

use super::{Activation, Norm, WeightId};

/// What a router's logits become before experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts. Softmax over the chosen alone is the same, renormalised.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// PhiMoE's sparse mixer: each pick's softmax is over the logits within a tolerance of its own.
    Mixer,
}

/// Groups of experts, of which only the best are open to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// How many.
    pub count: u32,
    /// How many are kept.
    pub keep: u32,
    /// Whether a group stands for the sum of its two best experts rather than for its best one.
    pub pairs: bool,
}

/// How experts are chosen and weighed: logits of all experts become the numbers of the chosen ones, then their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts.
    pub experts: usize,
    /// Experts that a row picks.
    pub picks: usize,
    /// What chooses and weighs.
    pub score: Score,
    /// `[experts]`, added to the scores that choose, not to those that weigh.
    pub bias: Option<WeightId>,
    /// Groups of experts.
    pub groups: Option<Groups>,
    /// Whether the weights are divided by their sum.
    pub renormalize: bool,
    /// Added to that sum; the mixer's tolerance.
    pub eps: f32,
    /// Multiplies the weights.
    pub scale: f32,
    /// `[experts]`, multiplies the weights too.
    pub gain: Option<WeightId>,
}

/// The first product of the picked experts, with activation: a row of `each` times [`Self::span`] columns.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsIn {
    /// The experts' rows one under another: gate, then up, where gated.
    pub weight: WeightId,
    /// One per row.
    pub bias: Option<WeightId>,
    /// Experts.
    pub count: usize,
    /// Experts that a row picks.
    pub each: usize,
    /// Columns of an expert's result.
    pub inner: usize,
    /// `act(gate) * up` rather than `act(up)`.
    pub gated: bool,
    /// Whether the rows of gate and up take turns.
    pub turns: bool,
    /// The activation.
    pub act: Activation,
    /// GPT-OSS's gate instead: `(up + 1) * gate * sigmoid(factor * gate)`, both cut off at a limit.
    pub clamp: Option<[f32; 2]>,
    /// RMSNorm of the input.
    pub norm: Option<Norm>,
}

impl ExpertsIn {
    /// Columns from one pick of a row to the next.
    pub fn span(&self) -> usize {
        span(self.inner)
    }

    /// Rows of the weight that are an expert's.
    pub fn rows(&self) -> usize {
        if self.gated { 2 * self.inner } else { self.inner }
    }
}

/// The second product of the picked experts: the sum of a row's picks, each times its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsOut {
    /// The experts' rows one under another.
    pub weight: WeightId,
    /// One per row.
    pub bias: Option<WeightId>,
    /// Experts.
    pub count: usize,
    /// Experts that a row picks.
    pub each: usize,
    /// Columns of each expert's input.
    pub inner: usize,
    /// Whether the node's third input is added last.
    pub residual: bool,
}

/// Columns from one pick's to the next, so that each can be read four at a time.
pub fn span(inner: usize) -> usize {
    inner.next_multiple_of(4)
}
