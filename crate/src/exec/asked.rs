//! What a model or a session has only once it was asked for. Knows plans and steps, not when they are wanted.

use super::step::{Pipelines, Prepared, Step};
use crate::Result;
use crate::plan::Plan;
use futures_util::future::LocalBoxFuture;

/// The step of short prompts.
pub(super) enum Short {
    /// Nothing yet.
    Unasked,
    /// Nothing: it is not wanted here, or the device refused it.
    None,
    /// Its kernels are being compiled.
    Making(Plan, LocalBoxFuture<'static, Result<Pipelines>>),
    /// All of it.
    Ready(Prepared),
}

/// The plans of a generation with drafts, which sessions share.
pub(super) struct Drafting {
    /// From the drafts to the tokens that hold.
    pub verify: Prepared,
    /// What follows a plain step.
    pub tail: Prepared,
}

/// The steps of a generation with drafts.
pub(super) struct Speculation {
    /// From the drafts to the tokens that hold.
    pub verify: Step,
    /// What follows a plain step: the token is kept for later drafts.
    pub tail: Step,
}
