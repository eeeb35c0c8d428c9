//! Copies of what a sequence keeps: checkpoints of the states that cannot go back by themselves, snapshots of all. Copies are
//! made on the device. Knows buffers and positions, not what is in them.

use super::model::Model;
use super::step::Buffers;
use crate::gpu::{Backend, Buffer, Gpu, Usage, Work};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};
use crate::{Error, Result};
use std::rc::Rc;

/// Checkpoints of a sequence at the most: this turn's and the one's before.
const MOST: usize = 2;
/// Bytes of a checkpoint at the most; without one the sequence runs again from its beginning.
const BUDGET: u64 = 64 << 20;

/// What some states held after so many tokens, with the logits of the last.
pub struct Saved {
    len: usize,
    buffers: Buffers,
}

/// Whether going back in a sequence needs a copy of this state.
fn needs_copy(state: &StatePlan) -> bool {
    state.ring || state.spec.is_recurrent()
}

/// The buffers of the states that are `wanted`, with the bytes that `len` tokens have filled.
fn filled(model: &Model, len: usize, wanted: impl Fn(&StatePlan) -> bool) -> Vec<(Slot, u64)> {
    let states = model.states.iter().enumerate().filter(|(_, state)| wanted(state));
    let planes = states.flat_map(|(index, state)| {
        let slot = move |plane: usize| Slot::Sequence(StateId(index), plane as u8);
        state.planes.iter().enumerate().map(move |(plane, bytes)| (slot(plane), state.filled(*bytes, len)))
    });
    let output = (Slot::Output, model.decode.plan.output);
    planes.chain([output]).filter(|(_, bytes)| *bytes > 0).collect()
}

/// Copies buffers of the same names; bytes are rounded down to whole words, which all planes consist of.
fn copy(gpu: &Gpu, from: &Buffers, to: &Buffers, slots: &[(Slot, u64)]) -> Result<()> {
    let missing = |slot: &Slot| Error::Internal(format!("no buffer for {slot:?} to copy"));
    let mut work = Vec::with_capacity(slots.len());
    for (slot, bytes) in slots {
        let from = from.get(slot).ok_or_else(|| missing(slot))?;
        let to = to.get(slot).ok_or_else(|| missing(slot))?;
        work.push(Work::Copy { from: (from, 0), to: (to, 0), size: *bytes / 4 * 4 });
    }
    gpu.submit(&work)
}

fn buffers(gpu: &Gpu, name: &str, slots: &[(Slot, u64)]) -> Result<Buffers> {
    slots.iter().map(|(slot, bytes)| Ok((*slot, gpu.buffer(name, *bytes, Usage::Storage)?))).collect()
}

impl Saved {
    /// Tokens that the states held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Keeps a place among those that are kept already; the oldest one's buffers serve again where nobody else has them.
    pub fn keep(model: &Model, own: &Buffers, len: usize, kept: &mut Vec<Rc<Self>>) -> Result<()> {
        let slots = filled(model, usize::MAX, needs_copy);
        let bytes: u64 = slots.iter().map(|(_, bytes)| bytes).sum();
        // The logits alone are no reason for one.
        if slots.len() < 2 || bytes > BUDGET {
            return Ok(());
        }
        let spare = (kept.len() >= MOST).then(|| kept.remove(0));
        let buffers = match spare.and_then(|saved| Rc::try_unwrap(saved).ok()) {
            Some(saved) => saved.buffers,
            None => buffers(&model.gpu, "checkpoint", &slots)?,
        };
        copy(&model.gpu, own, &buffers, &slots)?;
        kept.push(Rc::new(Self { len, buffers }));
        Ok(())
    }

    /// Copies back what was kept.
    pub fn load(&self, model: &Model, own: &Buffers) -> Result<()> {
        copy(&model.gpu, &self.buffers, own, &filled(model, usize::MAX, needs_copy))
    }
}

/// Copies what one sequence holds after `len` tokens to another.
pub fn copy_all(model: &Model, from: &Buffers, to: &Buffers, len: usize) -> Result<()> {
    copy(&model.gpu, from, to, &filled(model, len, |_| true))
}

/// A whole sequence by itself.
pub struct Snapshot {
    model: Rc<Model>,
    pub(super) tokens: Vec<u32>,
    pub(super) reached: usize,
    buffers: Buffers,
}

impl Snapshot {
    pub(super) fn of(model: &Rc<Model>, own: &Buffers, tokens: &[u32], reached: usize) -> Result<Self> {
        let slots = filled(model, reached, |_| true);
        let buffers = buffers(&model.gpu, "snapshot", &slots)?;
        copy(&model.gpu, own, &buffers, &slots)?;
        Ok(Self { model: model.clone(), tokens: tokens.to_vec(), reached, buffers })
    }

    /// Refuses one of another model.
    pub(super) fn check(&self, model: &Rc<Model>) -> Result<()> {
        if !Rc::ptr_eq(&self.model, model) {
            let reason = "it was taken from a session of another model".into();
            return Err(Error::Request { parameter: "snapshot".into(), reason });
        }
        Ok(())
    }

    pub(super) fn load(&self, model: &Model, own: &Buffers) -> Result<()> {
        copy_all(model, &self.buffers, own, self.reached)
    }

    /// Bytes that it takes on the device.
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(Buffer::size).sum()
    }
}
