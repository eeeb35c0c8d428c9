//! The step of short prompts, as a chat's later turns are: its tiles have fewer rows. Nothing waits for its kernels; the step
//! of all prompts serves until they are there.

use super::model::Model;
use super::step::{Pipelines, Step, compile};
use crate::Result;
use crate::gpu::Backend;
use crate::kernels::matmul::GemmChoice;
use crate::plan::{Plan, PlanOptions, RowsMode, lower};
use futures_util::future::{FutureExt, LocalBoxFuture};

/// What there is of it.
pub(super) enum Short {
    /// Nothing yet.
    Unasked,
    /// Nothing: it is not wanted here, or the device refused it.
    None,
    /// Its kernels are being compiled.
    Making(Plan, LocalBoxFuture<'static, Result<Pipelines>>),
    /// All of it.
    Ready(Step),
}

impl Model {
    /// Begins to make a step for short prompts, where it is wanted and none was begun: best while nothing else is asked of
    /// the device, as a prompt beside it takes some 50 ms longer. In a page the kernels are compiled meanwhile, natively by
    /// this thread.
    ///
    /// # Errors
    /// What the plan of it says.
    pub fn prepare_short(&mut self) -> Result<()> {
        if !matches!(self.short, Short::Unasked) {
            return Ok(());
        }
        self.short = Short::None;
        let wanted = self.options.short.unwrap_or(!self.gpu.caps().software);
        if !wanted || self.options.chunk.min(self.capacity) <= GemmChoice::SHORT {
            return Ok(());
        }
        let options = PlanOptions {
            rows: RowsMode::Many(GemmChoice::SHORT),
            caps: self.gpu.caps(),
            weights: &self.weights,
            kv: self.kv,
            capacity: self.capacity,
            states: &self.states,
            fuse_heads: self.options.fusions.heads,
        };
        let plan = lower(&self.graph, options)?;
        let making = compile(&self.gpu, &[&plan]).boxed_local();
        self.short = Short::Making(plan, making);
        Ok(())
    }

    /// Takes it into use when its kernels are there.
    pub(super) fn take_short(&mut self) {
        let Short::Making(plan, making) = &mut self.short else { return };
        let Some(made) = making.now_or_never() else { return };
        let before = self.gpu.created().bytes;
        let step = made.and_then(|made| Step::new(&self.gpu, "short prefill", plan, &self.shared, &made));
        self.bytes.activations += self.gpu.created().bytes - before;
        // Without it prompts run as long ones do; a device that is lost says so there.
        self.short = step.map_or(Short::None, Short::Ready);
    }

    /// The step whose tiles suit so many rows.
    pub(super) fn prefill_step(&self, rows: usize) -> &Step {
        match &self.short {
            Short::Ready(step) if rows <= GemmChoice::SHORT => step,
            _ => &self.prefill,
        }
    }
}
