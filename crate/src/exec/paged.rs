//! Steps of models that are on the device as a whole or in part: where a session's steps are submitted. Knows pages and programs,
//! no weights.

use super::model::Model;
use super::pages::{Around, Paging};
use super::session::Session;
use super::step::Step;
use crate::Result;
use crate::gpu::Backend;
use crate::plan::Slot;

impl Model {
    /// Whether experts or rows of tables come from the files while it runs.
    pub fn is_paged(&self) -> bool {
        self.pages.is_some()
    }

    /// How often what steps needed was on the device; none where all is there, or while a step runs.
    pub fn paging(&self) -> Option<Paging> {
        Some(self.pages.as_ref()?.try_lock()?.paging)
    }
}

impl Session {
    /// Submits a step for so many rows, whose `ids` the device has where they are not given.
    pub(super) async fn submit_step(&self, step: &Step, rows: usize, ids: Option<&[u32]>) -> Result<()> {
        let model = self.model();
        if let Some(pages) = &model.pages {
            let around = Around {
                gpu: &self.gpu,
                graph: &model.graph,
                weights: &model.weights,
                shared: &model.shared,
                ids: self.buffer(Slot::Ids)?,
                look_ahead: model.options.look_ahead,
            };
            // What a step leaves half done is nobody else's.
            return pages.lock().await.run(&around, step, rows, ids).await;
        }
        if rows == 1 {
            return self.gpu.submit(&[step.recorded()]);
        }
        let grids = step.grids(rows);
        self.gpu.submit(&[step.with_grids(&grids)])
    }
}
