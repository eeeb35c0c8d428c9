//! Prefill step for short prompts (e.g. later turns of a chat) with smaller tiles. Nothing waits for its kernels; the
//! regular step is used until they are compiled.

use super::asked::Short;
use super::model::Model;
use super::session::Session;
use super::step::{Prepared, Step, compile};
use crate::Result;
use crate::gpu::Backend;
use crate::kernels::matrix::MatrixChoice;
use crate::plan::RowsMode;
use futures_util::future::FutureExt;

impl Model {
    /// Starts to prepare the step for short prompts, if enabled and not started yet. Best called while the device is
    /// idle: a concurrent prompt takes some 50 ms longer. Browsers compile the kernels in the background; native builds
    /// compile them on this thread.
    ///
    /// # Errors
    /// Planning errors.
    pub fn prepare_short(&self) -> Result<()> {
        if !matches!(*self.short.borrow(), Short::Unasked) {
            return Ok(());
        }
        self.short.replace(Short::None);
        let wanted = self.options.short.unwrap_or(!self.gpu.caps().software);
        let rows = MatrixChoice::short(self.gpu.caps());
        if !wanted || self.chunk <= rows {
            return Ok(());
        }
        let plan = self.plan(&self.graph, RowsMode::Many(rows))?;
        let making = compile(&self.gpu, &[&plan], &self.pipelines.borrow()).boxed_local();
        self.short.replace(Short::Making(plan, making));
        Ok(())
    }

    /// Creates its buffers once its kernels are compiled.
    fn take_short(&self) {
        let mut short = self.short.borrow_mut();
        let Short::Making(_, making) = &mut *short else { return };
        let Some(made) = making.now_or_never() else { return };
        // On failure, short prompts use the regular step; a lost device reports itself there.
        let Short::Making(plan, _) = std::mem::replace(&mut *short, Short::None) else { return };
        let before = self.gpu.created().bytes;
        let prepared = made.and_then(|made| {
            self.pipelines.borrow_mut().extend(made);
            Prepared::new(&self.gpu, "short prefill", plan, false)
        });
        if let Ok(prepared) = prepared {
            *short = Short::Ready(prepared);
        }
        self.count(|bytes| bytes.activations += self.gpu.created().bytes - before);
    }
}

impl Session {
    /// Adopts the step once it is ready.
    pub(super) fn take_short(&mut self) {
        if self.short.is_some() {
            return;
        }
        self.model.take_short();
        let step = match &*self.model.short.borrow() {
            Short::Ready(prepared) => self.step_of("short prefill", prepared, 1).ok(),
            _ => None,
        };
        self.short = step;
    }

    /// The step whose tiles fit this many rows.
    pub(super) fn prefill_step(&self, rows: usize) -> &Step {
        let short = MatrixChoice::short(self.gpu.caps());
        match (&self.short, &self.steps.middle) {
            (Some(step), _) if rows <= short => step,
            (_, Some(step)) if rows <= MatrixChoice::MIDDLE => step,
            _ => &self.steps.prefill,
        }
    }
}
