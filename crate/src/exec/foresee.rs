//! Estimates a greedy decode step from headers alone, without weights or a device. Used by the native runner.

use super::Files;
use super::decide::{Decision, decide};
use super::options::RunOptions;
use super::tail::Tail;
use crate::Result;
use crate::device::Caps;
use crate::ir::StateSpec;
use crate::plan::{Plan, RowsMode, StatePlan, bytes_per_token, fuse};

/// Bytes of a sequence's states at full context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// Positions of the context.
    pub positions: usize,
    /// Keys and values.
    pub kv: u64,
    /// Keys and values if sliding-window layers kept all positions.
    pub full: u64,
    /// Other states.
    pub other: u64,
}

/// A planned decode step without device resources.
pub struct Foreseen {
    decision: Decision,
    /// The plan up to the logits.
    pub step: Plan,
    /// The plan of sampling.
    pub pick: Plan,
}

impl Files {
    /// Plans a decode step for a device with these capabilities, with all weights resident.
    ///
    /// # Errors
    /// Unsupported options in the configuration or the headers.
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
    /// Dispatches per token.
    pub fn dispatches(&self) -> usize {
        self.step.launches.len() + self.pick.launches.len()
    }

    /// Bytes that the step reads at a position.
    pub fn bytes_per_token(&self, position: usize) -> u64 {
        bytes_per_token(&self.decision.graph, &self.decision.weights, &self.decision.states, position)
    }

    /// Maximum bytes of a sequence's states.
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
