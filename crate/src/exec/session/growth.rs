//! KV cache growth: allocates larger buffers in whole pages and copies the old contents on the
//! device. Buffers stay contiguous, so kernels and step cost are the same as with full allocation.

use super::Session;
use crate::Result;
use crate::exec::program_key::ProgramKey;
use crate::exec::step::{Buffers, Step};
use crate::gpu::{Backend, Buffer, Command};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};

/// Maximum bytes allocated at a time in addition to the replaced buffers, or an eighth of the total
/// if that is more.
const MAX_GROWTH_BYTES: u64 = 64 << 20;

impl Session {
    /// Prepares for decode steps up to a position: grows the states, and waits for the kernels.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them; device errors.
    pub(in crate::exec) async fn reserve(&mut self, positions: usize) -> Result<()> {
        self.reserve_states(positions).await?;
        self.prepare_decode(positions).await
    }

    /// Grows the states to hold at least `positions` positions. Their contents stay, including
    /// writes of steps in flight. On failure or cancellation the sequence is unchanged, though some
    /// of its states may have grown.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub(super) async fn reserve_states(&mut self, positions: usize) -> Result<()> {
        if self.offload.is_some()
            && self.written_until == 0
            && let Some(held) = self.growth_target(positions)
        {
            let made = self.model.all_state_buffers(held)?;
            self.model.gpu.check().await?;
            return self.replace_states(made, held);
        }
        if positions <= self.kv_capacity {
            return Ok(());
        }
        let model = self.model.clone();
        let Some(held) = self.growth_target(positions) else {
            return self.enter_offload().await;
        };
        // A first prompt has nothing to copy: all states grow at once, and steps are rebuilt once.
        let is_empty = self.written_until == 0;
        let most = match is_empty && self.state_bytes <= MAX_GROWTH_BYTES {
            true => u64::MAX,
            false => (model.state_bytes(held) / 8).max(MAX_GROWTH_BYTES),
        };
        let grows = |(index, state): &(usize, &StatePlan)| {
            state.planes.iter().enumerate().any(|(plane, bytes)| {
                let needed = state.allocated_bytes(*bytes, held);
                let own = self.own.get(&Slot::State(StateId(*index), plane as u8));
                needed > state.allocated_bytes(*bytes, 0)
                    && own.is_none_or(|buffer| buffer.size() < needed)
            })
        };
        let mut rest: Vec<usize> = model
            .states()
            .iter()
            .enumerate()
            .filter(grows)
            .map(|(index, _)| index)
            .collect();
        // Steps in flight still read the old buffers, which are freed afterwards.
        while !rest.is_empty() {
            let mut made = Buffers::new();
            let mut bytes = 0;
            while bytes < most
                && let Some(index) = rest.pop()
            {
                let before = model.gpu.resource_counts().bytes;
                model.state_buffers(index, held, &mut made)?;
                bytes += model.gpu.resource_counts().bytes - before;
            }
            model.gpu.check().await?;
            let copies = match is_empty {
                true => Vec::new(),
                false => self.copies_to(&made),
            };
            model.gpu.submit(&copies)?;
            let before = self.rebind(made)?;
            // Also catches allocations made while rebuilding the steps.
            if let Err(error) = model.gpu.check().await {
                self.undo_rebind(before);
                return Err(error);
            }
            if !rest.is_empty() {
                model.gpu.wait_idle().await?;
            }
        }
        self.set_kv_capacity(held);
        Ok(())
    }

    /// Grows the states without preserving their contents, for callers that overwrite all of them.
    pub(in crate::exec) fn reserve_uninitialized(&mut self, positions: usize) -> Result<()> {
        if positions <= self.kv_capacity && self.offload.is_none() {
            return Ok(());
        }
        match self.growth_target(positions) {
            Some(held) => {
                let made = self.model.all_state_buffers(held)?;
                self.replace_states(made, held)
            }
            None => Err(self.offload_error("copying a sequence")),
        }
    }

    /// The commands that copy states to larger buffers.
    pub(super) fn copies_to<'a>(&'a self, made: &'a Buffers) -> Vec<Command<'a>> {
        let copy = |(slot, to): (&Slot, &'a Buffer)| {
            let from = self.own.get(slot)?;
            Some(Command::Copy {
                from: (from, 0),
                to: (to, 0),
                size: from.size().min(to.size()),
            })
        };
        made.iter().filter_map(copy).collect()
    }

    pub(super) fn set_kv_capacity(&mut self, positions: usize) {
        self.set_state_bytes(positions, self.model.state_bytes(positions));
    }

    /// Notes the capacity of the states, and their bytes on the device.
    pub(super) fn set_state_bytes(&mut self, positions: usize, bytes: u64) {
        self.model
            .update_memory_use(|all| all.kv = all.kv + bytes - self.state_bytes);
        (self.kv_capacity, self.state_bytes) = (positions, bytes);
    }

    /// Rebuilds the steps that read or write states with new buffers; returns the previous ones. On
    /// failure nothing changes.
    pub(super) fn rebind(&mut self, made: Buffers) -> Result<Rebinding> {
        let slots = made.keys();
        let own: Buffers = slots
            .filter_map(|slot| self.own.get_key_value(slot))
            .map(|(s, b)| (*s, b.clone()))
            .collect();
        self.own.extend(made);
        match self.rebuild_steps() {
            Ok(steps) => Ok(Rebinding {
                own,
                steps: self.swap_steps(steps),
            }),
            Err(error) => {
                self.own.extend(own);
                Err(error)
            }
        }
    }

    fn undo_rebind(&mut self, before: Rebinding) {
        self.own.extend(before.own);
        self.swap_steps(before.steps);
    }

    /// Rebuilds the sequence's steps that read or write states.
    fn rebuild_steps(&self) -> Result<Vec<(ProgramKey, Step)>> {
        self.steps
            .keys()
            .filter(|key| key.uses_states() && **key != ProgramKey::PREFILL_SHORT)
            .map(|key| Ok((*key, self.bind_step(*key)?)))
            .collect()
    }

    /// Swaps in other steps; returns the previous ones. The step for short prompts is adopted again
    /// when it is next needed.
    fn swap_steps(&mut self, steps: Vec<(ProgramKey, Step)>) -> Vec<(ProgramKey, Step)> {
        self.steps.remove(&ProgramKey::PREFILL_SHORT);
        let swap = |(key, step)| Some((key, self.steps.insert(key, step)?));
        steps.into_iter().filter_map(swap).collect()
    }
}

/// Buffers and steps of a sequence before it grew.
pub(super) struct Rebinding {
    own: Buffers,
    steps: Vec<(ProgramKey, Step)>,
}
