//! Lazily built programs: short prefill, speculation.

use super::step::{Pipelines, PlanBuffers, Step};
use crate::Result;
use crate::plan::Plan;
use futures_util::future::LocalBoxFuture;

/// The prefill step for short prompts.
pub(super) enum ShortPrefill {
    /// Not requested yet.
    NotRequested,
    /// Disabled here, or refused by the device.
    Disabled,
    /// Its kernels are being compiled.
    Compiling(Plan, LocalBoxFuture<'static, Result<Pipelines>>),
    /// Ready to use.
    Ready(PlanBuffers),
}

/// Plans for speculative decoding, shared by all sessions of a model.
pub(super) struct SpeculationPlans {
    /// Verifies drafts: from draft tokens to accepted tokens.
    pub verify: PlanBuffers,
    /// Runs after a plain decode step.
    pub append_history: PlanBuffers,
}

/// Steps for speculative decoding, bound to one session.
pub(super) struct SpeculationSteps {
    /// Verifies drafts: from draft tokens to accepted tokens.
    pub verify: Step,
    /// Runs after a plain decode step: appends the token to the lookup history.
    pub append_history: Step,
}
