//! Memory for keys and values that comes in whole pages as a sequence grows: larger buffers, into which the device copies what the
//! smaller ones hold. Kernels know no pages, so that a step costs what it costs with all memory there from the beginning. Knows
//! buffers and positions; not who asks for them.

use super::model::Model;
use super::session::Session;
use super::step::Buffers;
use crate::gpu::{Backend, Usage, Work};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};
use crate::{Error, Result};

/// Bytes that are made at once, beside those they replace; or an eighth of all, where that is more.
const AT_ONCE: u64 = 64 << 20;

impl Model {
    /// Positions that have places in a sequence that needs so many, and had `held`: whole pages, half as many more as it had.
    pub(super) fn places(&self, positions: usize, held: usize) -> usize {
        match self.options.page {
            0 => self.capacity,
            page => positions.max(held + held / 2).next_multiple_of(page).min(self.capacity),
        }
    }

    /// Bytes of a sequence's states with places for so many positions.
    pub fn state_bytes(&self, positions: usize) -> u64 {
        self.states
            .iter()
            .map(|state| state.planes.iter().map(|plane| state.room(*plane, positions)).sum::<u64>())
            .sum()
    }

    /// Makes the buffers of a state.
    ///
    /// # Errors
    /// `OutOfMemory`, also where the device has no buffer as large as the state would become with the whole context: that is told
    /// when a model is loaded, not in the middle of a conversation.
    pub(super) fn state_buffers(&self, index: usize, positions: usize, into: &mut Buffers) -> Result<()> {
        let Some(state) = self.states.get(index) else { return Ok(()) };
        let limit = self.gpu.caps().max_weight_buffer();
        for (plane, bytes) in state.planes.iter().enumerate() {
            let needed = state.room(*bytes, self.capacity);
            if needed > limit {
                let hint = "Load a smaller or more strongly quantized model, or a smaller maxContext.".into();
                return Err(Error::OutOfMemory { what: state.spec.name().into(), needed, limit, hint });
            }
            let buffer = self.gpu.buffer(state.spec.name(), state.room(*bytes, positions), Usage::Storage)?;
            into.insert(Slot::Sequence(StateId(index), plane as u8), buffer);
        }
        Ok(())
    }
}

impl Session {
    /// Sees to places for the first `positions` positions. What the states hold stays, also what steps under way are about to
    /// write. Where the device refuses, or nobody waits for the end, the sequence is as before.
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
        let grows =
            |(_, state): &(usize, &StatePlan)| state.planes.iter().any(|p| state.room(*p, held) > state.room(*p, 0));
        let mut rest: Vec<usize> = model.states.iter().enumerate().filter(grows).map(|(index, _)| index).collect();
        // What is under way reads the old buffers, which go when it is done.
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
            self.own.extend(made);
            self.bind_again()?;
            if !rest.is_empty() {
                model.gpu.wait_idle().await?;
            }
        }
        self.holds(held);
        Ok(())
    }

    /// The same where all that the states hold is about to be written over.
    pub(super) fn room_for_copy(&mut self, positions: usize) -> Result<()> {
        if positions <= self.held {
            return Ok(());
        }
        let model = self.model.clone();
        let held = model.places(positions, self.held);
        for index in 0..model.states.len() {
            model.state_buffers(index, held, &mut self.own)?;
        }
        self.bind_again()?;
        self.holds(held);
        Ok(())
    }

    fn holds(&mut self, positions: usize) {
        let bytes = self.model.state_bytes(positions);
        self.model.count(|all| all.kv = all.kv + bytes - self.state_bytes);
        (self.held, self.state_bytes) = (positions, bytes);
    }

    /// Records the steps that read or write states anew.
    fn bind_again(&mut self) -> Result<()> {
        let model = self.model.clone();
        self.decode = self.step_of("decode", &model.decode, 1)?;
        self.near = model.near.as_ref().map(|near| self.step_of("near", near, 1)).transpose()?;
        self.prefill = self.step_of("prefill", &model.prefill, 1)?;
        self.short = None;
        self.bind_speculation()
    }
}
