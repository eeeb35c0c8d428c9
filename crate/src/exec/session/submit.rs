//! Submits a session's steps, for models that are resident or partly paged.

use super::Session;
use crate::Result;
use crate::exec::logits_pipeline::LogitsPipeline;
use crate::exec::program_key::ProgramKey;
use crate::exec::step::Step;
use crate::exec::weight_paging::PagingContext;
use crate::gpu::{Backend, Command};
use crate::plan::Slot;

impl Session {
    /// Submits a step of `rows` rows at the positions from `pos` on; `ids` are read back from the
    /// device if not given.
    pub(in crate::exec) async fn submit_step(
        &self,
        step: &Step,
        (pos, rows): (usize, usize),
        ids: Option<&[u32]>,
    ) -> Result<()> {
        let model = self.model();
        if let Some(offload) = &self.offload {
            let mut offload = offload.lock().await;
            let _parts = model.parts.lock().await;
            let done = offload.run_step(&model.gpu, step, pos, rows).await;
            self.count_host_bytes(offload.host_bytes());
            return done;
        }
        if let Some(pages) = &model.pager {
            let around = PagingContext {
                gpu: &self.model.gpu,
                graph: model.graph(),
                weights: model.weights(),
                buffers: &model.runner.weights,
                ids: self.buffer(Slot::Ids)?,
                prefetch_experts: model.options.prefetch_experts,
            };
            // The lock keeps other sessions out until the step is complete.
            return pages.lock().await.run_step(&around, step, rows, ids).await;
        }
        model.finish_parts().await;
        if rows == 1 {
            return self.model.gpu.submit(&[step.recorded()]);
        }
        let grids = step.grids(rows);
        self.model.gpu.submit(&[step.with_grids(&grids)])
    }

    /// Submits decode steps as one command buffer; the sequence ends at `end` at the latest.
    pub(in crate::exec) fn submit_steps(
        &self,
        count: usize,
        pipeline: &LogitsPipeline,
        end: usize,
    ) -> Result<()> {
        let sampling = self.sampling_step(pipeline)?;
        self.submit_repeated(
            count,
            &[self.decode_step(end)?.recorded(), sampling.recorded()],
        )
    }

    /// Submits steps of a speculative generation; `drafting` selects steps with drafts.
    pub(in crate::exec) fn submit_speculative(
        &self,
        count: usize,
        drafting: bool,
        end: usize,
    ) -> Result<()> {
        if drafting {
            let verify = self.bound_step(ProgramKey::VERIFY)?;
            let verify = verify.limit_keys(&self.model.gpu, end);
            return self.submit_repeated(count, &[verify.recorded()]);
        }
        let append = self.append_history_step()?;
        self.submit_repeated(
            count,
            &[self.decode_step(end)?.recorded(), append.recorded()],
        )
    }

    fn submit_repeated(&self, count: usize, step: &[Command<'_>]) -> Result<()> {
        self.model.gpu.submit(&step.repeat(count))
    }
}
