//! Graph validation: node order, references and shapes.

use super::{CheckResult, Graph, Node, NodeShape};
use crate::{Error, Result};

impl Graph {
    /// Validates node order, shapes, and the weights, RoPE tables and states that nodes reference.
    ///
    /// # Errors
    /// `Error::Internal` with the node and the mismatch.
    pub fn validate(&self) -> Result<()> {
        let mut made = vec![false; self.values.len()];
        for node in &self.nodes {
            let name = &self.value(node.output).name;
            let fault =
                |what: String| Error::Internal(format!("graph {}: {name}: {what}", self.name));
            for input in &node.inputs {
                if !made[self.root(*input).0.0] {
                    return Err(fault(format!(
                        "reads {} before it is computed",
                        self.value(*input).name
                    )));
                }
            }
            self.check_node(node).map_err(fault)?;
            made[node.output.0] = true;
        }
        Ok(())
    }

    /// Validates what a node references, its number of inputs, and what its operation checks.
    fn check_node(&self, node: &Node) -> CheckResult {
        let op = node.op.definition();
        let weights = self.weights.len();
        if let Some(id) = op.weights().into_iter().find(|id| id.0 >= weights) {
            return Err(format!(
                "references weight {}, but the graph has {weights}",
                id.0
            ));
        }
        let states = self.states.len();
        if let Some(id) = op.state().filter(|id| id.0 >= states) {
            return Err(format!(
                "references state {}, but the graph has {states}",
                id.0
            ));
        }
        let inputs = node.inputs.len();
        let expected = op.input_count(inputs);
        if inputs != expected {
            return Err(format!("has {inputs} inputs, expected {expected}"));
        }
        op.check(&NodeShape { graph: self, node })
    }
}
