//! Beam search over a window. Each beam has its own session; all share the encoder's output.

use super::Transcriber;
use super::decode::{Decoded, Text};
use crate::Result;
use crate::audio::beam::{BeamOptions, Hypothesis, Search, log_softmax};
use crate::exec::Session;

impl Transcriber {
    /// Decodes a window with beam search and returns the best hypothesis.
    pub(super) async fn beams(&mut self, text: &Text<'_>) -> Result<Decoded> {
        let best = self.search(text).await?.into_iter().next();
        let Some(Hypothesis { mut ids, score, .. }) = best else { return Ok(Decoded::default()) };
        // Undo the length penalty: score = sum / length^penalty.
        let length = ids.len().max(1) as f64;
        let sum = f64::from(score) * length.powf(f64::from(text.request.length_penalty));
        if ids.last().is_some_and(|id| self.ends.contains(id)) {
            ids.pop();
        }
        Ok(Decoded { ids, mean_logprob: Some(sum / length), ..Decoded::default() })
    }

    /// Returns all finished hypotheses, best first.
    pub(super) async fn search(&mut self, text: &Text<'_>) -> Result<Vec<Hypothesis>> {
        let beams = text.request.beams;
        self.begin(text).await?;
        while self.others.len() + 1 < beams {
            self.others.push(Session::with(self.session.model(), self.ear.memory().clone())?);
        }
        let options = BeamOptions {
            beams,
            length_penalty: text.request.length_penalty,
            most: text.limit,
            ends: self.ends.clone(),
        };
        let mut search = Search::new(options);
        // Per running beam: its tokens and the index of its session.
        let mut texts: Vec<(Vec<u32>, usize)> = vec![(Vec::new(), 0)];
        loop {
            text.abort.check("transcribing")?;
            let mut rows = Vec::with_capacity(texts.len());
            for (ids, home) in &texts {
                let mut row = self.sequence(*home).logits().await?;
                log_softmax(&mut row);
                self.rules.restrict(&mut row, ids, text.times);
                rows.push(row);
            }
            let steps = search.step(&rows);
            if steps.is_empty() {
                return Ok(search.results());
            }
            let parents: Vec<usize> = steps.iter().map(|step| texts[step.parent].1).collect();
            let homes = self.move_in(&parents, beams)?;
            texts = steps
                .iter()
                .zip(&homes)
                .map(|(step, home)| ([&texts[step.parent].0[..], &[step.token]].concat(), *home))
                .collect();
            for (ids, home) in &texts {
                let (token, pos) = (ids[ids.len() - 1], text.prompt.len() + ids.len() - 1);
                self.sequence_mut(*home).step(token, pos).await?;
            }
        }
    }

    fn sequence(&self, index: usize) -> &Session {
        if index == 0 { &self.session } else { &self.others[index - 1] }
    }

    fn sequence_mut(&mut self, index: usize) -> &mut Session {
        if index == 0 { &mut self.session } else { &mut self.others[index - 1] }
    }

    /// Assigns sessions to the children of `parents`: the first child keeps the parent's session, others get a copy.
    fn move_in(&mut self, parents: &[usize], beams: usize) -> Result<Vec<usize>> {
        let mut free: Vec<usize> = (0..beams).filter(|home| !parents.contains(home)).collect();
        let mut taken = Vec::new();
        for parent in parents {
            if !taken.contains(parent) {
                taken.push(*parent);
                continue;
            }
            let Some(home) = free.pop() else {
                return Err(crate::Error::Internal("there are more beams than sessions".into()));
            };
            if home == 0 {
                self.session.become_copy(&self.others[parent - 1])?;
            } else if *parent == 0 {
                self.others[home - 1].become_copy(&self.session)?;
            } else {
                let (low, high) = (home.min(*parent) - 1, home.max(*parent) - 1);
                let (left, right) = self.others.split_at_mut(high);
                let (low, high) = (&mut left[low], &mut right[0]);
                let (to, from) = if home < *parent { (low, high) } else { (high, low) };
                to.become_copy(from)?;
            }
            taken.push(home);
        }
        Ok(taken)
    }
}
