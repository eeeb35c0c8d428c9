//! Graph builder that adds nodes in forward-pass order.

use super::{
    Add, Dim, Graph, Input, InputId, Linear, Node, Op, ReadInput, RopeSpec, StateId, StateSpec,
    Value, ValueId, Weight, WeightId, WeightKind,
};
use crate::Result;

/// Builds a graph in forward-pass order.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// Creates an empty graph.
    pub fn new(name: &str) -> Self {
        let graph = Graph {
            name: name.into(),
            values: Vec::new(),
            nodes: Vec::new(),
            weights: Vec::new(),
            ropes: Vec::new(),
            states: Vec::new(),
            inputs: Vec::new(),
            hidden: ValueId(0),
            logits: None,
        };
        Self { graph }
    }

    /// Continues an existing graph.
    pub fn resume(graph: Graph) -> Self {
        Self { graph }
    }

    /// Returns the graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the graph so far, mutably.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Declares a weight `[rows, cols]` by its checkpoint name. Declaring a name again returns the
    /// same weight.
    pub fn weight(&mut self, name: &str, rows: usize, cols: usize, kind: WeightKind) -> WeightId {
        let parts = vec![(name.to_string(), rows)];
        if let Some(found) = self
            .graph
            .weights
            .iter()
            .position(|w| w.parts == parts && w.cols == cols)
        {
            return WeightId(found);
        }
        self.graph.weights.push(Weight { parts, cols, kind });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Declares a matrix `[rows, cols]`.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> WeightId {
        self.weight(name, rows, cols, WeightKind::Matrix)
    }

    /// Adds a router matmul `y = x Wᵀ (+ bias)`; its weight is not quantized while loading.
    pub fn router(&mut self, name: &str, x: ValueId, rows: usize, bias: bool) -> ValueId {
        let weight = self.weight(
            &format!("{name}.weight"),
            rows,
            self.cols(x),
            WeightKind::Router,
        );
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), rows));
        self.node(name, Linear::new(weight, bias), &[x], rows)
    }

    /// Declares a vector.
    pub fn vector(&mut self, name: &str, len: usize) -> WeightId {
        self.weight(name, len, 1, WeightKind::Vector)
    }

    /// Declares vectors stored one after another.
    pub fn vectors(&mut self, names: &[String], len: usize) -> WeightId {
        let parts = names.iter().map(|n| (n.clone(), len)).collect();
        self.graph.weights.push(Weight {
            parts,
            cols: 1,
            kind: WeightKind::Vector,
        });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Declares one vector concatenated from parts of any length.
    pub fn concat_vectors(&mut self, parts: impl IntoIterator<Item = (String, usize)>) -> WeightId {
        let parts = parts.into_iter().collect();
        self.stacked(parts, 1, WeightKind::Vector)
    }

    /// Declares a weight stacked from tensors, each with its row count.
    pub fn stacked(
        &mut self,
        parts: Vec<(String, usize)>,
        cols: usize,
        kind: WeightKind,
    ) -> WeightId {
        self.graph.weights.push(Weight { parts, cols, kind });
        WeightId(self.graph.weights.len() - 1)
    }

    /// Declares a RoPE; equal specs share a table.
    pub fn rope(&mut self, spec: RopeSpec) -> usize {
        if let Some(found) = self.graph.ropes.iter().position(|r| *r == spec) {
            return found;
        }
        self.graph.ropes.push(spec);
        self.graph.ropes.len() - 1
    }

    /// Declares a sequence state.
    pub fn state(&mut self, spec: StateSpec) -> StateId {
        self.graph.states.push(spec);
        StateId(self.graph.states.len() - 1)
    }

    /// Adds an external input as a value.
    pub fn input(&mut self, name: &str, rows: Dim, cols: usize) -> ValueId {
        let id = self.declare_input(name, rows, cols);
        let value = self.node(name, ReadInput(id), &[], cols);
        self.graph.values[value.0].rows = rows;
        value
    }

    /// Declares an external input without adding a node for it.
    pub fn declare_input(&mut self, name: &str, rows: Dim, cols: usize) -> InputId {
        self.graph.inputs.push(Input {
            name: name.into(),
            rows,
            cols,
        });
        InputId(self.graph.inputs.len() - 1)
    }

    /// Returns the columns of a value.
    pub fn cols(&self, id: ValueId) -> usize {
        self.graph.value(id).cols
    }

    /// Adds a node with `cols` output columns.
    pub fn node(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[ValueId],
        cols: usize,
    ) -> ValueId {
        self.add_node(name, op.into(), inputs, cols)
    }

    fn add_node(&mut self, name: &str, op: Op, inputs: &[ValueId], cols: usize) -> ValueId {
        let input = inputs.first().map(|id| self.graph.value(*id).rows);
        let rows = op.definition().output_rows(input);
        self.graph.values.push(Value {
            name: name.into(),
            rows,
            cols,
            view: None,
        });
        let output = ValueId(self.graph.values.len() - 1);
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            output,
        });
        output
    }

    /// Returns a column range of a value.
    pub fn view(&mut self, name: &str, of: ValueId, first: usize, cols: usize) -> ValueId {
        let rows = self.graph.value(of).rows;
        self.graph.values.push(Value {
            name: name.into(),
            rows,
            cols,
            view: Some((of, first)),
        });
        ValueId(self.graph.values.len() - 1)
    }

    /// Joins every `count` consecutive rows into one. The columns of `of` must be a multiple of
    /// four.
    pub fn fold_rows(&mut self, name: &str, of: ValueId, count: usize) -> ValueId {
        let Value { rows, cols, .. } = *self.graph.value(of);
        self.graph.values.push(Value {
            name: name.into(),
            rows: rows.divided(count),
            cols: cols * count,
            view: Some((of, 0)),
        });
        ValueId(self.graph.values.len() - 1)
    }

    /// Adds `y = x Wᵀ (+ bias)` with the tensors `{name}.weight` and `{name}.bias`.
    pub fn linear(&mut self, name: &str, x: ValueId, rows: usize, bias: bool) -> ValueId {
        let cols = self.cols(x);
        let weight = self.matrix(&format!("{name}.weight"), rows, cols);
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), rows));
        self.node(name, Linear::new(weight, bias), &[x], rows)
    }

    /// Adds `a + b`.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let cols = self.cols(a);
        self.node(name, Add, &[a, b], cols)
    }

    /// Validates and returns the graph.
    ///
    /// # Errors
    /// `Error::Internal` if a node reads a value before it is computed, or shapes do not match.
    pub fn finish(mut self, hidden: ValueId, logits: Option<ValueId>) -> Result<Graph> {
        self.graph.hidden = hidden;
        self.graph.logits = logits;
        self.graph.validate()?;
        Ok(self.graph)
    }
}
