//! Bytes read by a decode step.

use super::states::StatePlan;
use super::weights::WeightPlans;
use crate::ir::{Graph, Op};

/// Returns the bytes that a decode step at `position` reads: weights (without lookup tables,
/// selected experts only) and sequence state.
pub fn bytes_per_token(
    graph: &Graph,
    weights: &WeightPlans,
    states: &[StatePlan],
    position: usize,
) -> u64 {
    let mut graph = graph.clone();
    graph
        .nodes
        .retain(|node| !matches!(node.op, Op::Embed { .. }));
    let mut bytes = 0;
    for id in graph.used_weights() {
        let Some(plan) = weights.get(&id) else {
            continue;
        };
        let share = graph.nodes.iter().find_map(|node| match &node.op {
            Op::ExpertUp(e) if e.weight == id || e.bias == Some(id) => Some((e.top_k, e.count)),
            Op::ExpertDown(e) if e.weight == id || e.bias == Some(id) => Some((e.top_k, e.count)),
            _ => None,
        });
        let (each, count) = share.unwrap_or((1, 1));
        let whole = plan.bytes() * plan.total_rows as u64 / plan.rows.max(1) as u64;
        bytes += whole * each as u64 / count.max(1) as u64;
    }
    bytes
        + states
            .iter()
            .map(|state| state.bytes_read(position))
            .sum::<u64>()
}
