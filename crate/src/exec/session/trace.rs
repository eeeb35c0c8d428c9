//! Traces every named value of a model's graph for a prompt. The first value that differs shows
//! where a new family departs from its reference implementation.

use super::Session;
use crate::Result;
use crate::ir::{Attention, Dim, Graph, Mask, Op, ValueId};
use crate::plan::fuse;

/// A traced value.
#[derive(Debug, Clone)]
pub struct TracedValue {
    /// Its name, usually that of the tensors that produced it.
    pub name: String,
    /// Number of columns; there is one row for each token.
    pub cols: usize,
    /// Values, row-major. Router selections contain the bits of integers.
    pub values: Vec<f32>,
}

/// The graph truncated after a node.
fn truncate_graph(graph: &Graph, node: usize) -> Graph {
    let mut part = graph.clone();
    part.nodes.truncate(node + 1);
    (part.hidden, part.logits) = (part.nodes[node].output, None);
    part
}

impl Session {
    /// Returns all values with one row for each token, in evaluation order, plus named column
    /// ranges of them. Each value comes from a run of its own that ends with it, so no buffer has
    /// been reused. Fused ops yield one value; disable fusions to see all.
    ///
    /// # Errors
    /// As [`Self::all_rows`].
    pub async fn trace(&mut self, ids: &[u32]) -> Result<Vec<TracedValue>> {
        let graph = fuse::all_rows(self.model.planned(self.overlay).graph.clone());
        let mut out = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let value = graph.value(node.output);
            // Inputs are known already.
            if matches!(node.op, Op::ReadInput(_)) || value.rows != Dim::TOKENS {
                continue;
            }
            let values = self.graph_rows(&truncate_graph(&graph, index), ids).await?;
            let whole = TracedValue {
                name: value.name.clone(),
                cols: value.cols,
                values,
            };
            for (id, view) in graph
                .values
                .iter()
                .enumerate()
                .filter(|(_, v)| v.view.is_some())
            {
                let (root, first) = graph.root(ValueId(id));
                if root == node.output && view.rows == value.rows {
                    out.push(whole.columns(&view.name, first, view.cols));
                }
            }
            out.push(whole);
        }
        Ok(out)
    }

    /// Returns the cross-attention queries of a layer for every token, and the attention op:
    /// `[ids, heads * columns]`. `None` if the layer has no cross-attention. Afterwards the
    /// sequence is `ids`.
    ///
    /// # Errors
    /// As [`Self::all_rows`].
    pub async fn cross_attention_queries(
        &mut self,
        ids: &[u32],
        layer: usize,
    ) -> Result<Option<(Attention, Vec<f32>)>> {
        let graph = self.model.planned(self.overlay).graph.clone();
        let attentions = graph.nodes.iter().filter_map(|node| match &node.op {
            Op::Attention(attention) if attention.mask == Mask::CrossAttention => {
                Some((attention.clone(), graph.root(node.inputs[0]).0))
            }
            _ => None,
        });
        let Some((attention, queries)) = attentions.into_iter().nth(layer) else {
            return Ok(None);
        };
        let Some(node) = graph.nodes.iter().position(|node| node.output == queries) else {
            return Ok(None);
        };
        Ok(Some((
            attention,
            self.graph_rows(&truncate_graph(&graph, node), ids).await?,
        )))
    }
}

impl TracedValue {
    fn columns(&self, name: &str, first: usize, cols: usize) -> Self {
        let rows = self.values.chunks_exact(self.cols);
        Self {
            name: name.into(),
            cols,
            values: rows
                .flat_map(|row| row[first..first + cols].to_vec())
                .collect(),
        }
    }
}
