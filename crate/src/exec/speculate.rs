//! Speculative decoding by prompt lookup: runs the last token with drafts of its continuation, plus
//! the extra kernels that this needs. The kernels are described in shaders/sample.

use super::lazy_programs::{SpeculationPlans, SpeculationSteps};
use super::logits_pipeline::{LogitsPipeline, MAX_STOP_TOKENS, TOKEN_RING_LEN};
use super::model::Model;
use super::session::Session;
use super::step::{PlanBuffers, Step};
use crate::gpu::{Backend, BufferUsage};
use crate::kernels::sample::{AdvanceBuffers, DRAFT_ROWS, accept, argmax_rows, draft, slices};
use crate::plan::{Plan, Slot, StepKind, fuse};
use crate::{Error, Result};

/// The text to look up drafts in.
#[derive(Debug, Clone, Copy)]
pub struct PromptLookup<'a> {
    /// All tokens before the generation.
    pub context: &'a [u32],
    /// Draft in every step, even at a loss: for tests and measurements.
    pub draft_always: bool,
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
            let history = self.gpu.buffer(
                "history",
                (self.capacity as u64 + 1) * 4,
                BufferUsage::Storage,
            )?;
            self.count_draft_bytes(history.size());
            self.own.insert(Slot::History, history);
        }
        let before = self.gpu.resource_counts().bytes;
        let tail = self.build_step("sample", &self.model.speculation_plans()?.append_history, 1)?;
        let verify = self.verify_step()?;
        let bytes = self.gpu.resource_counts().bytes - before;
        self.gpu.check().await?;
        self.count_draft_bytes(bytes);
        self.speculation = Some(SpeculationSteps {
            verify,
            append_history: tail,
        });
        Ok(())
    }

    /// Adds bytes that are freed with the sequence.
    fn count_draft_bytes(&mut self, bytes: u64) {
        self.draft_bytes += bytes;
        self.model.update_memory_use(|all| all.activations += bytes);
    }

    /// Builds its step with drafts.
    pub(super) fn verify_step(&self) -> Result<Step> {
        self.build_step(
            "drafts",
            &self.model.speculation_plans()?.verify,
            DRAFT_ROWS as usize,
        )
    }

    /// The steps made by [`Self::prepare_speculation`].
    pub(super) fn speculation(&self) -> Result<&SpeculationSteps> {
        self.speculation
            .as_ref()
            .ok_or_else(|| Error::Internal("speculation was not prepared".into()))
    }
}

impl Model {
    async fn prepare_drafting(&self) -> Result<()> {
        if self.speculation_plans.get().is_some() {
            return Ok(());
        }
        let verify = self.verify_plan()?;
        let tail = LogitsPipeline::greedy().plan(
            verify.output_cols as u32,
            Some(Slot::History),
            self.gpu.caps().dispatch_is_expensive(),
        )?;
        self.compile(&[&verify, &tail]).await?;
        let before = self.gpu.resource_counts().bytes;
        // Its output has logits of several rows.
        let verify = PlanBuffers::new(&self.gpu, "drafts", verify, true)?;
        let tail = PlanBuffers::new(&self.gpu, "sample", tail, false)?;
        // Another session may have set them meanwhile.
        let _ = self.speculation_plans.set(SpeculationPlans {
            verify,
            append_history: tail,
        });
        self.update_memory_use(|bytes| {
            bytes.activations += self.gpu.resource_counts().bytes - before;
        });
        Ok(())
    }

    fn speculation_plans(&self) -> Result<&SpeculationPlans> {
        self.speculation_plans
            .get()
            .ok_or_else(|| Error::Internal("drafting was not prepared".into()))
    }

    fn verify_plan(&self) -> Result<Plan> {
        let graph = fuse::few_rows(self.graph.clone(), self.options.fusions);
        let mut plan = self.plan(&graph, StepKind::Decode(DRAFT_ROWS as usize))?;
        let vocabulary = plan.output_cols as u32;
        plan.launches
            .insert(0, draft(Slot::History, Slot::CURSOR, Slot::Ids));
        plan.launches.push(argmax_rows(
            Slot::Output,
            Slot::ArgmaxPartials,
            vocabulary,
            Slot::CURSOR,
        ));
        plan.launches.push(accept(AdvanceBuffers {
            candidates: Slot::ArgmaxPartials,
            slices: slices(vocabulary),
            stops: Slot::Stops,
            stop_count: MAX_STOP_TOKENS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: TOKEN_RING_LEN,
            counts: None,
            history: Some(Slot::History),
            vocabulary: None,
        }));
        Ok(plan)
    }
}
