//! Speculation by prompt lookup: the step that runs the last token with guesses of what follows it, whose kernels the GPU
//! needs beside a plain step's. What the kernels compute is told in shaders/sample.

use super::model::Model;
use super::sampling::{MAX_STOPS, RING, Tail};
use super::step::{Step, compile};
use crate::gpu::{Backend, Usage};
use crate::kernels::sample::{Advance, GUESSED_ROWS, accept, argmax_rows, draft, slices};
use crate::plan::{Plan, PlanOptions, RowsMode, Slot, fuse, lower};
use crate::{Error, Result};

/// The steps of a generation with guesses.
pub(super) struct Speculation {
    /// From the guesses to the tokens that hold.
    pub guessing: Step,
    /// What follows a plain step: the token is kept for later guesses.
    pub tail: Step,
}

/// Which text is looked up.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// All tokens before the generation.
    pub context: &'a [u32],
    /// Guess in every step, also where guesses do not pay: for tests and measurements.
    pub always: bool,
}

impl Model {
    /// Makes the kernels and buffers ready that guesses need.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn prepare_speculation(&mut self) -> Result<()> {
        if self.speculation.is_some() {
            return Ok(());
        }
        let before = self.gpu.created().bytes;
        let guessing = self.guessing_plan()?;
        let tail = Tail::Greedy.plan(guessing.output_cols as u32, Some(Slot::History))?;
        let pipelines = compile(&self.gpu, &[&guessing, &tail]).await?;
        // The token after the last position is picked as well.
        let history = self.gpu.buffer("history", (self.capacity as u64 + 1) * 4, Usage::Storage)?;
        self.shared.insert(Slot::History, history);
        let tail = Step::new(&self.gpu, "sample", &tail, &self.shared, &pipelines)?;
        // Its logits are those of many rows.
        let mut shared = self.shared.clone();
        shared.remove(&Slot::Output);
        let rows = GUESSED_ROWS as usize;
        let guessing = Step::for_rows(&self.gpu, "guesses", &guessing, &shared, &pipelines, rows)?;
        self.gpu.check().await?;
        self.bytes.activations += self.gpu.created().bytes - before;
        self.speculation = Some(Speculation { guessing, tail });
        Ok(())
    }

    /// What [`Self::prepare_speculation`] made.
    pub(super) fn speculation(&self) -> Result<&Speculation> {
        self.speculation.as_ref().ok_or_else(|| Error::Internal("speculation was not prepared".into()))
    }

    fn guessing_plan(&self) -> Result<Plan> {
        let graph = fuse::few_rows(fuse::all_rows(self.graph.clone()), self.options.fusions);
        let options = PlanOptions {
            rows: RowsMode::Few(GUESSED_ROWS as usize),
            caps: self.gpu.caps(),
            weights: &self.weights,
            kv: self.kv,
            capacity: self.capacity,
            states: &self.states,
            fuse_heads: self.options.fusions.heads,
        };
        let mut plan = lower(&graph, options)?;
        let vocabulary = plan.output_cols as u32;
        plan.launches.insert(0, draft(Slot::History, Slot::CURSOR, Slot::Ids));
        plan.launches.push(argmax_rows(Slot::Output, Slot::Candidates, vocabulary, Slot::CURSOR));
        plan.launches.push(accept(Advance {
            candidates: Slot::Candidates,
            slices: slices(vocabulary),
            stops: Slot::Stops,
            stop_count: MAX_STOPS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: RING,
            counts: None,
            history: Some(Slot::History),
        }));
        Ok(plan)
    }
}
