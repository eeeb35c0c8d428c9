//! The step of short prompts, whose tiles have fewer rows. No load waits for its kernels: they are compiled from its end on,
//! and the step of all prompts serves until they are there.

use super::model::Model;
use super::step::{Pipelines, Step, compile};
use crate::Result;
use crate::gpu::Backend;
use crate::kernels::matmul::GemmChoice;
use crate::plan::{Plan, PlanOptions, RowsMode, lower};
use futures_util::future::{FutureExt, LocalBoxFuture};

/// What there is of it.
pub(super) enum Short {
    /// Nothing: it is not wanted here, or the device refused it.
    None,
    /// Its kernels are being compiled.
    Making(Plan, LocalBoxFuture<'static, Result<Pipelines>>),
    /// All of it.
    Ready(Step),
}

impl Model {
    /// Begins to compile its kernels, where it is wanted.
    pub(super) fn begin_short(&mut self) -> Result<()> {
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
            fuse_heads: self.options.fusions.heads,
        };
        let plan = lower(&self.graph, options)?;
        let making = compile(&self.gpu, &[&plan]).boxed_local();
        self.short = Short::Making(plan, making);
        Ok(())
    }

    /// Takes it into use when its kernels are there.
    pub(super) fn take_short(&mut self) {
        let Short::Making(_, making) = &mut self.short else { return };
        let Some(made) = making.now_or_never() else { return };
        let Short::Making(plan, _) = std::mem::replace(&mut self.short, Short::None) else { return };
        let before = self.gpu.created().bytes;
        // Without it prompts run as long ones do; a device that is lost says so there.
        let step = made.and_then(|pipelines| Step::new(&self.gpu, "short prefill", &plan, &self.shared, &pipelines));
        if let Ok(step) = step {
            self.bytes.activations += self.gpu.created().bytes - before;
            self.short = Short::Ready(step);
        }
    }

    /// The step whose tiles suit so many rows.
    pub(super) fn prefill_step(&self, rows: usize) -> &Step {
        match &self.short {
            Short::Ready(step) if rows <= GemmChoice::SHORT => step,
            _ => &self.prefill,
        }
    }
}
