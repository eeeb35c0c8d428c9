//! Values of a prompt's step that are kept as halves: those that nothing but products on matrix units of halves reads, which round
//! them to halves anyway. Half of the bytes that a product reads for each tile, and no conversion there. Knows which kernels write halves.

use super::{PlanOptions, RowsMode};
use crate::ir::{Dim, Graph, Mask, Node, Op, ValueId};
use crate::kernels::attention::{Kv, on_halves};
use crate::util::map::SortedSet;

/// These values of a graph, of which `uses` has how often each is read; `output` is what the step is made for.
pub(super) fn of(graph: &Graph, options: &PlanOptions<'_>, uses: &[usize], output: ValueId) -> SortedSet<ValueId> {
    let mut kept = SortedSet::new();
    if matches!(options.rows, RowsMode::Few(_)) || options.caps.frugal() || options.caps.matrix_units().is_none() {
        return kept;
    }
    let on_units: Vec<bool> = graph.nodes.iter().map(|node| on_units(graph, node, options)).collect();
    // How often each value is read by such a product, as its input alone.
    let mut taken = vec![0; graph.values.len()];
    let alone = |node: &Node| node.inputs[1..].iter().all(|other| graph.root(*other).0 != node.inputs[0]);
    for (node, _) in graph.nodes.iter().zip(&on_units).filter(|(node, on_units)| **on_units && alone(node)) {
        taken[node.inputs[0].0] += 1;
    }
    for (node, on_units) in graph.nodes.iter().zip(on_units) {
        let made = node.output;
        let only = taken[made.0] > 0 && taken[made.0] == uses[made.0];
        if only && made != output && graph.root(made).0 == made && (on_units || writes(node, options)) {
            kept.insert(made);
        }
    }
    kept
}

/// Whether the last kernel of a node that is no product can write halves.
fn writes(node: &Node, options: &PlanOptions<'_>) -> bool {
    match &node.op {
        Op::Norm(_) => true,
        Op::Attention(a) => {
            // Attention of packed texts takes halves where not all of a model is f32, whose products are on no units.
            let cached = matches!(a.mask, Mask::Causal { .. } | Mask::Pictures { .. });
            let (exact, halves) = (cached && options.kv == Kv::F32, cached && options.kv == Kv::F16);
            on_halves(options.caps, a.head_dim as u32, exact, halves)
        }
        _ => false,
    }
}

/// Whether a node is a product of all rows on matrix units of halves.
fn on_units(graph: &Graph, node: &Node, options: &PlanOptions<'_>) -> bool {
    let rows = graph.value(node.output).rows;
    let product = options.product(graph, node).filter(|_| rows != Dim::Last);
    product.is_some_and(|product| product.takes_halves(options.caps, options.rows.of(rows)))
}
