//! Memory for keys and values that comes in whole pages as a sequence grows: larger buffers, into which the device copies what the
//! smaller ones hold. Kernels know no pages, so that a step costs what it costs with all memory there from the beginning. Knows
//! buffers and positions; not who asks for them.

use super::model::Model;
use super::session::Session;
use super::step::{Buffers, Step, Steps};
use crate::Result;
use crate::gpu::{Backend, Usage, Work};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};
use std::mem::{swap, take};

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
        for (plane, bytes) in state.planes.iter().enumerate() {
            self.gpu.fits(state.spec.name(), state.room(*bytes, self.capacity))?;
            let buffer = self.gpu.buffer(state.spec.name(), state.room(*bytes, positions), Usage::Storage)?;
            into.insert(Slot::Sequence(StateId(index), plane as u8), buffer);
        }
        Ok(())
    }
}

impl Session {
    /// Sees to places for the first `positions` positions. What the states hold stays, also what steps under way are about to
    /// write. Where the device refuses, or nobody waits for the end, the sequence is as before; some of its states may have got
    /// their places.
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
            let before = self.bind(made)?;
            // What the steps needed for themselves.
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

    /// The same where all that the states hold is about to be written over.
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

    /// Records the steps that read or write states anew, with other buffers; gives what there was. Where the device refuses,
    /// that stays.
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

    /// Its steps anew, the one with drafts among them where there is one.
    fn again(&self) -> Result<(Steps, Option<Step>)> {
        let verify = self.speculation.as_ref().map(|_| self.verify_step()).transpose()?;
        Ok((self.model.steps(&self.own)?, verify))
    }

    /// Takes other steps; gives those that there were.
    fn exchange(&mut self, mut other: Bound) -> Bound {
        self.short = None;
        swap(&mut self.steps, &mut other.steps);
        if let (Some(own), Some(verify)) = (&mut self.speculation, &mut other.verify) {
            swap(&mut own.verify, verify);
        }
        other
    }
}

/// What a sequence had before it grew.
struct Bound {
    own: Buffers,
    steps: Steps,
    verify: Option<Step>,
}
