//! The part of a decode loop that runs ahead of a constraint. A token is sampled under its own mask;
//! those behind it are sampled under a guessed one, and kept if the true mask gives the same token.

use super::{DecodeLoop, InFlightBatch};
use crate::Result;
use crate::exec::logits_pipeline::LogitsPipeline;
use crate::exec::run_ahead::{GuessedMask, RunAhead};
use crate::exec::session::Session;
use crate::exec::speculation_controller::BatchKind;
use crate::sample::{Candidates, TokenMask};

/// Whether a token that was sampled under a guessed mask is the one of its own mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// It is another one.
    Replace(u32),
    /// It is not known.
    Drop,
}

/// Whether all tokens of a mask are in another.
fn is_within(mask: &[u32], other: &[u32]) -> bool {
    mask.iter().zip(other).all(|(own, other)| own & !other == 0)
}

impl DecodeLoop<'_> {
    /// Writes the mask of the next token.
    pub(super) fn write_own_mask(&mut self, session: &Session) -> Result<()> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(());
        };
        let mask = session.mask_of(&mut **constraint)?;
        if self.masks_nothing || mask != self.mask {
            session.write_mask(&mask)?;
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.begin(mask == self.mask, self.batch_size);
        }
        self.mask = mask;
        self.masks_nothing = false;
        self.is_holding = false;
        self.masked_token = self.returned;
        Ok(())
    }

    /// Submits steps under the guessed mask; returns whether any are in flight.
    pub(super) async fn submit_guesses(&mut self, session: &mut Session) -> Result<bool> {
        let Some(ahead) = self.ahead.as_ref().filter(|_| !self.forward_submitted) else {
            return Ok(false);
        };
        let (depth, guess) = (ahead.depth(self.batch_size), ahead.guess);
        let has_guesses = self.returned + self.steps_in_flight() > self.masked_token + 1;
        let next = self.end + self.returned - self.first + self.steps_in_flight() + 1;
        if session.is_offloaded_at(next) {
            // The host divides each step.
            return Ok(has_guesses);
        }
        if depth == 0 || self.is_holding {
            // Nothing else may follow guesses, even if they are not worth it any more.
            return Ok(depth > 0 || has_guesses);
        }
        if guess == GuessedMask::All && !self.masks_nothing {
            session.write_mask(&vec![u32::MAX; self.mask.len()])?;
            self.masks_nothing = true;
        }
        loop {
            let under_way = self.steps_in_flight();
            let left = self.budget - self.returned - under_way;
            let steps = RunAhead::submission(depth)
                .min((depth + 1).saturating_sub(under_way))
                .min(left);
            if steps == 0 {
                return Ok(true);
            }
            let end = self.end + self.returned - self.first + under_way + steps;
            let end = end.min(session.capacity());
            // Without memory for them, the tokens in flight are still returned.
            if session.is_offloaded_at(end) || session.reserve(end).await.is_err() {
                return Ok(true);
            }
            session.model().finish_parts().await;
            session.mark_written(end);
            session.submit_steps(steps, &self.pipeline, end)?;
            let batch = InFlightBatch {
                steps,
                kind: BatchKind::Plain,
                is_representative: under_way > 0,
                proposals: 0,
            };
            self.read(session, batch)?;
        }
    }

    /// Tells the constraint the tokens that were read back, while later steps run. Of `tokens`, the
    /// first `own` were sampled under their own masks; it drops others that their masks do not
    /// give. Samples the next token once its mask is known.
    pub(super) fn constrain(
        &mut self,
        session: &Session,
        tokens: &mut Vec<u32>,
        own: usize,
        words: &[u32],
    ) -> Result<()> {
        if self.constraint.is_none() {
            return Ok(());
        }
        let first = self.returned - tokens.len();
        for at in 0..tokens.len() {
            if at >= own {
                let verdict = self.judge(session, tokens[at], first + at, words)?;
                if let Some(ahead) = &mut self.ahead {
                    ahead.record(verdict == Verdict::Keep);
                }
                if verdict != Verdict::Keep {
                    tokens.truncate(at);
                    tokens.extend(match verdict {
                        Verdict::Replace(token) => Some(token),
                        _ => None,
                    });
                    self.cut(first, tokens);
                }
            }
            let Some(token) = tokens.get(at).filter(|token| !self.stops.contains(token)) else {
                return Ok(());
            };
            if let Some(constraint) = &mut self.constraint {
                constraint.accept(*token)?;
            }
            if self.is_cut {
                return Ok(());
            }
        }
        let under_way = self.steps_in_flight();
        let Some(constraint) = self.constraint.as_mut().filter(|_| !self.done) else {
            return Ok(());
        };
        if under_way > 0 {
            // Many forced tokens are cheaper in one prefill than in steps.
            let left = constraint.known_forced().saturating_sub(under_way);
            self.is_holding = left > 1 + self.batch_size / 2;
        } else if !constraint.forced()?.is_empty() {
            self.done = true;
        } else if self.forward_submitted && !self.is_ending {
            self.sample(session, self.ahead.is_some())?;
        }
        Ok(())
    }

    /// Ends the loop with these tokens, of which the first has the index `first`.
    fn cut(&mut self, first: usize, tokens: &[u32]) {
        self.sampled.truncate(first - self.first);
        self.sampled.extend_from_slice(tokens);
        self.returned = first + tokens.len();
        self.is_cut = true;
        self.done = true;
    }

    /// Whether a token sampled under the guessed mask is the one of its own mask. Greedy: a maximum
    /// over more tokens, if it is allowed. Sampled: the same if the masks are equal, else if the
    /// most likely tokens decide it.
    fn judge(
        &mut self,
        session: &Session,
        token: u32,
        index: usize,
        words: &[u32],
    ) -> Result<Verdict> {
        let (Some(constraint), Some(ahead)) = (&mut self.constraint, &mut self.ahead) else {
            return Ok(Verdict::Drop);
        };
        if token as usize >= session.vocab() {
            return Ok(Verdict::Drop);
        }
        let of = |is_kept: bool| {
            if is_kept {
                Verdict::Keep
            } else {
                Verdict::Drop
            }
        };
        let guesses_all = ahead.guess == GuessedMask::All;
        if ahead.is_greedy && guesses_all && !self.stops.contains(&token) {
            match constraint.may_follow(token)? {
                Some(true) => return Ok(Verdict::Keep),
                Some(false) => return Ok(Verdict::Drop),
                None => {}
            }
        }
        if let Some(forced) = constraint.forced()?.first() {
            return Ok(of(*forced == token));
        }
        let mask = session.mask_of(&mut **constraint)?;
        if !guesses_all && !is_within(&mask, &self.mask) {
            return Ok(Verdict::Drop);
        }
        if ahead.is_greedy {
            return Ok(of(TokenMask(&mask).allows(token as usize)));
        }
        if !guesses_all && mask == self.mask {
            return Ok(Verdict::Keep);
        }
        let Some(certain) = &mut ahead.certain else {
            return Ok(Verdict::Drop);
        };
        let vocabulary = session.vocab();
        let bits = |(at, word): (usize, &u32)| match vocabulary.saturating_sub(at * 32) {
            left if left < 32 => (word & ((1 << left) - 1)).count_ones(),
            _ => word.count_ones(),
        };
        let candidates = Candidates {
            listed: &LogitsPipeline::candidates_at(words, index),
            mask: TokenMask(&mask),
            allowed: mask.iter().enumerate().map(bits).sum::<u32>() as usize,
        };
        Ok(match certain.select(candidates, index as u32) {
            Some(found) if found == token => Verdict::Keep,
            Some(found) => Verdict::Replace(found),
            None => Verdict::Drop,
        })
    }
}
