//! Beam search over a window. The beams are sequences of a batch: one forward pass and one readback
//! per step, and beams share the keys and values that they have in common.

use super::Transcriber;
use super::decode::{WindowResult, WindowTask};
use crate::Result;
use crate::audio::beam::{BeamOptions, BeamSearch, Hypothesis, log_softmax};
use crate::exec::{DecodeBatch, SequenceId, SequenceParams};

impl Transcriber {
    /// Decodes a window with beam search and returns the best hypothesis.
    pub(super) async fn decode_beams(&mut self, text: &WindowTask<'_>) -> Result<WindowResult> {
        let best = self.search_beams(text).await?.into_iter().next();
        let Some(Hypothesis { mut ids, score, .. }) = best else {
            return Ok(WindowResult::default());
        };
        // Undo the length penalty: score = sum / length^penalty.
        let length = ids.len().max(1) as f64;
        let sum = f64::from(score) * length.powf(f64::from(text.request.length_penalty));
        if ids.last().is_some_and(|id| self.end_tokens.contains(id)) {
            ids.pop();
        }
        Ok(WindowResult {
            ids,
            mean_logprob: Some(sum / length),
            ..WindowResult::default()
        })
    }

    /// Returns all finished hypotheses, best first.
    pub(super) async fn search_beams(&mut self, text: &WindowTask<'_>) -> Result<Vec<Hypothesis>> {
        self.prefill_prompt(text).await?;
        let beams = text.request.beams;
        // After an error or an abort the batch is not put back.
        let known = self.beam_batch.take();
        let mut batch = match known.filter(|batch| batch.capacity() >= beams) {
            Some(batch) => batch,
            None => DecodeBatch::for_sessions_like(&self.session, beams).await?,
        };
        let params = SequenceParams::greedy(text.max_tokens + 1);
        let first = batch.join(&self.session, params).await?;
        let options = BeamOptions {
            beams,
            length_penalty: text.request.length_penalty,
            max_tokens: text.max_tokens,
            end_tokens: self.end_tokens.clone(),
        };
        let mut search = BeamSearch::new(options);
        // The tokens of each running beam, and its sequence.
        let mut texts: Vec<(Vec<u32>, SequenceId)> = vec![(Vec::new(), first)];
        loop {
            text.abort.check("transcribing")?;
            let ids: Vec<SequenceId> = texts.iter().map(|(_, id)| *id).collect();
            let mut rows = batch.logits(&ids).await?;
            for (row, (ids, _)) in rows.iter_mut().zip(&texts) {
                log_softmax(row);
                self.rules.mask_logits(row, ids, text.times);
            }
            let steps = search.step(&rows);
            let parents: Vec<SequenceId> = steps.iter().map(|step| ids[step.parent]).collect();
            let children = batch.continue_from(&parents).await?;
            if steps.is_empty() {
                self.beam_batch = Some(batch);
                return Ok(search.results());
            }
            let tokens: Vec<(SequenceId, u32)> = children
                .iter()
                .zip(&steps)
                .map(|(id, step)| (*id, step.token))
                .collect();
            batch.step_with(&tokens).await?;
            texts = steps
                .iter()
                .zip(children)
                .map(|(step, id)| ([&texts[step.parent].0[..], &[step.token]].concat(), id))
                .collect();
        }
    }
}
