//! Trim, checkpoint, snapshot, restore and fork of a session.

use super::Session;
use crate::Result;
use crate::exec::checkpoint::{SessionSnapshot, StateCheckpoint, copy_states};
use crate::gpu::{Backend, Command};
use crate::plan::Slot;

impl Session {
    /// Clears the sequence: the next token is the first.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.checkpoints.clear();
        self.written_until = 0;
    }

    /// Trims the sequence to `to` tokens, or fewer if its states require it; returns the number
    /// left. Tokens missing up to `to` must be run again.
    ///
    /// # Errors
    /// Device errors.
    pub fn trim(&mut self, to: usize) -> Result<usize> {
        let to = to.min(self.tokens.len());
        if to == self.written_until {
            return Ok(to);
        }
        let oldest = self
            .model
            .states()
            .iter()
            .map(|s| s.earliest_position(self.written_until))
            .max()
            .unwrap_or(0);
        if to == 0 {
            self.clear();
        } else if to >= oldest {
            self.tokens.truncate(to);
            self.checkpoints.retain(|saved| saved.len() <= to);
            // A ring buffer stays overwritten, however far the sequence is rolled back.
            if self.model.states().iter().all(|s| !s.ring) {
                self.written_until = to;
            }
        } else {
            self.checkpoints.retain(|saved| saved.len() <= to);
            match self.checkpoints.last().cloned() {
                Some(saved) => {
                    saved.load(&self.model, &self.own)?;
                    self.tokens.truncate(saved.len());
                    self.written_until = saved.len();
                }
                None => self.clear(),
            }
        }
        if !self.mrope.tokens.is_empty() {
            // The next tokens follow the remaining ones.
            self.update_mrope(&self.tokens.clone())?;
        }
        Ok(self.tokens.len())
    }

    /// How many of its last tokens can be dropped at any time: none if a state is recurrent.
    pub(in crate::exec) fn rollback_room(&self) -> usize {
        let states = self.model.states().iter();
        states.map(|state| state.rollback_room()).min().unwrap_or(0)
    }

    /// Saves the states and the last row's logits, so that the sequence can be rolled back to this
    /// position. Call it after a prompt; it does nothing if states can be trimmed.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for it.
    pub fn checkpoint(&mut self) -> Result<()> {
        let held = self.tokens.len();
        if held == 0
            || (self.model.is_recurrent() && held != self.written_until)
            || self.checkpoints.iter().any(|saved| saved.len() == held)
        {
            return Ok(());
        }
        let model = self.model.clone();
        StateCheckpoint::push_to(&model, &self.own, held, &mut self.checkpoints)
    }

    /// Copies the whole sequence, to restore it later.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for it; `UnsupportedOption` while KV caches are in
    /// main memory.
    pub fn snapshot(&self) -> Result<SessionSnapshot> {
        if self.offload.is_some() {
            return Err(self.offload_error("copying a sequence"));
        }
        SessionSnapshot::of(&self.model, &self.own, &self.tokens, self.written_until)
    }

    /// Restores a snapshot.
    ///
    /// # Errors
    /// `Request` for a snapshot of another model; `UnsupportedOption` when its states exceed their
    /// memory limit; device errors.
    pub fn restore(&mut self, snapshot: &SessionSnapshot) -> Result<()> {
        snapshot.check_model(&self.model)?;
        self.reserve_uninitialized(snapshot.reached)?;
        snapshot.load(&self.model, &self.own)?;
        self.tokens.clone_from(&snapshot.tokens);
        self.checkpoints.clear();
        self.written_until = snapshot.reached;
        self.update_mrope(&self.tokens.clone())?;
        Ok(())
    }

    /// Copies tokens, states and last logits of another sequence of the model.
    ///
    /// # Errors
    /// Device errors; `UnsupportedOption` while the other's KV caches are in main memory, or when its
    /// states exceed their memory limit.
    pub fn copy_from(&mut self, other: &Self) -> Result<()> {
        if other.offload.is_some() {
            return Err(self.offload_error("copying a sequence"));
        }
        self.reserve_uninitialized(other.written_until)?;
        copy_states(&self.model, &other.own, &self.own, other.written_until)?;
        if let [Some(from), Some(to)] = [&other.own, &self.own].map(|own| own.get(&Slot::Hidden)) {
            self.model.gpu.submit(&[Command::Copy {
                from: (from, 0),
                to: (to, 0),
                size: from.size(),
            }])?;
        }
        self.tokens.clone_from(&other.tokens);
        self.checkpoints.clear();
        self.written_until = other.written_until;
        Ok(())
    }

    /// Forks the sequence: copies its states, shares weights and kernels.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its states; `UnsupportedOption` while KV caches
    /// are in main memory.
    pub fn fork(&self) -> Result<Self> {
        if self.offload.is_some() {
            return Err(self.offload_error("copying a sequence"));
        }
        let mut fork = Self::with_capacity(
            &self.model,
            self.overlay,
            self.shared_buffers.clone(),
            self.kv_capacity,
        )?;
        fork.copy_from(self)?;
        fork.checkpoints.clone_from(&self.checkpoints);
        fork.rope_dirty = self.rope_dirty;
        fork.soft_token_cache = self.soft_token_cache.clone();
        fork.update_mrope(&self.tokens)?;
        Ok(fork)
    }
}
