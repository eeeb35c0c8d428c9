//! Changes that make one graph into another with a different result. Knows graphs alone.

use super::Graph;

impl Graph {
    /// Drops the output head: the graph ends with the hidden states.
    pub fn without_head(mut self) -> Self {
        if let Some(logits) = self.logits.take() {
            self.nodes.retain(|n| n.output != logits);
        }
        self
    }
}
