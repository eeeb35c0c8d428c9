//! Changes that make one graph into another with a different result, and what is read off a graph. Knows graphs alone.

use super::{Graph, WeightId, WeightKind};
use crate::util::lists::gather;
use std::collections::BTreeSet;

impl Graph {
    /// Drops the output head: the graph ends with the hidden states.
    pub fn without_head(mut self) -> Self {
        if let Some(logits) = self.logits.take() {
            self.nodes.retain(|n| n.output != logits);
        }
        self
    }

    /// The names of the tensors that tables are made of: what tokens are read from and compared with.
    pub fn tables(&self) -> BTreeSet<String> {
        let tables = self.weights.iter().filter(|weight| weight.kind == WeightKind::Table);
        gather(tables.flat_map(|weight| weight.parts.iter().map(|part| part.0.clone())))
    }

    /// The weights that nodes use, each once, in the order of use.
    pub fn used_weights(&self) -> Vec<WeightId> {
        let mut used = Vec::new();
        for id in self.nodes.iter().flat_map(|node| node.op.weights()) {
            if !used.contains(&id) {
                used.push(id);
            }
        }
        used
    }
}
