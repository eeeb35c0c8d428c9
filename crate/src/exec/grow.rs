//! KV cache growth: allocates larger buffers in whole pages and copies the old contents on the device. Buffers stay
//! contiguous, so kernels and step cost are the same as with full allocation.

use super::model::Model;
use super::session::Session;
use super::step::{Buffers, Step, Steps};
use crate::Result;
use crate::gpu::{Backend, Usage, Work};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};
use std::mem::{swap, take};

/// Maximum bytes allocated per growth in addition to the replaced buffers, or an eighth of the total if that is more.
const AT_ONCE: u64 = 64 << 20;

impl Model {
    /// Returns the capacity for `positions`, given the current capacity `held`: whole pages, at least 1.5 times the
    /// current one.
    pub(super) fn places(&self, positions: usize, held: usize) -> usize {
        match self.options.page {
            0 => self.capacity,
            page => positions.max(held + held / 2).next_multiple_of(page).min(self.capacity),
        }
    }

    /// Returns the bytes of a sequence's states with a capacity of `positions`.
    pub fn state_bytes(&self, positions: usize) -> u64 {
        self.states
            .iter()
            .map(|state| state.planes.iter().map(|plane| state.room(*plane, positions)).sum::<u64>())
            .sum()
    }

    /// Creates the buffers of a state.
    ///
    /// # Errors
    /// `OutOfMemory`, also when the state at full context would exceed the device's maximum buffer size. This way a
    /// load fails early rather than a later conversation.
    pub(super) fn state_buffers(&self, index: usize, positions: usize, into: &mut Buffers) -> Result<()> {
        let Some(state) = self.states.get(index) else { return Ok(()) };
        for (plane, bytes) in state.planes.iter().enumerate() {
            self.gpu.fits(state.spec.name(), state.room(*bytes, self.capacity))?;
            let buffer = self.gpu.buffer(state.spec.name(), state.room(*bytes, positions), Usage::Storage)?;
            into.insert(Slot::Sequence(StateId(index), plane as u8), buffer);
        }
        Ok(())
    }
}

impl Session {
    /// Grows the states to hold at least `positions` positions. Their contents stay, including writes of steps in
    /// flight. On failure or cancellation the sequence is unchanged, though some of its states may have grown.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub(super) async fn room(&mut self, positions: usize) -> Result<()> {
        if positions <= self.held {
            return Ok(());
        }
        let model = self.model.clone();
        let held = model.places(positions, self.held);
        let most = (model.state_bytes(held) / 8).max(AT_ONCE);
        let grows = |(index, state): &(usize, &StatePlan)| {
            state.planes.iter().enumerate().any(|(plane, bytes)| {
                let needed = state.room(*bytes, held);
                let own = self.own.get(&Slot::Sequence(StateId(*index), plane as u8));
                needed > state.room(*bytes, 0) && own.is_none_or(|buffer| buffer.size() < needed)
            })
        };
        let mut rest: Vec<usize> = model.states.iter().enumerate().filter(grows).map(|(index, _)| index).collect();
        // Steps in flight still read the old buffers, which are freed afterwards.
        while !rest.is_empty() {
            let mut made = Buffers::new();
            let mut bytes = 0;
            while bytes < most
                && let Some(index) = rest.pop()
            {
                let before = model.gpu.created().bytes;
                model.state_buffers(index, held, &mut made)?;
                bytes += model.gpu.created().bytes - before;
            }
            model.gpu.check().await?;
            let copies: Vec<Work<'_>> = made
                .iter()
                .filter_map(|(slot, to)| {
                    let from = self.own.get(slot)?;
                    Some(Work::Copy { from: (from, 0), to: (to, 0), size: from.size().min(to.size()) })
                })
                .collect();
            model.gpu.submit(&copies)?;
            let before = self.bind(made)?;
            // Also catches allocations made while rebuilding the steps.
            if let Err(error) = model.gpu.check().await {
                self.unbind(before);
                return Err(error);
            }
            if !rest.is_empty() {
                model.gpu.wait_idle().await?;
            }
        }
        self.holds(held);
        Ok(())
    }

    /// Grows the states without preserving their contents, for callers that overwrite all of them.
    pub(super) fn room_for_copy(&mut self, positions: usize) -> Result<()> {
        if positions <= self.held {
            return Ok(());
        }
        let model = self.model.clone();
        let held = model.places(positions, self.held);
        let mut made = Buffers::new();
        for index in 0..model.states.len() {
            model.state_buffers(index, held, &mut made)?;
        }
        self.bind(made)?;
        self.holds(held);
        Ok(())
    }

    fn holds(&mut self, positions: usize) {
        let bytes = self.model.state_bytes(positions);
        self.model.count(|all| all.kv = all.kv + bytes - self.state_bytes);
        (self.held, self.state_bytes) = (positions, bytes);
    }

    /// Rebuilds the steps that read or write states with new buffers; returns the previous ones. On failure nothing
    /// changes.
    fn bind(&mut self, made: Buffers) -> Result<Bound> {
        let slots = made.keys();
        let own: Buffers =
            slots.filter_map(|slot| self.own.get_key_value(slot)).map(|(s, b)| (*s, b.clone())).collect();
        self.own.extend(made);
        match self.again() {
            Ok((steps, verify)) => Ok(self.exchange(Bound { own, steps, verify })),
            Err(error) => {
                self.own.extend(own);
                Err(error)
            }
        }
    }

    fn unbind(&mut self, mut before: Bound) {
        self.own.extend(take(&mut before.own));
        self.exchange(before);
    }

    /// Rebuilds the sequence's steps, including the speculative one if present.
    fn again(&self) -> Result<(Steps, Option<Step>)> {
        let verify = self.speculation.as_ref().map(|_| self.verify_step()).transpose()?;
        Ok((self.model.steps(&self.own)?, verify))
    }

    /// Swaps in other steps; returns the previous ones.
    fn exchange(&mut self, mut other: Bound) -> Bound {
        self.short = None;
        swap(&mut self.steps, &mut other.steps);
        if let (Some(own), Some(verify)) = (&mut self.speculation, &mut other.verify) {
            swap(&mut own.verify, verify);
        }
        other
    }
}

/// Buffers and steps of a sequence before it grew.
struct Bound {
    own: Buffers,
    steps: Steps,
    verify: Option<Step>,
}
