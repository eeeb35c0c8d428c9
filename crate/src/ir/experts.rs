//! Mixture-of-experts operations: top-k router, up and down matmuls of the selected experts.

use super::{Activation, Norm, WeightId};

/// Scoring function of a router, applied to its logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterScore {
    /// Softmax over all experts. Softmax over the selected ones only equals this plus
    /// renormalization.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// PhiMoE's sparse mixer: each selection has a softmax over the logits within its own
    /// tolerance.
    Mixer,
}

/// Expert groups; a row selects from the best groups only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: u32,
    /// Groups to select from.
    pub keep: u32,
    /// Whether a group's score is the sum of its two best experts rather than its best one.
    pub sum_two_best: bool,
}

/// Top-k router: maps logits of all experts to the selected expert ids, then their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Experts.
    pub experts: usize,
    /// Selected experts per row (k).
    pub top_k: usize,
    /// Scoring function.
    pub score: RouterScore,
    /// `[experts]`, added to the scores for selection but not for the weights.
    pub bias: Option<WeightId>,
    /// Expert groups.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights are divided by their sum.
    pub renormalize: bool,
    /// Added to that sum; for the mixer, its tolerance.
    pub eps: f32,
    /// Multiplies the weights.
    pub scale: f32,
    /// `[experts]`, also multiplies the weights.
    pub gain: Option<WeightId>,
    /// Whether it predicts the next layer's experts for prefetching. No node reads a prediction.
    pub prefetch: bool,
}

/// Up (and gate) matmul of the selected experts with activation. Output row: `each` times
/// [`Self::span`] columns.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertUp {
    /// Stacked expert rows: gate, then up, if gated.
    pub weight: WeightId,
    /// One value per weight row.
    pub bias: Option<WeightId>,
    /// Experts.
    pub count: usize,
    /// Selected experts per row.
    pub top_k: usize,
    /// Output columns per expert.
    pub inner: usize,
    /// `act(gate) * up` rather than `act(up)`.
    pub gated: bool,
    /// Whether gate and up rows are interleaved.
    pub interleaved: bool,
    /// The activation.
    pub act: Activation,
    /// GPT-OSS gate instead: `(up + 1) * gate * sigmoid(factor * gate)`, both clamped to a limit.
    pub clamp: Option<[f32; 2]>,
    /// RMSNorm of the input.
    pub norm: Option<Norm>,
}

impl ExpertUp {
    /// Columns from one selected expert to the next.
    pub fn span(&self) -> usize {
        span(self.inner)
    }

    /// Weight rows per expert.
    pub fn rows(&self) -> usize {
        if self.gated {
            2 * self.inner
        } else {
            self.inner
        }
    }
}

/// Down matmul of the selected experts: the sum of a row's experts, each times its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertDown {
    /// Stacked expert rows.
    pub weight: WeightId,
    /// One value per weight row.
    pub bias: Option<WeightId>,
    /// Experts.
    pub count: usize,
    /// Selected experts per row.
    pub top_k: usize,
    /// Input columns per expert.
    pub inner: usize,
    /// Whether the node's third input is added last.
    pub residual: bool,
}

/// Columns from one selected expert to the next, aligned for reads of four.
pub fn span(inner: usize) -> usize {
    inner.next_multiple_of(4)
}
