//! Estimates a greedy decode step from headers alone, without weights or a device. Used by the
//! native runner.

use super::ModelFiles;
use super::load_plan::{LoadPlan, plan_load};
use super::logits_pipeline::LogitsPipeline;
use super::options::RunOptions;
use crate::Result;
use crate::device::Caps;
use crate::ir::StateSpec;
use crate::plan::{Plan, StatePlan, StepKind, bytes_per_token, fuse};

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
        let decision = plan_load(&self.full_config(), &self.weights, caps, options)?;
        let few = fuse::few_rows(decision.graph.clone(), decision.fusions);
        let step = match decision.short_context(caps, &few)? {
            Some(near) => near,
            None => decision.plan(caps, &few, StepKind::Decode(1))?,
        };
        let pick = LogitsPipeline::greedy().plan(
            step.output_cols as u32,
            None,
            caps.dispatch_is_expensive(),
        )?;
        Ok(StepEstimate {
            load_plan: decision,
            step,
            sampling: pick,
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
        bytes_per_token(
            &self.load_plan.graph,
            &self.load_plan.weights,
            &self.load_plan.states,
            position,
        )
    }

    /// Maximum bytes of a sequence's states.
    pub fn state_bytes(&self) -> StateBytes {
        let positions = self.load_plan.capacity;
        let (kv, other): (Vec<&StatePlan>, Vec<&StatePlan>) = self
            .load_plan
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
