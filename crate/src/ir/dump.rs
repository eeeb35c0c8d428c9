//! Text form of a graph, stable between runs, for `run plan` and golden tests.

use super::{Graph, WeightId};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.name)?;
        for (i, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope {i}: {rope:?}")?;
        }
        for (i, state) in self.states.iter().enumerate() {
            writeln!(f, "state {i}: {state:?}")?;
        }
        for node in &self.nodes {
            let out = self.value(node.output);
            let rows = out.rows;
            let inputs: Vec<&str> = node
                .inputs
                .iter()
                .map(|i| self.value(*i).name.as_str())
                .collect();
            writeln!(
                f,
                "{} [{rows}, {}] = {}({})",
                out.name,
                out.cols,
                node.op.definition().describe(self),
                inputs.join(", ")
            )?;
        }
        let logits = self.logits.map_or("none", |l| self.value(l).name.as_str());
        writeln!(
            f,
            "hidden {}, logits {logits}",
            self.value(self.hidden).name
        )
    }
}

impl Graph {
    /// Returns the checkpoint names of a weight, joined by `|`.
    pub(super) fn weight_name(&self, id: WeightId) -> String {
        let parts: Vec<&str> = self.weight(id).parts.iter().map(|p| p.0.as_str()).collect();
        parts.join(" | ")
    }

    /// Returns the first checkpoint name of a weight.
    pub(super) fn first_part(&self, id: WeightId) -> &str {
        self.weight(id).parts.first().map_or("", |p| p.0.as_str())
    }
}
