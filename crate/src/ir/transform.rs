//! Graph transformations that change the result, and graph queries.

use super::{Graph, Mask, Op, Weight, WeightId, WeightKind};

impl Graph {
    /// Removes the output head: the graph ends with the hidden states.
    pub fn without_head(mut self) -> Self {
        if let Some(logits) = self.logits.take() {
            self.nodes.retain(|n| n.output != logits);
        }
        self
    }

    /// Whether the graph has cross attention.
    pub fn has_cross_attention(&self) -> bool {
        self.nodes
            .iter()
            .any(|n| matches!(&n.op, Op::Attention(a) if a.mask == Mask::CrossAttention))
    }

    /// Whether activations are rounded to 8 bits before matmuls.
    pub fn quantizes_activations(&self) -> bool {
        let quantizes = |op: &Op| matches!(op, Op::QuantizeActivations(_));
        self.nodes.iter().any(|node| quantizes(&node.op))
    }

    /// Returns the use of a tensor: matrix, router, or table (embedding, possibly tied to the
    /// output head).
    pub fn kind_of(&self, tensor: &str) -> WeightKind {
        let mut all = self
            .weights
            .iter()
            .filter(|w: &&Weight| matches!(w.kind, WeightKind::Table | WeightKind::Router));
        all.find(|w| w.parts.iter().any(|part| part.0 == tensor))
            .map_or(WeightKind::Matrix, |w| w.kind)
    }

    /// Returns the weights that nodes use, each once, in order of use.
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
