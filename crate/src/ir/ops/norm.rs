//! Norms of rows, alone or fused with a residual or with quantization.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Dim, Graph, WeightId};

/// RMSNorm or LayerNorm over the columns of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Gain; None means 1.
    pub gain: Option<WeightId>,
    /// Bias of a LayerNorm.
    pub bias: Option<WeightId>,
    /// Whether the mean is subtracted (LayerNorm).
    pub layer: bool,
    /// Added to the gain: 1 for Gemma 2 and 3.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

impl Norm {
    /// Checks the gain and bias for rows of `cols` columns.
    pub(super) fn check_weights(&self, node: &NodeShape<'_>, cols: usize) -> CheckResult {
        node.require_vector(self.gain, cols)?;
        node.require_vector(self.bias, cols)
    }

    /// Whether it is an RMSNorm with a gain, as matmul kernels can fuse.
    pub fn is_rms_with_gain(&self) -> bool {
        !self.layer && self.gain.is_some() && self.bias.is_none()
    }
}

impl OpDef for Norm {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        [self.gain, self.bias].into_iter().flatten().collect()
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        self.check_weights(node, node.out())?;
        node.require(node.cols(0) == node.out())
    }

    fn describe(&self, _graph: &Graph) -> String {
        let kind = if self.layer { "layer norm" } else { "rms norm" };
        match self.offset {
            0.0 => kind.into(),
            offset => format!("{kind} + {offset}"),
        }
    }
}

/// Norm of the row of the step's last token.
#[derive(Debug, Clone, PartialEq)]
pub struct NormLastRow(pub Norm);

impl OpDef for NormLastRow {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        self.0.weights()
    }

    fn output_rows(&self, _input: Option<Dim>) -> Dim {
        Dim::Last
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        self.0.check(node)
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("{} of the last row", self.0.describe(graph))
    }
}

/// Norm of each group of columns; all groups share the gain.
#[derive(Debug, Clone, PartialEq)]
pub struct NormPerGroup {
    /// The norm.
    pub norm: Norm,
    /// Columns per group.
    pub group: usize,
}

impl OpDef for NormPerGroup {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        self.norm.weights()
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        self.norm.check_weights(node, self.group)?;
        let whole = self.group > 0 && node.out().is_multiple_of(self.group);
        node.require(node.cols(0) == node.out() && whole)
    }

    fn describe(&self, graph: &Graph) -> String {
        format!("{} of each {}", self.norm.describe(graph), self.group)
    }
}

/// Norm of each row added to one or two residuals: `(rest + norm(x) + more) * scale * by`. Inputs:
/// x, residuals.
#[derive(Debug, Clone, PartialEq)]
pub struct NormResidual {
    /// The norm.
    pub norm: Norm,
    /// Multiplies the sum.
    pub scale: f32,
    /// Scalar that also multiplies the sum.
    pub scale_weight: Option<WeightId>,
}

impl OpDef for NormResidual {
    fn input_count(&self, given: usize) -> usize {
        given.clamp(2, 3)
    }

    fn weights(&self) -> Vec<WeightId> {
        let mut weights = self.norm.weights();
        weights.extend(self.scale_weight);
        weights
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        self.norm.check_weights(node, node.out())?;
        node.require_vector(self.scale_weight, 1)?;
        node.require(node.is_elementwise())
    }

    fn describe(&self, graph: &Graph) -> String {
        let mut text = format!("{} + residual", self.norm.describe(graph));
        if self.scale != 1.0 {
            text += &format!(" * {}", self.scale);
        }
        if let Some(by) = self.scale_weight {
            text += &format!(" * {}", graph.weight_name(by));
        }
        text
    }
}

/// Quantizes each row to 8 bits: multiples of 1/127 of its largest magnitude. A norm may precede.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeActivations(pub Option<Norm>);

impl OpDef for QuantizeActivations {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn weights(&self) -> Vec<WeightId> {
        self.0.as_ref().map_or(Vec::new(), OpDef::weights)
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        if let Some(norm) = &self.0 {
            norm.check_weights(node, node.out())?;
        }
        node.require(node.cols(0) == node.out())
    }

    fn describe(&self, graph: &Graph) -> String {
        match &self.0 {
            None => "round".into(),
            Some(norm) => format!("round after {}", norm.describe(graph)),
        }
    }
}
