//! Every named value of a model's graph for a prompt: where a new family departs from its reference shows in the first value
//! that differs. Knows the graph, not what its values mean.

use super::session::Session;
use crate::Result;
use crate::ir::{Attention, Dim, Graph, Mask, Op, ValueId};
use crate::plan::fuse;

/// A value of the graph.
#[derive(Debug, Clone)]
pub struct Traced {
    /// Its name: that of the tensors that made it, mostly.
    pub name: String,
    /// Its columns; there is a row for each token.
    pub cols: usize,
    /// Row by row. A router's picks hold the bits of numbers.
    pub values: Vec<f32>,
}

/// The graph up to a node, which it ends with.
fn up_to(graph: &Graph, node: usize) -> Graph {
    let mut part = graph.clone();
    part.nodes.truncate(node + 1);
    (part.hidden, part.logits) = (part.nodes[node].output, None);
    part
}

impl Session {
    /// All values that have a row for each token, in the order in which they are made, and the columns of them that have a
    /// name of their own. Each is the end of a run of its own, so that no buffer is used twice. What fusions have made one
    /// has one value: a session without fusions has them all.
    ///
    /// # Errors
    /// As [`Self::every_row`].
    pub async fn trace(&mut self, ids: &[u32]) -> Result<Vec<Traced>> {
        let graph = fuse::all_rows(self.graph.clone());
        let mut out = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let value = graph.value(node.output);
            // What comes from outside is there already.
            if matches!(node.op, Op::Input(_)) || value.rows != Dim::TOKENS {
                continue;
            }
            let values = self.rows_of(&up_to(&graph, index), ids).await?;
            let whole = Traced { name: value.name.clone(), cols: value.cols, values };
            for (id, view) in graph.values.iter().enumerate().filter(|(_, v)| v.view.is_some()) {
                let (root, first) = graph.root(ValueId(id));
                if root == node.output && view.rows == value.rows {
                    out.push(whole.columns(&view.name, first, view.cols));
                }
            }
            out.push(whole);
        }
        Ok(out)
    }

    /// What a layer's heads ask of the rows that a decoder looks at, for every token, with the attention that asks:
    /// `[ids, heads * columns]`. None where there is no such layer. The sequence is these ids afterwards.
    ///
    /// # Errors
    /// As [`Self::every_row`].
    pub async fn queries(&mut self, ids: &[u32], layer: usize) -> Result<Option<(Attention, Vec<f32>)>> {
        let graph = self.graph.clone();
        let looks = graph.nodes.iter().filter_map(|node| match &node.op {
            Op::Attention(look) if look.mask == Mask::Memory => Some((look.clone(), graph.root(node.inputs[0]).0)),
            _ => None,
        });
        let Some((look, queries)) = looks.into_iter().nth(layer) else { return Ok(None) };
        let Some(node) = graph.nodes.iter().position(|node| node.output == queries) else { return Ok(None) };
        Ok(Some((look, self.rows_of(&up_to(&graph, node), ids).await?)))
    }
}

impl Traced {
    fn columns(&self, name: &str, first: usize, cols: usize) -> Self {
        let rows = self.values.chunks_exact(self.cols);
        Self { name: name.into(), cols, values: rows.flat_map(|row| row[first..first + cols].to_vec()).collect() }
    }
}
