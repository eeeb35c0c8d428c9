//! Changes that make one graph into another with a different result, and what is read off a graph. Knows graphs alone.

use super::{Graph, Mask, Op, Weight, WeightId, WeightKind};

impl Graph {
    /// Drops the output head: the graph ends with the hidden states.
    pub fn without_head(mut self) -> Self {
        if let Some(logits) = self.logits.take() {
            self.nodes.retain(|n| n.output != logits);
        }
        self
    }

    /// Whether it looks at the rows of another sequence.
    pub fn looks(&self) -> bool {
        self.nodes.iter().any(|n| matches!(&n.op, Op::Attention(a) if a.mask == Mask::Memory))
    }

    /// What a tensor is used as: a table, which tokens are read from and compared with, a router, or a matrix.
    pub fn kind_of(&self, tensor: &str) -> WeightKind {
        let special = |w: &&Weight| matches!(w.kind, WeightKind::Table | WeightKind::Router);
        let mut all = self.weights.iter().filter(special);
        all.find(|w| w.parts.iter().any(|part| part.0 == tensor)).map_or(WeightKind::Matrix, |w| w.kind)
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
