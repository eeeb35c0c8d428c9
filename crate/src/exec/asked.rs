//! Lazily built programs: short prefill, speculation.

use super::step::{Pipelines, Prepared, Step};
use crate::Result;
use crate::plan::Plan;
use futures_util::future::LocalBoxFuture;

/// The prefill step for short prompts.
pub(super) enum Short {
    /// Not requested yet.
    Unasked,
    /// Disabled here, or refused by the device.
    None,
    /// Its kernels are being compiled.
    Making(Plan, LocalBoxFuture<'static, Result<Pipelines>>),
    /// Ready to use.
    Ready(Prepared),
}

/// Plans for speculative decoding, shared by all sessions of a model.
pub(super) struct Drafting {
    /// Verifies drafts: from draft tokens to accepted tokens.
    pub verify: Prepared,
    /// Runs after a plain decode step.
    pub tail: Prepared,
}

/// Steps for speculative decoding, bound to one session.
pub(super) struct Speculation {
    /// Verifies drafts: from draft tokens to accepted tokens.
    pub verify: Step,
    /// Runs after a plain decode step: appends the token to the lookup history.
    pub tail: Step,
}
