//! Which KV caches of a sequence are in main memory when the device has no room for all of them.

use super::StatePlan;
use crate::ir::{StateId, StateSpec};

/// Placement of a sequence's states under a limit. KV caches in main memory take turns in buffers
/// that have room for the largest of them; on the device each keeps its last positions only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvOffloadPlan {
    /// States in main memory.
    pub offloaded: Vec<StateId>,
    /// Bytes of each plane of the buffers that they share.
    pub shared: Vec<u64>,
    /// Last positions that each keeps on the device, at least as many as a step has rows.
    pub recent: usize,
    /// Bytes of all states on the device.
    pub bytes: u64,
}

impl KvOffloadPlan {
    /// Offloads as few KV caches as `limit` bytes on the device allow; windowed layers and
    /// recurrent states stay.
    ///
    /// # Errors
    /// The minimum bytes of the states, if they exceed `limit`.
    pub fn new(states: &[StatePlan], recent: usize, limit: u64) -> Result<Self, u64> {
        let movable: Vec<StateId> = (0..states.len())
            .filter(|index| {
                matches!(states[*index].spec, StateSpec::Kv { .. }) && !states[*index].ring
            })
            .map(StateId)
            .collect();
        let mut least = u64::MAX;
        // One alone would take no turns.
        for count in std::iter::once(0).chain(2..=movable.len()) {
            let plan = Self::with_offloaded(states, &movable[..count], recent);
            if plan.bytes <= limit {
                return Ok(plan);
            }
            least = least.min(plan.bytes);
        }
        Err(least)
    }

    fn with_offloaded(states: &[StatePlan], offloaded: &[StateId], recent: usize) -> Self {
        let mut shared = Vec::new();
        let mut bytes = 0;
        for (index, state) in states.iter().enumerate() {
            if !offloaded.contains(&StateId(index)) {
                bytes += state.bytes();
                continue;
            }
            shared.resize(shared.len().max(state.planes.len()), 0);
            for (most, plane) in shared.iter_mut().zip(&state.planes) {
                *most = (*most).max(*plane);
                bytes += state.written_bytes(*plane, recent);
            }
        }
        bytes += shared.iter().sum::<u64>();
        Self {
            offloaded: offloaded.to_vec(),
            shared,
            recent,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::GraphBuilder;
    use crate::kernels::attention::Kv;
    use crate::plan::plan_states;

    /// Three full layers of 64,000 bytes each and a window of 64 positions.
    fn states() -> Vec<StatePlan> {
        let mut b = GraphBuilder::new("test");
        for window in [0, 8, 0, 0] {
            b.state(StateSpec::Kv {
                kv_heads: 2,
                head_dim: 4,
                window,
            });
        }
        plan_states(b.graph(), Kv::F32, 1000, 56)
    }

    #[test]
    fn as_few_layers_as_needed_take_turns() {
        let states = states();
        let [full, ring] = [states[0].bytes(), states[1].bytes()];
        assert_eq!((full, ring), (64_000, 4_096));
        let plan = |limit| KvOffloadPlan::new(&states, 100, limit);
        let all = plan(196_096).expect("all fit");
        assert_eq!((all.offloaded.len(), all.bytes), (0, 196_096));
        let two = plan(196_095).expect("two take turns");
        assert_eq!(two.offloaded, [StateId(0), StateId(2)]);
        assert_eq!(two.shared, [32_000, 32_000]);
        assert_eq!(two.bytes, 64_000 + 4_096 + 64_000 + 2 * 6_400);
        let three = plan(144_895).expect("three take turns");
        assert_eq!(three.bytes, 4_096 + 64_000 + 3 * 6_400);
        assert_eq!(plan(three.bytes), Ok(three.clone()));
        assert_eq!(plan(three.bytes - 1), Err(three.bytes));
    }
}
