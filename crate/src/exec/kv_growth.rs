//! KV cache growth: allocates larger buffers in whole pages and copies the old contents on the
//! device. Buffers stay contiguous, so kernels and step cost are the same as with full allocation.

use super::model::Model;
use super::session::Session;
use super::step::{Buffers, SessionSteps, Step};
use crate::Result;
use crate::gpu::{Backend, BufferUsage, Command};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};
use std::mem::{swap, take};

/// Maximum bytes allocated per growth in addition to the replaced buffers, or an eighth of the
/// total if that is more.
const MAX_GROWTH_BYTES: u64 = 64 << 20;

impl Model {
    /// Returns the capacity for `positions`, given the current capacity `held`: whole pages, at
    /// least 1.5 times the current one.
    pub(super) fn capacity_for(&self, positions: usize, held: usize) -> usize {
        match self.options.kv_growth {
            0 => self.capacity,
            page => positions
                .max(held + held / 2)
                .next_multiple_of(page)
                .min(self.capacity),
        }
    }

    /// Returns the bytes of a sequence's states with a capacity of `positions`.
    pub fn state_bytes(&self, positions: usize) -> u64 {
        self.states
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
    pub(super) fn state_buffers(
        &self,
        index: usize,
        positions: usize,
        into: &mut Buffers,
    ) -> Result<()> {
        let Some(state) = self.states.get(index) else {
            return Ok(());
        };
        for (plane, bytes) in state.planes.iter().enumerate() {
            self.gpu.check_size(
                state.spec.name(),
                state.allocated_bytes(*bytes, self.capacity),
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

impl Session {
    /// Grows the states to hold at least `positions` positions. Their contents stay, including
    /// writes of steps in flight. On failure or cancellation the sequence is unchanged, though some
    /// of its states may have grown.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub(super) async fn reserve(&mut self, positions: usize) -> Result<()> {
        if positions <= self.kv_capacity {
            return Ok(());
        }
        let model = self.model.clone();
        let held = model.capacity_for(positions, self.kv_capacity);
        let most = (model.state_bytes(held) / 8).max(MAX_GROWTH_BYTES);
        let grows = |(index, state): &(usize, &StatePlan)| {
            state.planes.iter().enumerate().any(|(plane, bytes)| {
                let needed = state.allocated_bytes(*bytes, held);
                let own = self.own.get(&Slot::State(StateId(*index), plane as u8));
                needed > state.allocated_bytes(*bytes, 0)
                    && own.is_none_or(|buffer| buffer.size() < needed)
            })
        };
        let mut rest: Vec<usize> = model
            .states
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
            let copies: Vec<Command<'_>> = made
                .iter()
                .filter_map(|(slot, to)| {
                    let from = self.own.get(slot)?;
                    Some(Command::Copy {
                        from: (from, 0),
                        to: (to, 0),
                        size: from.size().min(to.size()),
                    })
                })
                .collect();
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
    pub(super) fn reserve_uninitialized(&mut self, positions: usize) -> Result<()> {
        if positions <= self.kv_capacity {
            return Ok(());
        }
        let model = self.model.clone();
        let held = model.capacity_for(positions, self.kv_capacity);
        let mut made = Buffers::new();
        for index in 0..model.states.len() {
            model.state_buffers(index, held, &mut made)?;
        }
        self.rebind(made)?;
        self.set_kv_capacity(held);
        Ok(())
    }

    fn set_kv_capacity(&mut self, positions: usize) {
        let bytes = self.model.state_bytes(positions);
        self.model
            .update_memory_use(|all| all.kv = all.kv + bytes - self.state_bytes);
        (self.kv_capacity, self.state_bytes) = (positions, bytes);
    }

    /// Rebuilds the steps that read or write states with new buffers; returns the previous ones. On
    /// failure nothing changes.
    fn rebind(&mut self, made: Buffers) -> Result<Rebinding> {
        let slots = made.keys();
        let own: Buffers = slots
            .filter_map(|slot| self.own.get_key_value(slot))
            .map(|(s, b)| (*s, b.clone()))
            .collect();
        self.own.extend(made);
        match self.rebuild_steps() {
            Ok((steps, verify)) => Ok(self.swap_steps(Rebinding { own, steps, verify })),
            Err(error) => {
                self.own.extend(own);
                Err(error)
            }
        }
    }

    fn undo_rebind(&mut self, mut before: Rebinding) {
        self.own.extend(take(&mut before.own));
        self.swap_steps(before);
    }

    /// Rebuilds the sequence's steps, including the speculative one if present.
    fn rebuild_steps(&self) -> Result<(SessionSteps, Option<Step>)> {
        let verify = self
            .speculation
            .as_ref()
            .map(|_| self.verify_step())
            .transpose()?;
        Ok((self.model.steps(&self.own)?, verify))
    }

    /// Swaps in other steps; returns the previous ones.
    fn swap_steps(&mut self, mut other: Rebinding) -> Rebinding {
        self.short_prefill = None;
        swap(&mut self.steps, &mut other.steps);
        if let (Some(own), Some(verify)) = (&mut self.speculation, &mut other.verify) {
            swap(&mut own.verify, verify);
        }
        other
    }
}

/// Buffers and steps of a sequence before it grew.
struct Rebinding {
    own: Buffers,
    steps: SessionSteps,
    verify: Option<Step>,
}
