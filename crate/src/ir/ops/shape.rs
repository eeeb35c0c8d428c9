//! Shapes of a node's inputs and output, with the checks that operations share.

use crate::ir::{Dim, Graph, Node, WeightId, WeightKind};

/// Ok, or a description of the mismatch.
pub type CheckResult = Result<(), String>;

/// A node of a graph, as its operation checks it.
#[derive(Debug, Clone, Copy)]
pub struct NodeShape<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
}

impl NodeShape<'_> {
    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Returns the columns of an input; 0 without it.
    pub fn cols(&self, input: usize) -> usize {
        let id = self.node.inputs.get(input);
        id.map_or(0, |id| self.graph.value(*id).cols)
    }

    /// Returns the columns of the output.
    pub fn out(&self) -> usize {
        self.graph.value(self.node.output).cols
    }

    /// Returns the rows of an input.
    pub fn rows(&self, input: usize) -> Option<Dim> {
        let id = self.node.inputs.get(input)?;
        Some(self.graph.value(*id).rows)
    }

    /// Whether all inputs have as many rows as the first.
    pub fn same_rows(&self) -> bool {
        (1..self.inputs()).all(|input| self.rows(input) == self.rows(0))
    }

    /// Whether all inputs have the rows of the first and the columns of the output.
    pub fn is_elementwise(&self) -> bool {
        (0..self.inputs()).all(|input| self.cols(input) == self.out()) && self.same_rows()
    }

    /// Reports columns that do not match unless `fits`.
    ///
    /// # Errors
    /// The columns.
    pub fn require(&self, fits: bool) -> CheckResult {
        if fits {
            return Ok(());
        }
        Err(format!(
            "input columns ({}, {}) do not match {} output columns",
            self.cols(0),
            self.cols(1),
            self.out()
        ))
    }

    /// Requires a weight to be of one of these kinds.
    ///
    /// # Errors
    /// The weight and its kind.
    pub fn require_kind(&self, id: WeightId, kinds: &[WeightKind]) -> CheckResult {
        let weight = self.graph.weight(id);
        if kinds.contains(&weight.kind) && !weight.parts.is_empty() {
            return Ok(());
        }
        let name = weight
            .parts
            .first()
            .map_or("a weight without parts", |part| part.0.as_str());
        Err(format!(
            "{name} is a {:?}, expected one of {kinds:?}",
            weight.kind
        ))
    }

    /// Requires a vector of `len` elements, where the weight is given.
    ///
    /// # Errors
    /// The weight and its elements.
    pub fn require_vector(&self, id: impl Into<Option<WeightId>>, len: usize) -> CheckResult {
        let Some(id) = id.into() else { return Ok(()) };
        self.require_kind(id, &[WeightKind::Vector])?;
        let weight = self.graph.weight(id);
        let found = weight.rows() * weight.cols;
        if found == len {
            return Ok(());
        }
        Err(format!(
            "{} has {found} elements, expected {len}",
            weight.parts[0].0
        ))
    }
}
