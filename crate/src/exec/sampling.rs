//! Sampling on the GPU: prepares the kernels that a request needs and writes their initial state.

use super::sampling_stage::SamplingMode;
use super::session::Session;
use super::step::{PlanBuffers, Step};
use crate::gpu::{Backend, BufferUsage};
use crate::kernels::sample::{bias, check_status, needs_adjust, settings};
use crate::plan::Slot;
use crate::sample::Sampler;
use crate::{Error, Result};

impl Session {
    /// Prepares the kernels for a sampler's parameters and writes their initial state; `None` if
    /// the request must be sampled on the CPU.
    ///
    /// # Errors
    /// Device errors.
    pub async fn prepare_sampling(&mut self, sampler: &Sampler) -> Result<Option<SamplingMode>> {
        let vocabulary = self.vocab() as u32;
        let Some(tail) = SamplingMode::for_params(sampler.params(), self.vocab()) else {
            return Ok(None);
        };
        if tail == SamplingMode::Greedy {
            return Ok(Some(tail));
        }
        if !self.sampling_steps.iter().any(|(t, _)| *t == tail) {
            for (slot, bytes) in tail.buffers(vocabulary) {
                if !self.own.contains_key(&slot) {
                    self.own.insert(
                        slot,
                        self.gpu.buffer("sampling", bytes, BufferUsage::Storage)?,
                    );
                }
            }
            let plan = tail.plan(vocabulary, None, self.gpu.caps().dispatch_is_expensive())?;
            self.model.compile(&[&plan]).await?;
            let step = self.build_step(
                "sample",
                &PlanBuffers::new(&self.gpu, "sample", plan, false)?,
                1,
            )?;
            self.sampling_steps.push((tail, step));
        }
        let words = settings(sampler.params(), sampler.seed(), vocabulary);
        self.gpu.write(
            self.buffer(Slot::Sampling)?,
            0,
            bytemuck::cast_slice(&words),
        );
        if needs_adjust(sampler.params()) {
            self.gpu.write(
                self.buffer(Slot::Counts)?,
                0,
                bytemuck::cast_slice(sampler.counts()),
            );
            let row = bias(sampler.params(), vocabulary);
            self.gpu
                .write(self.buffer(Slot::Bias)?, 0, bytemuck::cast_slice(&row));
        }
        Ok(Some(tail))
    }

    /// Returns the sampling step; modes other than greedy require [`Self::prepare_sampling`] first.
    pub(super) fn sampling_step(&self, tail: SamplingMode) -> Result<&Step> {
        if tail == SamplingMode::Greedy {
            return Ok(&self.greedy);
        }
        let found = self.sampling_steps.iter().find(|(t, _)| *t == tail);
        found
            .map(|(_, step)| step)
            .ok_or_else(|| Error::Internal(format!("sampling mode {tail:?} was not prepared")))
    }

    /// Returns the error for a step that sampled no token.
    pub(super) async fn sampling_error(&self, tail: SamplingMode, step: usize) -> Error {
        let hint =
            "The weights are damaged or the GPU driver is faulty; load the model again.".into();
        let unknown = Error::NotFinite {
            step: format!("token {step}"),
            hint,
        };
        if !matches!(tail, SamplingMode::Random | SamplingMode::RandomAdjusted) {
            // Reading the logits reports what is wrong with them.
            return self.logits().await.err().unwrap_or(unknown);
        }
        let Ok(buffer) = self.buffer(Slot::SampledToken) else {
            return unknown;
        };
        match self
            .gpu
            .read(buffer, 8, 4)
            .await
            .map(|bytes| bytemuck::pod_collect_to_vec::<u8, u32>(&bytes))
        {
            Ok(words) => check_status(words[0], step as u32).err().unwrap_or(unknown),
            Err(error) => error,
        }
    }
}
