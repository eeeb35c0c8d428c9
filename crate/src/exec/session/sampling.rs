//! Sampling on the GPU: prepares the kernels that a request needs and writes their input.

use super::Session;
use crate::exec::logits_pipeline::{LogitsPipeline, LogitsStage};
use crate::exec::program_key::ProgramKey;
use crate::exec::step::{PlanBuffers, Step};
use crate::gpu::{Backend, BufferUsage};
use crate::kernels::sample::{check_status, mask_words};
use crate::plan::Slot;
use crate::sample::{Sampler, TokenConstraint, no_allowed_token};
use crate::{Error, Result};

impl Session {
    /// Prepares the kernels for a sampler's parameters and writes their initial state; `None` if
    /// the request must be sampled on the CPU. `masked` adds the token mask of a
    /// [`TokenConstraint`].
    ///
    /// # Errors
    /// Device errors.
    pub async fn prepare_sampling(
        &mut self,
        sampler: &Sampler,
        masked: bool,
    ) -> Result<Option<LogitsPipeline>> {
        let vocabulary = self.model.vocab();
        let Some(pipeline) = LogitsPipeline::for_params(sampler.params(), vocabulary, masked)
        else {
            return Ok(None);
        };
        let pipeline = pipeline.with_candidates(sampler.params(), vocabulary);
        let is_known = self.sampling_steps.iter().any(|(p, _)| *p == pipeline);
        if pipeline != LogitsPipeline::greedy() && !is_known {
            for (slot, bytes) in pipeline.buffers(vocabulary as u32) {
                if !self.own.contains_key(&slot) {
                    let buffer = self
                        .model
                        .gpu
                        .buffer("sampling", bytes, BufferUsage::Storage)?;
                    self.own.insert(slot, buffer);
                }
            }
            let is_expensive = self.model.gpu.caps().dispatch_is_expensive();
            let plan = pipeline.plan(vocabulary as u32, None, is_expensive)?;
            self.model.runner.compile(&self.model.gpu, &plan).await?;
            let buffers = PlanBuffers::new(&self.model.gpu, "sample", plan, false)?;
            let runner = &self.model.runner;
            let step = runner.bind(&self.model.gpu, &self.own, "sample", &buffers, 1)?;
            self.sampling_steps.push((pipeline.clone(), step));
        }
        self.write_request_input(&pipeline, sampler)?;
        Ok(Some(pipeline))
    }

    /// Writes what the stages read of a request, such as parameters and token counts. Call it again
    /// after tokens that the pipeline did not sample.
    ///
    /// # Errors
    /// `Internal` when the pipeline was not prepared.
    pub fn write_request_input(&self, pipeline: &LogitsPipeline, sampler: &Sampler) -> Result<()> {
        for (slot, words) in pipeline.request_input(sampler, self.model.vocab() as u32) {
            let buffer = self.buffer(slot)?;
            self.model
                .gpu
                .write(buffer, 0, bytemuck::cast_slice(&words));
        }
        Ok(())
    }

    /// The tokens that a constraint allows next.
    pub(in crate::exec) fn mask_of(
        &self,
        constraint: &mut dyn TokenConstraint,
    ) -> Result<Vec<u32>> {
        let mut words = vec![0; mask_words(self.model.vocab() as u32)];
        constraint.mask(&mut words)?;
        Ok(words)
    }

    /// Writes the mask of the next steps of a pipeline with [`LogitsPipeline::host_input`].
    pub(in crate::exec) fn write_mask(&self, words: &[u32]) -> Result<()> {
        let buffer = self.buffer(Slot::TokenMask)?;
        self.model.gpu.write(buffer, 0, bytemuck::cast_slice(words));
        Ok(())
    }

    /// Returns the sampling step; pipelines other than greedy require [`Self::prepare_sampling`]
    /// first.
    pub(in crate::exec) fn sampling_step(&self, pipeline: &LogitsPipeline) -> Result<&Step> {
        if *pipeline == LogitsPipeline::greedy() {
            return self.bound_step(ProgramKey::GREEDY);
        }
        let found = self.sampling_steps.iter().find(|(p, _)| p == pipeline);
        found
            .map(|(_, step)| step)
            .ok_or_else(|| Error::Internal(format!("{pipeline:?} was not prepared")))
    }

    /// Returns the error for a step that sampled no token.
    pub(in crate::exec) async fn sampling_error(
        &self,
        pipeline: &LogitsPipeline,
        step: usize,
    ) -> Error {
        let hint =
            "The weights are damaged or the GPU driver is faulty; load the model again.".into();
        let unknown = Error::NotFinite {
            step: format!("token {step}"),
            hint,
        };
        let banned = no_allowed_token(pipeline.token_limits());
        if !pipeline.has(LogitsStage::Sample) {
            // Reading the logits reports what is wrong with them; else all tokens are banned.
            let cause = if pipeline.adjusts_logits() {
                banned
            } else {
                unknown
            };
            return self.logits().await.err().unwrap_or(cause);
        }
        let Ok(buffer) = self.buffer(Slot::SampledToken) else {
            return unknown;
        };
        match self
            .model
            .gpu
            .read(buffer, 8, 4)
            .await
            .map(|bytes| bytemuck::pod_collect_to_vec::<u8, u32>(&bytes))
        {
            Ok(words) => match check_status(words[0], step as u32) {
                Err(Error::Request { .. }) => banned,
                checked => checked.err().unwrap_or(unknown),
            },
            Err(error) => error,
        }
    }
}
