//! Trim, checkpoint, snapshot, restore and fork of a session.

use super::Session;
use crate::Result;
use crate::exec::saved::{Saved, Snapshot, copy_all};

impl Session {
    /// Clears the sequence: the next token is the first.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.checkpoints.clear();
        self.reached = 0;
    }

    /// Trims the sequence to `to` tokens, or fewer if its states require it; returns the number left. Tokens missing up
    /// to `to` must be run again.
    ///
    /// # Errors
    /// Device errors.
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
            // A ring buffer stays overwritten, however far the sequence is rolled back.
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
            // The next tokens follow the remaining ones.
            self.place_tokens(&self.tokens.clone())?;
        }
        Ok(self.tokens.len())
    }

    /// Saves the states and the last row's logits, so that the sequence can be rolled back to this position. Call it
    /// after a prompt; it does nothing if states can be trimmed.
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

    /// Copies the whole sequence, to restore it later.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for it.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::of(&self.model, &self.own, &self.tokens, self.reached)
    }

    /// Restores a snapshot.
    ///
    /// # Errors
    /// `Request` for a snapshot of another model; device errors.
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

    /// Copies tokens, states and last logits of another sequence of the model.
    ///
    /// # Errors
    /// Device errors.
    pub fn become_copy(&mut self, other: &Self) -> Result<()> {
        self.room_for_copy(other.reached)?;
        copy_all(&self.model, &other.own, &self.own, other.reached)?;
        self.tokens.clone_from(&other.tokens);
        self.checkpoints.clear();
        self.reached = other.reached;
        Ok(())
    }

    /// Forks the sequence: copies its states, shares weights and kernels.
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
