//! Estimates a greedy decode step from headers alone, without weights or a device. Used by the
//! native runner.

use super::ModelFiles;
use crate::device::Caps;
use crate::exec::decoder_steps::decode_keys;
use crate::exec::load_plan::{LoadPlan, plan_load};
use crate::exec::options::RunOptions;
use crate::exec::program_key::ProgramKey;
use crate::ir::StateSpec;
use crate::plan::{Plan, StatePlan, bytes_per_token};
use crate::{Result, arch};

/// Bytes of a sequence's states at full context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// Positions of the context.
    pub positions: usize,
    /// Keys and values.
    pub kv: u64,
    /// Keys and values if sliding-window layers kept all positions.
    pub kv_without_window: u64,
    /// Other states.
    pub other: u64,
}

/// A planned decode step without device resources.
pub struct StepEstimate {
    load_plan: LoadPlan,
    /// The plan up to the logits.
    pub step: Plan,
    /// The plan of sampling.
    pub sampling: Plan,
}

impl ModelFiles {
    /// Plans a decode step for a device with these capabilities, with all weights resident.
    ///
    /// # Errors
    /// Unsupported options in the configuration or the headers.
    pub fn estimate(&self, caps: &Caps, options: &RunOptions) -> Result<StepEstimate> {
        let graph = arch::graph(&self.config)?;
        let load_plan = plan_load(&graph, &self.config, &self.weights, caps, options)?;
        let LoadPlan { planned, steps, .. } = &load_plan;
        let decode = decode_keys(planned, caps)[0];
        let step = steps.plan(planned, caps, decode)?.plan;
        let sampling = steps.plan(planned, caps, ProgramKey::GREEDY)?.plan;
        Ok(StepEstimate {
            load_plan,
            step,
            sampling,
        })
    }
}

impl StepEstimate {
    /// Dispatches per token.
    pub fn dispatches(&self) -> usize {
        self.step.launches.len() + self.sampling.launches.len()
    }

    /// Bytes that the step reads at a position.
    pub fn bytes_per_token(&self, position: usize) -> u64 {
        let planned = &self.load_plan.planned;
        bytes_per_token(&planned.graph, &planned.weights, &planned.states, position)
    }

    /// Maximum bytes of a sequence's states.
    pub fn state_bytes(&self) -> StateBytes {
        let positions = self.load_plan.planned.capacity;
        let (kv, other): (Vec<&StatePlan>, Vec<&StatePlan>) = self
            .load_plan
            .planned
            .states
            .iter()
            .partition(|state| matches!(state.spec, StateSpec::Kv { .. }));
        StateBytes {
            positions,
            kv: kv.iter().map(|state| state.bytes()).sum(),
            kv_without_window: kv.iter().map(|state| state.full_bytes(positions)).sum(),
            other: other.iter().map(|state| state.bytes()).sum(),
        }
    }
}
