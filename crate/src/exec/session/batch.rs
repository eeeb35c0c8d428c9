//! What a batch takes from a session and gives back: states, the last logits, tokens.

use super::Session;
use crate::exec::program_key::OverlayId;
use crate::exec::step::Buffers;
use crate::plan::Slot;
use crate::{Error, Result};

impl Session {
    /// The adapter that it uses.
    pub fn overlay(&self) -> Option<OverlayId> {
        self.overlay
    }

    /// The buffers that it shares with other owners.
    pub(in crate::exec) fn shared_buffers(&self) -> &Buffers {
        &self.shared_buffers
    }

    /// Added to the index of the next token to get its RoPE position.
    pub(in crate::exec) fn rope_offset(&self) -> i64 {
        self.mrope.offset
    }

    /// Whether the caller sets the RoPE positions of its tokens.
    pub(in crate::exec) fn has_own_positions(&self) -> bool {
        let mut slots = self.shared_buffers.keys();
        slots.any(|slot| matches!(slot, Slot::Rope(_)))
    }

    /// Prepares for the states of a sequence that a batch continued: there must be `held` tokens.
    pub(in crate::exec) async fn prepare_return(&mut self, held: usize, end: usize) -> Result<()> {
        if self.tokens.len() != held || self.written_until < held {
            return Err(Error::Internal(format!(
                "batch: the session has {} tokens, and had {held} when it joined",
                self.tokens.len()
            )));
        }
        self.reserve_states(end).await
    }
}
