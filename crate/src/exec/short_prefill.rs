//! Prefill step for short prompts (e.g. later turns of a chat) with smaller tiles. Nothing waits
//! for its kernels; the regular step is used until they are compiled.

use super::lazy_programs::ShortPrefill;
use super::model::Model;
use super::session::Session;
use super::step::{PlanBuffers, Step, compile};
use crate::Result;
use crate::gpu::Backend;
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::StepKind;
use futures_util::future::FutureExt;

impl Model {
    /// Starts to prepare the step for short prompts, if enabled and not started yet. Best called
    /// while the device is idle: a concurrent prompt takes some 50 ms longer. Browsers compile the
    /// kernels in the background; native builds compile them on this thread.
    ///
    /// # Errors
    /// Planning errors.
    pub fn prepare_short(&self) -> Result<()> {
        if !matches!(*self.short_prefill.borrow(), ShortPrefill::NotRequested) {
            return Ok(());
        }
        self.short_prefill.replace(ShortPrefill::Disabled);
        let wanted = self
            .options
            .short_prefill
            .unwrap_or(!self.gpu.caps().software);
        let rows = MatrixTiling::short_rows(self.gpu.caps());
        if !wanted || self.chunk <= rows {
            return Ok(());
        }
        let plan = self.plan(&self.graph, StepKind::Prefill(rows))?;
        let making = compile(&self.gpu, &[&plan], &self.pipelines.borrow()).boxed_local();
        self.short_prefill
            .replace(ShortPrefill::Compiling(plan, making));
        Ok(())
    }

    /// Creates its buffers once its kernels are compiled.
    fn poll_short(&self) {
        let mut short = self.short_prefill.borrow_mut();
        let ShortPrefill::Compiling(_, making) = &mut *short else {
            return;
        };
        let Some(made) = making.now_or_never() else {
            return;
        };
        // On failure, short prompts use the regular step; a lost device reports itself there.
        let ShortPrefill::Compiling(plan, _) =
            std::mem::replace(&mut *short, ShortPrefill::Disabled)
        else {
            return;
        };
        let before = self.gpu.resource_counts().bytes;
        let prepared = made.and_then(|made| {
            self.pipelines.borrow_mut().extend(made);
            PlanBuffers::new(&self.gpu, "short prefill", plan, false)
        });
        if let Ok(prepared) = prepared {
            *short = ShortPrefill::Ready(prepared);
        }
        self.update_memory_use(|bytes| {
            bytes.activations += self.gpu.resource_counts().bytes - before;
        });
    }
}

impl Session {
    /// Adopts the step once it is ready.
    pub(super) fn poll_short(&mut self) {
        if self.short_prefill.is_some() {
            return;
        }
        self.model.poll_short();
        let step = match &*self.model.short_prefill.borrow() {
            ShortPrefill::Ready(prepared) => self.build_step("short prefill", prepared, 1).ok(),
            _ => None,
        };
        self.short_prefill = step;
    }

    /// The step whose tiles fit this many rows.
    pub(super) fn prefill_step(&self, rows: usize) -> &Step {
        let short = MatrixTiling::short_rows(self.gpu.caps());
        match (&self.short_prefill, &self.steps.medium_prefill) {
            (Some(step), _) if rows <= short => step,
            (_, Some(step)) if rows <= MatrixTiling::TALL_TILE_ROWS => step,
            _ => &self.steps.prefill,
        }
    }
}
