//! Matmuls.

use super::{Activation, CheckResult, NodeShape, Norm, OpDef};
use crate::ir::{Graph, WeightId, WeightKind};

/// Operation on the input of a matmul.
#[derive(Debug, Clone, PartialEq)]
pub enum Prologue {
    /// The input as it is.
    None,
    /// Norm of the input.
    Norm(Norm),
    /// Norm of the input, quantized as by [`super::QuantizeActivations`].
    QuantizedNorm(Norm),
}

impl Prologue {
    /// Returns the norm.
    pub fn norm(&self) -> Option<&Norm> {
        match self {
            Self::None => None,
            Self::Norm(norm) | Self::QuantizedNorm(norm) => Some(norm),
        }
    }
}

/// Term added to the result of a matmul before its activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addend {
    /// Nothing.
    None,
    /// A bias: one value per weight row.
    Vector(WeightId),
    /// The node's second input, as many columns as used weight rows. Kernels add it only where the
    /// matmul has neither gate, activation nor [`Combine`].
    Rows,
}

impl From<Option<WeightId>> for Addend {
    fn from(bias: Option<WeightId>) -> Self {
        bias.map_or(Self::None, Self::Vector)
    }
}

/// Function of the result of a matmul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// `act(y)`.
    Activation(Activation),
    /// `act(gate) * up`: the first half of the weight rows is the gate.
    Gate(Activation),
}

/// Use of the node's last input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// There is none.
    None,
    /// Added to the result, as a residual.
    Add,
    /// Multiplies the result.
    Mul,
}

/// A matmul with its fused prologue and epilogue.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[n, k]`; if gated `[2n, k]`, gate rows first.
    pub weight: WeightId,
    /// First weight row to use. Must be 0 with a bias or gate.
    pub row0: usize,
    /// Operation on the input.
    pub prologue: Prologue,
    /// Multiplies the result of the matmul.
    pub scale: f32,
    /// Term added before the activation.
    pub addend: Addend,
    /// Activation or gate.
    pub epilogue: Epilogue,
    /// `cap * tanh(y / cap)`; 0 for none.
    pub softcap: f32,
    /// Use of the last input.
    pub combine: Combine,
}

impl Linear {
    /// Creates `y = x Wᵀ (+ bias)`.
    pub fn new(weight: WeightId, bias: Option<WeightId>) -> Self {
        Self {
            weight,
            row0: 0,
            prologue: Prologue::None,
            scale: 1.0,
            addend: bias.into(),
            epilogue: Epilogue::Activation(Activation::None),
            softcap: 0.0,
            combine: Combine::None,
        }
    }

    /// Returns the bias.
    pub fn bias(&self) -> Option<WeightId> {
        match self.addend {
            Addend::Vector(bias) => Some(bias),
            Addend::None | Addend::Rows => None,
        }
    }

    /// Whether half of the weight rows are a gate.
    pub fn is_gated(&self) -> bool {
        matches!(self.epilogue, Epilogue::Gate(_))
    }

    /// Returns the activation, of the gate if gated.
    pub fn activation(&self) -> Activation {
        match self.epilogue {
            Epilogue::Activation(act) | Epilogue::Gate(act) => act,
        }
    }

    /// Returns the weight rows that make `cols` output columns.
    pub fn weight_rows(&self, cols: usize) -> usize {
        if self.is_gated() { 2 * cols } else { cols }
    }

    /// Returns the input that [`Self::combine`] uses.
    pub fn combined_input(&self) -> Option<usize> {
        let rows = usize::from(self.addend == Addend::Rows);
        (self.combine != Combine::None).then_some(1 + rows)
    }

    /// Whether the prologue is empty, and no input but the first is used.
    pub fn is_plain(&self) -> bool {
        self.prologue == Prologue::None
            && self.addend != Addend::Rows
            && !self.is_gated()
            && self.combine == Combine::None
            && self.softcap == 0.0
    }
}

impl OpDef for Linear {
    fn input_count(&self, _given: usize) -> usize {
        let rows = usize::from(self.addend == Addend::Rows);
        1 + rows + usize::from(self.combine != Combine::None)
    }

    fn weights(&self) -> Vec<WeightId> {
        let gain = self.prologue.norm().and_then(|norm| norm.gain);
        let weights = [Some(self.weight), self.bias(), gain];
        weights.into_iter().flatten().collect()
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let kinds = [WeightKind::Matrix, WeightKind::Table, WeightKind::Router];
        node.require_kind(self.weight, &kinds)?;
        let w = node.graph.weight(self.weight);
        let rows = self.weight_rows(node.out());
        let whole = self.row0 == 0 && w.rows() == rows;
        let part = !self.is_gated() && self.bias().is_none() && self.row0 + rows <= w.rows();
        if w.cols != node.cols(0) || !(whole || part) {
            return Err(format!(
                "weight of {} × {} from row {} does not map {} columns to {}",
                w.rows(),
                w.cols,
                self.row0,
                node.cols(0),
                node.out()
            ));
        }
        if let Some(norm) = self.prologue.norm() {
            norm.check_weights(node, node.cols(0))?;
        }
        node.require_vector(self.bias(), w.rows())?;
        let addend =
            self.addend != Addend::Rows || (node.cols(1) == rows && node.rows(1) == node.rows(0));
        let combined = self
            .combined_input()
            .is_none_or(|input| node.cols(input) == node.out() && node.rows(input) == node.rows(0));
        node.require(addend && combined)
    }

    fn describe(&self, graph: &Graph) -> String {
        let mut text = format!("linear[{}", graph.weight_name(self.weight));
        if self.row0 > 0 {
            text += &format!(" from row {}", self.row0);
        }
        text += match self.addend {
            Addend::None => "",
            Addend::Vector(_) => " + bias",
            Addend::Rows => " + rows",
        };
        if let Some(norm) = self.prologue.norm() {
            text += &format!(", after {}", norm.describe(graph));
        }
        if self.is_gated() {
            text += ", gated";
        }
        if self.activation().is_some() {
            text += &format!(", {:?}", self.activation());
        }
        text += match self.combine {
            Combine::None => "",
            Combine::Add => ", + residual",
            Combine::Mul => ", times",
        };
        if self.softcap > 0.0 {
            text += &format!(", softcap {}", self.softcap);
        }
        text + "]"
    }
}
