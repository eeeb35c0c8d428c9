//! Sampling on the GPU: prepares the kernels that a request needs and writes their initial state.

use super::session::Session;
use super::step::{Prepared, Step};
use super::tail::Tail;
use crate::gpu::{Backend, Usage};
use crate::kernels::sample::{bias, needs_adjust, settings, status};
use crate::plan::Slot;
use crate::sample::Sampler;
use crate::{Error, Result};

impl Session {
    /// Prepares the kernels for a sampler's parameters and writes their initial state; `None` if the request must be
    /// sampled on the CPU.
    ///
    /// # Errors
    /// Device errors.
    pub async fn prepare_sampling(&mut self, sampler: &Sampler) -> Result<Option<Tail>> {
        let vocabulary = self.vocab() as u32;
        let Some(tail) = Tail::of(sampler.params(), self.vocab()) else { return Ok(None) };
        if tail == Tail::Greedy {
            return Ok(Some(tail));
        }
        if !self.tails.iter().any(|(t, _)| *t == tail) {
            for (slot, bytes) in tail.buffers(vocabulary) {
                if !self.own.contains_key(&slot) {
                    self.own.insert(slot, self.gpu.buffer("sampling", bytes, Usage::Storage)?);
                }
            }
            let plan = tail.plan(vocabulary, None, self.gpu.caps().dear_dispatches())?;
            self.model.compile(&[&plan]).await?;
            let step = self.step_of("sample", &Prepared::new(&self.gpu, "sample", plan, false)?, 1)?;
            self.tails.push((tail, step));
        }
        let words = settings(sampler.params(), sampler.seed(), vocabulary);
        self.gpu.write(self.buffer(Slot::Sampling)?, 0, bytemuck::cast_slice(&words));
        if needs_adjust(sampler.params()) {
            self.gpu.write(self.buffer(Slot::Counts)?, 0, bytemuck::cast_slice(sampler.counts()));
            let row = bias(sampler.params(), vocabulary);
            self.gpu.write(self.buffer(Slot::Bias)?, 0, bytemuck::cast_slice(&row));
        }
        Ok(Some(tail))
    }

    /// Returns the sampling step; modes other than greedy require [`Self::prepare_sampling`] first.
    pub(super) fn tail(&self, tail: Tail) -> Result<&Step> {
        if tail == Tail::Greedy {
            return Ok(&self.greedy);
        }
        let found = self.tails.iter().find(|(t, _)| *t == tail);
        found.map(|(_, step)| step).ok_or_else(|| Error::Internal(format!("sampling mode {tail:?} was not prepared")))
    }

    /// Returns the error for a step that sampled no token.
    pub(super) async fn sampling_fault(&self, tail: Tail, step: usize) -> Error {
        let hint = "The weights are damaged or the GPU driver is faulty; load the model again.".into();
        let unknown = Error::NotFinite { step: format!("token {step}"), hint };
        if !matches!(tail, Tail::Draw | Tail::DrawAdjusted) {
            // Reading the logits reports what is wrong with them.
            return self.logits().await.err().unwrap_or(unknown);
        }
        let Ok(buffer) = self.buffer(Slot::Picked) else { return unknown };
        match self.gpu.read(buffer, 8, 4).await.map(|bytes| bytemuck::pod_collect_to_vec::<u8, u32>(&bytes)) {
            Ok(words) => status(words[0], step as u32).err().unwrap_or(unknown),
            Err(error) => error,
        }
    }
}
