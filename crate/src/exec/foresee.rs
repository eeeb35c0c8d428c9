//! What a greedy decode step of a checkpoint would take on a device, told by its headers: for the native runner. Needs neither
//! weights nor the device.

use super::Files;
use super::decide::{Decision, decide};
use super::options::RunOptions;
use super::tail::Tail;
use crate::Result;
use crate::device::Caps;
use crate::ir::StateSpec;
use crate::plan::{Plan, RowsMode, StatePlan, bytes_per_token, fuse};

/// Bytes of a sequence's states that has come to the end of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// Positions of the context.
    pub positions: usize,
    /// Keys and values.
    pub kv: u64,
    /// The same if layers with a window kept all positions.
    pub full: u64,
    /// What else layers keep.
    pub other: u64,
}

/// A decode step that was planned and not made.
pub struct Foreseen {
    decision: Decision,
    /// Its steps up to the logits.
    pub step: Plan,
    /// Those that pick the token.
    pub pick: Plan,
}

impl Files {
    /// Plans a decode step on a device with these capabilities, all weights on it.
    ///
    /// # Errors
    /// What the configuration or the headers ask for and is not built.
    pub fn foresee(&self, caps: &Caps, options: &RunOptions) -> Result<Foreseen> {
        let decision = decide(&self.full_config(), &self.weights, caps, options)?;
        let few = fuse::few_rows(decision.graph.clone(), decision.fusions);
        let step = match decision.near(caps, &few)? {
            Some(near) => near,
            None => decision.plan(caps, &few, RowsMode::Few(1))?,
        };
        let pick = Tail::Greedy.plan(step.output_cols as u32, None, caps.dear_dispatches())?;
        Ok(Foreseen { decision, step, pick })
    }
}

impl Foreseen {
    /// Dispatches of a token.
    pub fn dispatches(&self) -> usize {
        self.step.launches.len() + self.pick.launches.len()
    }

    /// Bytes that the step reads at a position.
    pub fn bytes_per_token(&self, position: usize) -> u64 {
        bytes_per_token(&self.decision.graph, &self.decision.weights, &self.decision.states, position)
    }

    /// Bytes that the states of a sequence grow to.
    pub fn state_bytes(&self) -> StateBytes {
        let positions = self.decision.capacity;
        let (kv, other): (Vec<&StatePlan>, Vec<&StatePlan>) =
            self.decision.states.iter().partition(|state| matches!(state.spec, StateSpec::Kv { .. }));
        StateBytes {
            positions,
            kv: kv.iter().map(|state| state.bytes()).sum(),
            full: kv.iter().map(|state| state.full(positions)).sum(),
            other: other.iter().map(|state| state.bytes()).sum(),
        }
    }
}
