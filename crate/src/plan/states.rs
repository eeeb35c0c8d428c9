//! Memory of the sequence states, from element types and stored positions.

use crate::ir::{Graph, StateSpec};
use crate::kernels::attention::Kv;
use crate::kernels::sample::DRAFT_ROWS;

/// Storage of a state on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatePlan {
    /// State specification.
    pub spec: StateSpec,
    /// Stored positions; 1 for states without positions.
    pub positions: usize,
    /// Whether the state is a ring: a position's slot is `position % positions`.
    pub ring: bool,
    /// Bytes of each buffer: keys and values, or one.
    pub planes: Vec<u64>,
}

impl StatePlan {
    /// Returns the bytes of all planes.
    pub fn bytes(&self) -> u64 {
        self.planes.iter().sum()
    }

    /// Returns the bytes of one position, keys and values.
    fn position_bytes(&self) -> u64 {
        self.bytes() / self.positions.max(1) as u64
    }

    /// Returns the bytes without a ring, with a slot for each of `positions` positions.
    pub fn full_bytes(&self, positions: usize) -> u64 {
        match self.spec {
            StateSpec::Kv { .. } => self.position_bytes() * positions as u64,
            StateSpec::Conv { .. } | StateSpec::Matrix { .. } => self.bytes(),
        }
    }

    /// Returns the maximum bytes of a plane that `len` tokens have written.
    pub fn written_bytes(&self, plane: u64, len: usize) -> u64 {
        match self.spec {
            StateSpec::Kv { .. } => {
                plane / self.positions.max(1) as u64 * len.min(self.positions) as u64
            }
            _ => plane,
        }
    }

    /// Returns the bytes of a plane for the first `positions` positions. A ring always has all
    /// slots.
    pub fn allocated_bytes(&self, plane: u64, positions: usize) -> u64 {
        if self.ring {
            plane
        } else {
            self.written_bytes(plane, positions)
        }
    }

    /// Returns the bytes of the state that a decode step at `position` reads and writes.
    pub fn bytes_read(&self, position: usize) -> u64 {
        match self.spec {
            StateSpec::Kv { window, .. } => {
                let keys = if window > 0 {
                    window.min(position + 1)
                } else {
                    position + 1
                };
                self.position_bytes() * keys as u64
            }
            StateSpec::Conv { .. } | StateSpec::Matrix { .. } => 2 * self.bytes(),
        }
    }

    /// Returns how many of the last positions can be trimmed after any number of tokens.
    pub fn rollback_room(&self) -> usize {
        match self.spec {
            StateSpec::Kv { window, .. } if self.ring => self.positions - window,
            StateSpec::Kv { .. } => self.positions,
            StateSpec::Conv { .. } | StateSpec::Matrix { .. } => 0,
        }
    }

    /// Returns the earliest position to trim back to after `reached` tokens, with all later reads
    /// still stored.
    pub fn earliest_position(&self, reached: usize) -> usize {
        match self.spec {
            StateSpec::Kv { window, .. } if self.ring && reached > self.positions => {
                // A row at `to` reads keys from `to + 1 - window`; stored keys begin at
                // `reached - positions`.
                reached - self.positions + window - 1
            }
            StateSpec::Kv { .. } => 0,
            StateSpec::Conv { .. } | StateSpec::Matrix { .. } => reached,
        }
    }
}

/// Plans the storage of all states for sequences of `capacity` positions processed in chunks. A
/// sliding-window layer stores the window plus one chunk, for any capacity.
pub fn plan_states(graph: &Graph, kv: Kv, capacity: usize, chunk: usize) -> Vec<StatePlan> {
    let plan = |spec: &StateSpec| {
        let (positions, ring, planes) = match *spec {
            StateSpec::Kv {
                kv_heads,
                head_dim,
                window,
            } => {
                let kept = (window + chunk.max(DRAFT_ROWS as usize)).next_multiple_of(8);
                let ring = window > 0 && kept < capacity;
                let positions = if ring { kept } else { capacity };
                (
                    positions,
                    ring,
                    vec![(positions * kv_heads * kv.bytes(head_dim)) as u64; 2],
                )
            }
            StateSpec::Conv {
                channels,
                kernel_size: taps,
            } => (1, false, vec![((taps.max(2) - 1) * channels * 4) as u64]),
            StateSpec::Matrix { heads, rows, cols } => {
                (1, false, vec![(heads * rows * cols * 4) as u64])
            }
        };
        StatePlan {
            spec: *spec,
            positions,
            ring,
            planes,
        }
    };
    graph.states.iter().map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::GraphBuilder;

    #[test]
    fn eight_bits_take_half_of_sixteen() {
        let mut b = GraphBuilder::new("test");
        b.state(StateSpec::Kv {
            kv_heads: 8,
            head_dim: 128,
            window: 0,
        });
        let [halves, eight] =
            [Kv::F16, Kv::Int8].map(|kv| plan_states(b.graph(), kv, 4096, 512)[0].bytes());
        assert_eq!((halves, eight), (16_777_216, 8_650_752));
    }

    #[test]
    fn a_ring_says_how_far_back_it_goes() {
        let mut b = GraphBuilder::new("test");
        b.state(StateSpec::Kv {
            kv_heads: 1,
            head_dim: 4,
            window: 8,
        });
        let plan = &plan_states(b.graph(), Kv::F32, 1000, 8)[0];
        assert_eq!((plan.positions, plan.ring), (16, true));
        assert_eq!(plan.earliest_position(16), 0);
        // Positions 4 to 19 are stored: a row at 11 reads 4 to 11.
        assert_eq!(plan.earliest_position(20), 11);
        assert_eq!(plan.written_bytes(160, 3), 30);
        assert_eq!(plan.written_bytes(160, 300), 160);
    }
    #[test]
    fn a_step_reads_the_keys_that_it_sees_and_the_whole_of_other_states_twice() {
        let mut b = GraphBuilder::new("test");
        b.state(StateSpec::Kv {
            kv_heads: 2,
            head_dim: 4,
            window: 8,
        });
        b.state(StateSpec::Kv {
            kv_heads: 2,
            head_dim: 4,
            window: 0,
        });
        b.state(StateSpec::Conv {
            channels: 10,
            kernel_size: 3,
        });
        b.state(StateSpec::Matrix {
            heads: 2,
            rows: 4,
            cols: 8,
        });
        let plans = plan_states(b.graph(), Kv::F32, 1000, 8);
        let read = |position: usize| {
            plans
                .iter()
                .map(|plan| plan.bytes_read(position))
                .collect::<Vec<_>>()
        };
        // 64 bytes per position for keys and values, the row's own position included.
        assert_eq!(read(0), [64, 64, 160, 512]);
        assert_eq!(read(6), [448, 448, 160, 512]);
        assert_eq!(read(7), [512, 512, 160, 512]);
        assert_eq!(read(8), [512, 576, 160, 512]);
        assert_eq!(read(999), [512, 64_000, 160, 512]);
        let full: Vec<u64> = plans.iter().map(|plan| plan.full_bytes(1000)).collect();
        assert_eq!(full, [64_000, 64_000, 80, 256]);
    }
}
