//! Beam search over a window. Each beam has its own session; all share the encoder's output.

use super::Transcriber;
use super::decode::{WindowResult, WindowTask};
use crate::Result;
use crate::audio::beam::{BeamOptions, BeamSearch, Hypothesis, log_softmax};
use crate::exec::Session;

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
        let beams = text.request.beams;
        self.prefill_prompt(text).await?;
        while self.beam_sessions.len() + 1 < beams {
            self.beam_sessions.push(Session::with_shared_buffers(
                self.session.model(),
                self.encoder.cross_kv().clone(),
            )?);
        }
        let options = BeamOptions {
            beams,
            length_penalty: text.request.length_penalty,
            max_tokens: text.max_tokens,
            end_tokens: self.end_tokens.clone(),
        };
        let mut search = BeamSearch::new(options);
        // Per running beam: its tokens and the index of its session.
        let mut texts: Vec<(Vec<u32>, usize)> = vec![(Vec::new(), 0)];
        loop {
            text.abort.check("transcribing")?;
            let mut rows = Vec::with_capacity(texts.len());
            for (ids, home) in &texts {
                let mut row = self.beam_session(*home).logits().await?;
                log_softmax(&mut row);
                self.rules.mask_logits(&mut row, ids, text.times);
                rows.push(row);
            }
            let steps = search.step(&rows);
            if steps.is_empty() {
                return Ok(search.results());
            }
            let parents: Vec<usize> = steps.iter().map(|step| texts[step.parent].1).collect();
            let homes = self.assign_beams(&parents, beams)?;
            texts = steps
                .iter()
                .zip(&homes)
                .map(|(step, home)| ([&texts[step.parent].0[..], &[step.token]].concat(), *home))
                .collect();
            for (ids, home) in &texts {
                let token = ids[ids.len() - 1];
                let pos = text.prompt.len() + ids.len() - 1;

                self.beam_session_mut(*home).step(token, pos).await?;
            }
        }
    }

    fn beam_session(&self, index: usize) -> &Session {
        if index == 0 {
            &self.session
        } else {
            &self.beam_sessions[index - 1]
        }
    }

    fn beam_session_mut(&mut self, index: usize) -> &mut Session {
        if index == 0 {
            &mut self.session
        } else {
            &mut self.beam_sessions[index - 1]
        }
    }

    /// Assigns sessions to the children of `parents`: the first child keeps the parent's session,
    /// others get a copy.
    fn assign_beams(&mut self, parents: &[usize], beams: usize) -> Result<Vec<usize>> {
        let mut free: Vec<usize> = (0..beams).filter(|home| !parents.contains(home)).collect();
        let mut taken = Vec::new();
        for parent in parents {
            if !taken.contains(parent) {
                taken.push(*parent);
                continue;
            }
            let Some(home) = free.pop() else {
                return Err(crate::Error::Internal(
                    "there are more beams than sessions".into(),
                ));
            };
            if home == 0 {
                self.session.copy_from(&self.beam_sessions[parent - 1])?;
            } else if *parent == 0 {
                self.beam_sessions[home - 1].copy_from(&self.session)?;
            } else {
                let low = home.min(*parent) - 1;
                let high = home.max(*parent) - 1;

                let (left, right) = self.beam_sessions.split_at_mut(high);
                let low = &mut left[low];
                let high = &mut right[0];

                let (to, from) = if home < *parent {
                    (low, high)
                } else {
                    (high, low)
                };
                to.copy_from(from)?;
            }
            taken.push(home);
        }
        Ok(taken)
    }
}
