//! Prefill activations stored as f16: those read only by f16 subgroup-matrix matmuls, which would
//! round them to f16 anyway. Halves the bytes read per tile and saves the conversion.

use super::{PlanOptions, lowering_of};
use crate::ir::{Dim, Graph, Node, ValueId};
use crate::util::map::SortedSet;

/// Returns these values of a graph. `uses` counts the reads of each value; `output` is the step's
/// result.
pub(super) fn f16_values(
    graph: &Graph,
    options: &PlanOptions<'_>,
    uses: &[usize],
    output: ValueId,
) -> SortedSet<ValueId> {
    let mut kept = SortedSet::new();
    if options.rows.decodes()
        || options.caps.prefers_fast_compile()
        || options.caps.subgroup_matrix().is_none()
    {
        return kept;
    }
    let on_units: Vec<bool> = graph
        .nodes
        .iter()
        .map(|node| is_f16_subgroup_matmul(graph, node, options))
        .collect();
    // Reads of each value as the sole input of such a matmul.
    let mut taken = vec![0; graph.values.len()];
    let alone = |node: &Node| {
        node.inputs[1..]
            .iter()
            .all(|other| graph.root(*other).0 != node.inputs[0])
    };
    for (node, _) in graph
        .nodes
        .iter()
        .zip(&on_units)
        .filter(|(node, on_units)| **on_units && alone(node))
    {
        taken[node.inputs[0].0] += 1;
    }
    for (node, on_units) in graph.nodes.iter().zip(on_units) {
        let made = node.output;
        let only = taken[made.0] > 0 && taken[made.0] == uses[made.0];
        if only
            && made != output
            && graph.root(made).0 == made
            && (on_units || lowering_of(&node.op).can_write_f16(options))
        {
            kept.insert(made);
        }
    }
    kept
}

/// Whether a node is a matmul of all rows on f16 subgroup matrices.
fn is_f16_subgroup_matmul(graph: &Graph, node: &Node, options: &PlanOptions<'_>) -> bool {
    let rows = graph.value(node.output).rows;
    let product = options.matmul_of(graph, node).filter(|_| rows != Dim::Last);
    product.is_some_and(|product| product.takes_f16_input(options.caps, options.rows.of(rows)))
}
