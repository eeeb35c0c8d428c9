//! Sizes and buffers of a sequence's states.

use super::Model;
use crate::Result;
use crate::exec::options::RunOptions;
use crate::exec::step::Buffers;
use crate::gpu::{Backend, BufferUsage};
use crate::ir::StateId;
use crate::plan::Slot;

impl Model {
    /// Returns the capacity for `positions`, given the current capacity `held`: whole pages, at
    /// least 1.5 times the current one.
    pub(in crate::exec) fn capacity_for(&self, positions: usize, held: usize) -> usize {
        let page = match self.options.kv_growth {
            0 => self.capacity(),
            page => page,
        };
        let page = match self.options.kv_memory {
            // Whole pages must not exceed the limit by much.
            Some(_) => page.min(RunOptions::default().kv_growth),
            None => page,
        };
        positions
            .max(held + held / 2)
            .next_multiple_of(page)
            .min(self.capacity())
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

    /// Maximum bytes of a sequence's states on the device.
    pub fn max_state_bytes(&self) -> u64 {
        let limit = self.options.kv_memory.unwrap_or(u64::MAX);
        self.state_bytes(self.capacity()).min(limit)
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
        self.state_buffers_unless(index, positions, into, |_, _| false)
    }

    /// Creates the buffers of all states.
    ///
    /// # Errors
    /// As [`Self::state_buffers`].
    pub(in crate::exec) fn all_state_buffers(&self, positions: usize) -> Result<Buffers> {
        let mut made = Buffers::new();
        for index in 0..self.states().len() {
            self.state_buffers(index, positions, &mut made)?;
        }
        Ok(made)
    }

    /// Creates the buffers of a state, except those that `has` says are there already, by slot and
    /// bytes.
    ///
    /// # Errors
    /// As [`Self::state_buffers`].
    pub(in crate::exec) fn state_buffers_unless(
        &self,
        index: usize,
        positions: usize,
        into: &mut Buffers,
        has: impl Fn(Slot, u64) -> bool,
    ) -> Result<()> {
        let Some(state) = self.states().get(index) else {
            return Ok(());
        };
        for (plane, bytes) in state.planes.iter().enumerate() {
            self.gpu.check_size(
                state.spec.name(),
                state.allocated_bytes(*bytes, self.capacity()),
            )?;
            let slot = Slot::State(StateId(index), plane as u8);
            let needed = state.allocated_bytes(*bytes, positions);
            if !has(slot, needed) {
                let name = state.spec.name();
                into.insert(slot, self.gpu.buffer(name, needed, BufferUsage::Storage)?);
            }
        }
        Ok(())
    }
}
