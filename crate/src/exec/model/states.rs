//! Sizes and buffers of a sequence's states.

use super::Model;
use crate::Result;
use crate::exec::step::Buffers;
use crate::gpu::{Backend, BufferUsage};
use crate::ir::StateId;
use crate::plan::Slot;

impl Model {
    /// Returns the capacity for `positions`, given the current capacity `held`: whole pages, at
    /// least 1.5 times the current one.
    pub(in crate::exec) fn capacity_for(&self, positions: usize, held: usize) -> usize {
        match self.options.kv_growth {
            0 => self.capacity(),
            page => positions
                .max(held + held / 2)
                .next_multiple_of(page)
                .min(self.capacity()),
        }
    }

    /// Returns the bytes of a sequence's states with a capacity of `positions`.
    pub fn state_bytes(&self, positions: usize) -> u64 {
        self.states()
            .iter()
            .map(|state| {
                state
                    .planes
                    .iter()
                    .map(|plane| state.allocated_bytes(*plane, positions))
                    .sum::<u64>()
            })
            .sum()
    }

    /// Creates the buffers of a state.
    ///
    /// # Errors
    /// `OutOfMemory`, also when the state at full context would exceed the device's maximum buffer
    /// size. This way a load fails early rather than a later conversation.
    pub(in crate::exec) fn state_buffers(
        &self,
        index: usize,
        positions: usize,
        into: &mut Buffers,
    ) -> Result<()> {
        let Some(state) = self.states().get(index) else {
            return Ok(());
        };
        for (plane, bytes) in state.planes.iter().enumerate() {
            self.gpu.check_size(
                state.spec.name(),
                state.allocated_bytes(*bytes, self.capacity()),
            )?;
            let buffer = self.gpu.buffer(
                state.spec.name(),
                state.allocated_bytes(*bytes, positions),
                BufferUsage::Storage,
            )?;
            into.insert(Slot::State(StateId(index), plane as u8), buffer);
        }
        Ok(())
    }
}
