//! Mixture-of-experts operations: top-k router, up and down matmuls of the selected experts.

use super::{Activation, CheckResult, NodeShape, Norm, OpDef};
use crate::ir::{Graph, WeightId};

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
pub struct TopKRouter {
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

impl TopKRouter {
    /// Maximum experts that the kernels select from.
    pub const MAX_EXPERTS: usize = 512;
    /// Maximum experts per row that the kernels select.
    pub const MAX_TOP_K: usize = 16;

    /// Whether the kernels select `top_k` of this many experts.
    pub fn supports(experts: usize, top_k: usize) -> bool {
        experts <= Self::MAX_EXPERTS && top_k <= Self::MAX_TOP_K.min(experts)
    }
}

impl OpDef for TopKRouter {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        [self.bias, self.gain].into_iter().flatten().collect()
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        if !Self::supports(self.experts, self.top_k) {
            return Err(format!(
                "no kernel selects {} of {} experts",
                self.top_k, self.experts
            ));
        }
        node.require_vector(self.gain, self.experts)?;
        node.require(node.cols(0) == self.experts && node.out() == 2 * self.top_k)
    }

    fn describe(&self, graph: &Graph) -> String {
        let mut text = format!("route[{} of {}, {:?}", self.top_k, self.experts, self.score);
        if let Some(bias) = self.bias {
            text += &format!(", chosen by {}", graph.first_part(bias));
        }
        if let Some(groups) = self.groups {
            text += &format!(", {} of {} groups", groups.keep, groups.count);
        }
        if self.renormalize {
            text += ", renormalized";
        }
        if self.scale != 1.0 {
            text += &format!(", * {}", self.scale);
        }
        if let Some(gain) = self.gain {
            text += &format!(", * {}", graph.first_part(gain));
        }
        text + "]"
    }
}

/// Weight rows of the gate of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateRows {
    /// There is no gate.
    None,
    /// Before the rows of the up projection.
    First,
    /// Alternating with the rows of the up projection.
    Interleaved,
}

/// Up (and gate) matmul of the selected experts with activation. Inputs: x, selection. Output row:
/// `top_k` times [`Self::span`] columns.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertUp {
    /// Stacked rows of the experts.
    pub weight: WeightId,
    /// One value per weight row.
    pub bias: Option<WeightId>,
    /// Experts.
    pub count: usize,
    /// Selected experts per row.
    pub top_k: usize,
    /// Output columns per expert.
    pub inner: usize,
    /// Rows of the gate: `act(gate) * up` rather than `act(up)`.
    pub gate: GateRows,
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
        selected_expert_stride(self.inner)
    }

    /// Weight rows per expert.
    pub fn rows(&self) -> usize {
        match self.gate {
            GateRows::None => self.inner,
            GateRows::First | GateRows::Interleaved => 2 * self.inner,
        }
    }
}

impl OpDef for ExpertUp {
    fn input_count(&self, _given: usize) -> usize {
        2
    }

    fn weights(&self) -> Vec<WeightId> {
        let gain = self.norm.as_ref().and_then(|norm| norm.gain);
        let weights = [Some(self.weight), self.bias, gain];
        weights.into_iter().flatten().collect()
    }

    fn read_share(&self, weight: WeightId) -> Option<(usize, usize)> {
        let own = weight == self.weight || Some(weight) == self.bias;
        own.then_some((self.top_k, self.count))
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let w = node.graph.weight(self.weight);
        let weight = w.cols == node.cols(0) && w.rows() == self.count * self.rows();
        let selection = node.cols(1) == 2 * self.top_k;
        node.require(weight && selection && node.out() == self.top_k * self.span())
    }

    fn describe(&self, graph: &Graph) -> String {
        let bias = if self.bias.is_some() { " + bias" } else { "" };
        let gate = match self.clamp {
            Some(_) => "clamped".into(),
            None => format!("{:?}", self.act),
        };
        let norm = self.norm.as_ref().map_or(String::new(), |norm| {
            format!(", after {}", norm.describe(graph))
        });
        format!(
            "experts[{} of {}, {} …{bias}, {gate}{norm}]",
            self.top_k,
            self.count,
            graph.first_part(self.weight)
        )
    }
}

/// Down matmul of the selected experts: the sum of a row's experts, each times its weight. Inputs:
/// up output, selection.
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

impl OpDef for ExpertDown {
    fn input_count(&self, _given: usize) -> usize {
        2 + usize::from(self.residual)
    }

    fn weights(&self) -> Vec<WeightId> {
        [Some(self.weight), self.bias]
            .into_iter()
            .flatten()
            .collect()
    }

    fn read_share(&self, weight: WeightId) -> Option<(usize, usize)> {
        let own = weight == self.weight || Some(weight) == self.bias;
        own.then_some((self.top_k, self.count))
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let w = node.graph.weight(self.weight);
        let weight = w.cols == self.inner && w.rows() == self.count * node.out();
        let selection = node.cols(1) == 2 * self.top_k;
        let input = node.cols(0) == self.top_k * selected_expert_stride(self.inner);
        node.require(weight && selection && input)
    }

    fn describe(&self, graph: &Graph) -> String {
        let bias = if self.bias.is_some() { " + bias" } else { "" };
        let residual = if self.residual { ", + residual" } else { "" };
        format!(
            "mix[{} of {}, {} …{bias}{residual}]",
            self.top_k,
            self.count,
            graph.first_part(self.weight)
        )
    }
}

/// Columns from one selected expert to the next, aligned for reads of four.
pub fn selected_expert_stride(inner: usize) -> usize {
    inner.next_multiple_of(4)
}
