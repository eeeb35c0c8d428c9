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
    graph.nodes.retain(|node| !matches!(node.op, Op::Embed(_)));
    let mut bytes = 0;
    for id in graph.used_weights() {
        let Some(plan) = weights.get(&id) else {
            continue;
        };
        let mut shares = graph.nodes.iter();
        let share = shares.find_map(|node| node.op.definition().read_share(id));
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
