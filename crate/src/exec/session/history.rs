//! Where a sequence can go: back to an earlier place, to what it was, to what another one is; and copies of it. Knows buffers of states
//! and how far back each holds, runs nothing.

use super::Session;
use crate::Result;
use crate::exec::saved::{Saved, Snapshot, copy_all};

impl Session {
    /// Forgets the sequence: the next token is the first.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.checkpoints.clear();
        self.reached = 0;
    }

    /// Goes back to the first `to` tokens, or as far as its states allow; answers how many tokens they hold then. What is
    /// missing up to `to` has to run again.
    ///
    /// # Errors
    /// What the device reports.
    pub fn trim(&mut self, to: usize) -> Result<usize> {
        let to = to.min(self.tokens.len());
        if to == self.reached {
            return Ok(to);
        }
        let oldest = self.states.iter().map(|s| s.oldest(self.reached)).max().unwrap_or(0);
        if to == 0 {
            self.clear();
        } else if to >= oldest {
            self.tokens.truncate(to);
            self.checkpoints.retain(|saved| saved.len() <= to);
            // A ring has lost what it was overwritten with, however far the sequence goes back.
            if self.states.iter().all(|s| !s.ring) {
                self.reached = to;
            }
        } else {
            self.checkpoints.retain(|saved| saved.len() <= to);
            match self.checkpoints.last().cloned() {
                Some(saved) => {
                    saved.load(&self.model, &self.own)?;
                    self.tokens.truncate(saved.len());
                    self.reached = saved.len();
                }
                None => self.clear(),
            }
        }
        if !self.placed.of.is_empty() {
            // What comes next stands behind what is left.
            self.place_tokens(&self.tokens.clone())?;
        }
        Ok(self.tokens.len())
    }

    /// Keeps what the states hold and the last row's logits, so that the sequence can go back to this place: wanted after a
    /// prompt, and done where states cannot go back by themselves.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for it.
    pub fn checkpoint(&mut self) -> Result<()> {
        let held = self.tokens.len();
        if held == 0
            || (self.is_recurrent() && held != self.reached)
            || self.checkpoints.iter().any(|saved| saved.len() == held)
        {
            return Ok(());
        }
        let model = self.model.clone();
        Saved::keep(&model, &self.own, held, &mut self.checkpoints)
    }

    /// A copy of the whole sequence, to come back to.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for it.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::of(&self.model, &self.own, &self.tokens, self.reached)
    }

    /// Makes the sequence what it was.
    ///
    /// # Errors
    /// `Request` for a snapshot of another model; what the device reports.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        snapshot.check(&self.model)?;
        self.room_for_copy(snapshot.reached)?;
        snapshot.load(&self.model, &self.own)?;
        self.tokens.clone_from(&snapshot.tokens);
        self.checkpoints.clear();
        self.reached = snapshot.reached;
        self.place_tokens(&self.tokens.clone())?;
        Ok(())
    }

    /// Makes the sequence what another one of the model is: its tokens, states and last logits.
    ///
    /// # Errors
    /// What the device reports.
    pub fn become_copy(&mut self, other: &Self) -> Result<()> {
        self.room_for_copy(other.reached)?;
        copy_all(&self.model, &other.own, &self.own, other.reached)?;
        self.tokens.clone_from(&other.tokens);
        self.checkpoints.clear();
        self.reached = other.reached;
        Ok(())
    }

    /// A second sequence that begins as this one: its states are copied, weights and kernels shared.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its states.
    pub fn fork(&self) -> Result<Self> {
        let mut fork = Self::with_places(&self.model, self.given.clone(), self.held)?;
        fork.become_copy(self)?;
        fork.checkpoints.clone_from(&self.checkpoints);
        fork.rope_dirty = self.rope_dirty;
        fork.album = self.album.clone();
        fork.place_tokens(&self.tokens)?;
        Ok(fork)
    }
}
