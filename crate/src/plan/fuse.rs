//! Fusion passes over a graph. Each can be switched off, and none changes the result.

mod gates;
mod gather;
mod norms;
mod quantize;
mod residuals;
mod rewriter;
mod siblings;

pub use gather::gather_inputs;
pub(super) use norms::fuse_last_row;
pub(super) use quantize::{fuse_quantize, fuse_quantized_norms};

use crate::format::layout::WeightLayout;
use crate::ir::{Dim, Graph, Op};
use rewriter::Rewriter;

/// Enabled fusions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fusions {
    /// Merges matmuls of the same input (q, k, v; gate and up).
    pub siblings: bool,
    /// Fuses gate, up and activation.
    pub gated: bool,
    /// Fuses the residual into the preceding matmul or norm.
    pub residual: bool,
    /// Fuses RMSNorm into the following matmuls (decode, and inputs in 8 bits), and norms into the
    /// following quantization.
    pub norm: bool,
    /// Fuses head norm, RoPE and the cache write into attention (decode only), and norms of values
    /// into their cache write.
    pub heads: bool,
}

impl Fusions {
    /// All fusions.
    pub const ALL: Self = Self {
        siblings: true,
        gated: true,
        residual: true,
        norm: true,
        heads: true,
    };
    /// No fusions.
    pub const NONE: Self = Self {
        siblings: false,
        gated: false,
        residual: false,
        norm: false,
        heads: false,
    };
}

/// Applies the fusions shared by prefill and decode, including those that decide weight storage.
pub fn common(graph: Graph, fusions: Fusions, layout_of: &dyn Fn(&str) -> WeightLayout) -> Graph {
    common_with_storage(graph, fusions, &|a, b| layout_of(a) == layout_of(b))
}

/// As [`common`]; merges only weights all of whose tensors `share_storage`.
pub fn common_with_storage(
    graph: Graph,
    fusions: Fusions,
    share_storage: &dyn Fn(&str, &str) -> bool,
) -> Graph {
    let mut graph = Rewriter::new(graph);
    if fusions.siblings {
        siblings::merge_siblings(&mut graph, share_storage);
    }
    if fusions.gated {
        gates::merge_gates(&mut graph);
    }
    if fusions.residual {
        residuals::merge_residuals(&mut graph);
        residuals::merge_norm_residuals(&mut graph);
    }
    if fusions.norm {
        norms::merge_quantized_norms(&mut graph);
    }
    if fusions.heads {
        norms::merge_value_norms(&mut graph);
    }
    graph.finish()
}

/// Applies the fusions for few rows, all of which are outputs; a single row needs no last-row copy.
/// `hidden` is not an output if its norm is fused.
pub fn few_rows(graph: Graph, fusions: Fusions) -> Graph {
    few_rows_to_last(all_rows(graph), fusions)
}

/// Applies the fusions for few rows, of which the last is the output.
pub fn few_rows_to_last(graph: Graph, fusions: Fusions) -> Graph {
    // External rows occur in prompts only.
    let graph = replace_by_views(graph, |op| matches!(op, Op::AddSoftTokens(_)));
    if !fusions.norm {
        return graph;
    }
    let mut graph = Rewriter::new(graph);
    norms::merge_norms(&mut graph);
    graph.finish()
}

/// Removes the last-row selection: computes logits or hidden states for every token.
pub fn all_rows(graph: Graph) -> Graph {
    let mut graph = replace_by_views(graph, |op| matches!(op, Op::LastRow(_)));
    graph
        .values
        .iter_mut()
        .filter(|v| v.rows == Dim::Last)
        .for_each(|v| v.rows = Dim::TOKENS);
    graph
}

/// Replaces operations that pass their input on by views of it.
fn replace_by_views(graph: Graph, replaced: impl Fn(&Op) -> bool) -> Graph {
    let mut graph = Rewriter::new(graph);
    for index in 0..graph.len() {
        if graph.node(index).is_some_and(|node| replaced(&node.op)) {
            graph.replace_by_view(index);
        }
    }
    graph.finish()
}
