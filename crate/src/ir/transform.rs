//! Graph transformations that change the result, and graph queries.

use super::{
    Graph, GraphBuilder, LastRow, Mask, Node, Op, StoreHidden, Weight, WeightId, WeightKind,
};
use crate::{Error, Result};

impl Graph {
    /// Removes the output head: the graph ends with the hidden states.
    pub fn without_head(mut self) -> Self {
        if let Some(logits) = self.logits.take() {
            self.nodes.retain(|n| n.output != logits);
        }
        self
    }

    /// Stores hidden states for a multi-token-prediction head: the last norm then precedes the
    /// selection of the last row.
    ///
    /// # Errors
    /// `Internal` if the graph does not end with the norm of the last row.
    pub fn with_stored_hidden(mut self, store: StoreHidden) -> Result<Self> {
        let producer = |graph: &Self, id| graph.nodes.iter().position(|node| node.output == id);
        let found = producer(&self, self.hidden).and_then(|norm| {
            let last = producer(&self, self.nodes[norm].inputs[0])?;
            matches!(self.nodes[last].op, Op::LastRow(_)).then_some((last, norm))
        });
        let Some((last, norm)) = found else {
            let reason = format!("{}: no norm of the last row", self.name);
            return Err(Error::Internal(reason));
        };
        let x = self.nodes[last].inputs[0];
        let all = self.nodes[last].output;
        self.values[all.0].rows = self.value(x).rows;
        let name = std::mem::take(&mut self.values[all.0].name);
        self.values[all.0].name = std::mem::replace(&mut self.values[self.hidden.0].name, name);
        let op = std::mem::replace(&mut self.nodes[norm].op, LastRow.into());
        self.nodes[norm].inputs = vec![all];
        self.nodes[last] = Node {
            op,
            inputs: vec![x],
            output: all,
        };
        let (hidden, logits) = (self.hidden, self.logits);
        let mut b = GraphBuilder::resume(self);
        let cols = StoreHidden::OUTPUT_COLS;
        b.node("hidden", store, &[all], cols);
        b.finish(hidden, logits)
    }

    /// Returns the bytes of the hidden states that the graph stores for so many positions.
    pub fn stored_hidden_bytes(&self, positions: usize) -> u64 {
        let stores = |op: &Op| matches!(op, Op::StoreHidden(StoreHidden::ByPosition));
        match self.nodes.iter().any(|node| stores(&node.op)) {
            true => (positions * self.value(self.hidden).cols * 4) as u64,
            false => 0,
        }
    }

    /// Whether this is a multi-token-prediction head, which reads the hidden states of its model.
    pub fn is_mtp_head(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| matches!(node.op, Op::LoadHidden(_)))
    }

    /// Whether the graph has cross attention.
    pub fn has_cross_attention(&self) -> bool {
        self.nodes
            .iter()
            .any(|n| matches!(&n.op, Op::Attention(a) if a.mask == Mask::CrossAttention))
    }

    /// Whether the tokens of an image attend to each other.
    pub fn has_image_masks(&self) -> bool {
        self.nodes.iter().any(|n| {
            matches!(&n.op, Op::Attention(a) if matches!(a.mask, Mask::BidirectionalImages { .. }))
        })
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
