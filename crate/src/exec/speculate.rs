//! Speculative decoding by prompt lookup: runs the last token with drafts of its continuation, plus the extra kernels
//! that this needs. The kernels are described in shaders/sample.

use super::asked::{Drafting, Speculation};
use super::model::Model;
use super::session::Session;
use super::step::{Prepared, Step};
use super::tail::{MAX_STOPS, RING, Tail};
use crate::gpu::{Backend, Usage};
use crate::kernels::sample::{Advance, DRAFT_ROWS, accept, argmax_rows, draft, slices};
use crate::plan::{Plan, RowsMode, Slot, fuse};
use crate::{Error, Result};

/// The text to look up drafts in.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// All tokens before the generation.
    pub context: &'a [u32],
    /// Draft in every step, even at a loss: for tests and measurements.
    pub always: bool,
}

impl Session {
    /// Prepares the kernels and buffers for drafts.
    ///
    /// # Errors
    /// Device errors.
    pub async fn prepare_speculation(&mut self) -> Result<()> {
        if self.speculation.is_some() {
            return Ok(());
        }
        self.model.prepare_drafting().await?;
        if !self.own.contains_key(&Slot::History) {
            // The token after the last position is sampled as well.
            let history = self.gpu.buffer("history", (self.capacity as u64 + 1) * 4, Usage::Storage)?;
            self.takes(history.size());
            self.own.insert(Slot::History, history);
        }
        let before = self.gpu.created().bytes;
        let tail = self.step_of("sample", &self.model.drafting()?.tail, 1)?;
        let verify = self.verify_step()?;
        let bytes = self.gpu.created().bytes - before;
        self.gpu.check().await?;
        self.takes(bytes);
        self.speculation = Some(Speculation { verify, tail });
        Ok(())
    }

    /// Adds bytes that are freed with the sequence.
    fn takes(&mut self, bytes: u64) {
        self.draft_bytes += bytes;
        self.model.count(|all| all.activations += bytes);
    }

    /// Builds its step with drafts.
    pub(super) fn verify_step(&self) -> Result<Step> {
        self.step_of("drafts", &self.model.drafting()?.verify, DRAFT_ROWS as usize)
    }

    /// The steps made by [`Self::prepare_speculation`].
    pub(super) fn speculation(&self) -> Result<&Speculation> {
        self.speculation.as_ref().ok_or_else(|| Error::Internal("speculation was not prepared".into()))
    }
}

impl Model {
    async fn prepare_drafting(&self) -> Result<()> {
        if self.drafting.get().is_some() {
            return Ok(());
        }
        let verify = self.verify_plan()?;
        let tail =
            Tail::Greedy.plan(verify.output_cols as u32, Some(Slot::History), self.gpu.caps().dear_dispatches())?;
        self.compile(&[&verify, &tail]).await?;
        let before = self.gpu.created().bytes;
        // Its output has logits of several rows.
        let verify = Prepared::new(&self.gpu, "drafts", verify, true)?;
        let tail = Prepared::new(&self.gpu, "sample", tail, false)?;
        // Another session may have set them meanwhile.
        let _ = self.drafting.set(Drafting { verify, tail });
        self.count(|bytes| bytes.activations += self.gpu.created().bytes - before);
        Ok(())
    }

    fn drafting(&self) -> Result<&Drafting> {
        self.drafting.get().ok_or_else(|| Error::Internal("drafting was not prepared".into()))
    }

    fn verify_plan(&self) -> Result<Plan> {
        let graph = fuse::few_rows(self.graph.clone(), self.options.fusions);
        let mut plan = self.plan(&graph, RowsMode::Few(DRAFT_ROWS as usize))?;
        let vocabulary = plan.output_cols as u32;
        plan.launches.insert(0, draft(Slot::History, Slot::CURSOR, Slot::Ids));
        plan.launches.push(argmax_rows(Slot::Output, Slot::Candidates, vocabulary, Slot::CURSOR));
        plan.launches.push(accept(Advance {
            candidates: Slot::Candidates,
            slices: slices(vocabulary),
            stops: Slot::Stops,
            stop_count: MAX_STOPS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: RING,
            counts: None,
            history: Some(Slot::History),
            vocabulary: None,
        }));
        Ok(plan)
    }
}
