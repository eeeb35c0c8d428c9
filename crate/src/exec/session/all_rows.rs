//! Outputs of all rows of a sequence instead of only the last.

use super::Session;
use crate::Result;
use crate::exec::step::{check_finite, check_logits, rows_bytes, unpad_rows};
use crate::gpu::Backend;
use crate::ir::Graph;
use crate::plan::{StepKind, fuse};

impl Session {
    /// Returns the logits of every token, or the last hidden states with `hidden`:
    /// `[ids, columns]`. Afterwards the sequence is `ids`.
    ///
    /// # Errors
    /// As [`Self::prefill`]; `NotFinite` when they contain NaN or infinity.
    pub async fn all_rows(&mut self, ids: &[u32], hidden: bool) -> Result<Vec<f32>> {
        let graph = self.model.planned(self.overlay).graph.clone();
        let graph = if hidden { graph.without_head() } else { graph };
        let all = self.graph_rows(&fuse::all_rows(graph), ids).await?;
        all.chunks_exact((all.len() / ids.len()).max(1))
            .try_for_each(if hidden { check_finite } else { check_logits })?;
        Ok(all)
    }

    /// Returns the output of a graph over the model's weights and states for each of `ids`, which
    /// become the sequence.
    pub(in crate::exec) async fn graph_rows(
        &mut self,
        graph: &Graph,
        ids: &[u32],
    ) -> Result<Vec<f32>> {
        self.check_ids(ids, 0)?;
        self.trim(0)?;
        let cols = graph.value(graph.logits.unwrap_or(graph.hidden)).cols;
        // Chunk size limited by the output buffer.
        let fit = (self.model.gpu.caps().max_weight_buffer() / rows_bytes(1, cols)).max(1) as usize;
        let chunk = self.model.chunk().min(ids.len()).min(fit);
        let plan = self
            .model
            .plan(graph, StepKind::Prefill(chunk), self.overlay)?;
        let model = self.model.clone();
        let runner = &model.runner;
        runner.compile(&model.gpu, &plan.plan).await?;
        self.reserve_states(ids.len()).await?;
        let program = runner.build(&model.gpu, "every row", plan, self.overlay)?;
        let step = runner.bind(&model.gpu, &self.own, "every row", &program, 1)?;
        self.update_dynamic_ropes(0, ids.len())?;
        let mut all = Vec::with_capacity(ids.len() * step.output_cols);
        for chunk in self.prepare_prompt(ids, 0, chunk)? {
            let part = &ids[chunk.clone()];
            let staged = self.stage_chunk(ids, chunk)?;
            let pos = self.tokens.len();
            self.set_state(pos, part.len(), 0)?;
            self.mark_written(pos + part.len());
            self.submit_step(&step, (pos, part.len()), Some(&staged.ids))
                .await?;
            self.tokens.extend_from_slice(part);
            let bytes = self
                .model
                .gpu
                .read(&step.output, 0, rows_bytes(part.len(), step.output_cols))
                .await?;
            all.extend(unpad_rows(&bytes, step.output_cols));
        }
        self.model.gpu.check().await?;
        Ok(all)
    }
}
