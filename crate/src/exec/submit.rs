//! Submits a session's steps, for models that are resident or partly paged.

use super::model::Model;
use super::session::Session;
use super::step::Step;
use super::weight_paging::{PagingContext, PagingStats};
use crate::Result;
use crate::gpu::Backend;
use crate::plan::Slot;

impl Model {
    /// Whether experts or table rows are loaded from the files at run time.
    pub fn is_paged(&self) -> bool {
        self.pager.is_some()
    }

    /// Hit rates of paged weights; `None` if all weights are resident, or while a step runs.
    pub fn paging(&self) -> Option<PagingStats> {
        Some(self.pager.as_ref()?.try_lock()?.stats)
    }
}

impl Session {
    /// Submits a step of `rows` rows; `ids` are read back from the device if not given.
    pub(super) async fn submit_step(
        &self,
        step: &Step,
        rows: usize,
        ids: Option<&[u32]>,
    ) -> Result<()> {
        let model = self.model();
        if let Some(pages) = &model.pager {
            let around = PagingContext {
                gpu: &self.gpu,
                graph: &model.graph,
                weights: &model.weights,
                shared: &model.shared,
                ids: self.buffer(Slot::Ids)?,
                prefetch_experts: model.options.prefetch_experts,
            };
            // The lock keeps other sessions out until the step is complete.
            return pages.lock().await.run_step(&around, step, rows, ids).await;
        }
        if rows == 1 {
            return self.gpu.submit(&[step.recorded()]);
        }
        let grids = step.grids(rows);
        self.gpu.submit(&[step.with_grids(&grids)])
    }
}
