//! Speculative decoding by prompt lookup: runs the last token with drafts of its continuation. The
//! kernels are described in shaders/sample.

use super::Session;
use crate::Result;
use crate::exec::program_key::ProgramKey;
use crate::exec::step::Step;
use crate::gpu::{Backend, BufferUsage};
use crate::kernels::sample::SUFFIX_LENGTHS;
use crate::plan::Slot;
use futures_util::future::try_join;

/// The text to look up drafts in.
#[derive(Debug, Clone, Copy)]
pub struct PromptLookup<'a> {
    /// All tokens before the generation.
    pub context: &'a [u32],
    /// Tokens that the generation probably repeats.
    pub prediction: &'a [u32],
    /// Draft in every step, even at a loss: for tests and measurements.
    pub draft_always: bool,
}

impl PromptLookup<'_> {
    /// The tokens to look up, one per position of the context. A prediction replaces the oldest
    /// ones, after a copy of the last: the first draft is then its beginning.
    pub(in crate::exec) fn history(&self) -> Vec<u32> {
        let mut history = self.context.to_vec();
        let kept = history.len().min(SUFFIX_LENGTHS.0 as usize);
        let room = history.len() - kept;
        if self.prediction.is_empty() || room < 2 * kept {
            return history;
        }
        let copied = history[room..].iter().chain(self.prediction).copied();
        let replacement: Vec<u32> = copied.take(room).collect();
        history[..replacement.len()].copy_from_slice(&replacement);
        history
    }
}

impl Session {
    /// Prepares the kernels and buffers for drafts.
    ///
    /// # Errors
    /// Device errors.
    pub async fn prepare_speculation(&mut self) -> Result<()> {
        if self.steps.contains_key(&ProgramKey::VERIFY) {
            return Ok(());
        }
        let verify = self
            .model
            .prepare(ProgramKey::VERIFY.with_overlay(self.overlay));
        let append = self
            .model
            .prepare(ProgramKey::APPEND_HISTORY.with_overlay(self.overlay));
        try_join(verify, append).await?;
        if !self.own.contains_key(&Slot::History) {
            // The token after the last position is sampled as well.
            let bytes = (self.model.capacity() as u64 + 1) * 4;
            let gpu = &self.model.gpu;
            let history = gpu.buffer("history", bytes, BufferUsage::Storage)?;
            self.count_draft_bytes(history.size());
            self.own.insert(Slot::History, history);
        }
        let before = self.model.gpu.resource_counts().bytes;
        let append = self.bind_step(ProgramKey::APPEND_HISTORY)?;
        let verify = self.bind_step(ProgramKey::VERIFY)?;
        let bytes = self.model.gpu.resource_counts().bytes - before;
        self.model.gpu.check().await?;
        self.count_draft_bytes(bytes);
        self.steps.insert(ProgramKey::APPEND_HISTORY, append);
        self.steps.insert(ProgramKey::VERIFY, verify);
        Ok(())
    }

    /// Adds bytes that are freed with the sequence.
    pub(super) fn count_draft_bytes(&mut self, bytes: u64) {
        self.draft_bytes += bytes;
        self.model.update_memory_use(|all| all.activations += bytes);
    }

    /// Greedy sampling after a plain step of a speculative generation.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare_speculation`].
    pub(in crate::exec) fn append_history_step(&self) -> Result<&Step> {
        self.bound_step(ProgramKey::APPEND_HISTORY)
    }
}
