//! Copies of a sequence's states on the device: checkpoints of states that cannot be trimmed,
//! snapshots of all states.

use super::model::Model;
use super::program_key::ProgramKey;
use super::step::Buffers;
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::ir::StateId;
use crate::plan::{Slot, StatePlan};
use crate::{Error, Result};
use std::rc::Rc;

/// Maximum number of checkpoints: for this turn and the previous one.
const MAX_CHECKPOINTS: usize = 2;
/// Maximum bytes of a checkpoint; without one, the sequence is recomputed from its beginning.
const MAX_CHECKPOINT_BYTES: u64 = 64 << 20;

/// A copy of states after a number of tokens, with the logits of the last one.
pub struct StateCheckpoint {
    len: usize,
    buffers: Buffers,
}

/// Whether rolling back requires a copy of this state.
fn needs_copy(state: &StatePlan) -> bool {
    state.ring || state.spec.is_recurrent()
}

/// Returns the buffers of the states selected by `wanted`, with the bytes used by `len` tokens.
pub fn used_buffers(
    model: &Model,
    len: usize,
    wanted: impl Fn(&StatePlan) -> bool,
) -> Result<Vec<(Slot, u64)>> {
    let states = model
        .states()
        .iter()
        .enumerate()
        .filter(|(_, state)| wanted(state));
    let planes = states.flat_map(|(index, state)| {
        let slot = move |plane: usize| Slot::State(StateId(index), plane as u8);
        state
            .planes
            .iter()
            .enumerate()
            .map(move |(plane, bytes)| (slot(plane), state.written_bytes(*bytes, len)))
    });
    let output = model.read_plan(ProgramKey::DECODE, |plan| plan.output)?;
    let output = (Slot::Output, output);
    let all = planes.chain([output]);
    Ok(all.filter(|(_, bytes)| *bytes > 0).collect())
}

/// Copies buffers of the same slots; sizes are rounded down to whole words, which all planes
/// consist of.
fn copy_buffers(gpu: &Gpu, from: &Buffers, to: &Buffers, slots: &[(Slot, u64)]) -> Result<()> {
    let missing = |slot: &Slot| Error::Internal(format!("no buffer for {slot:?} to copy"));
    let mut work = Vec::with_capacity(slots.len());
    for (slot, bytes) in slots {
        let from = from.get(slot).ok_or_else(|| missing(slot))?;
        let to = to.get(slot).ok_or_else(|| missing(slot))?;
        work.push(Command::Copy {
            from: (from, 0),
            to: (to, 0),
            size: *bytes / 4 * 4,
        });
    }
    gpu.submit(&work)
}

fn copy_targets(gpu: &Gpu, name: &str, slots: &[(Slot, u64)]) -> Result<Buffers> {
    slots
        .iter()
        .map(|(slot, bytes)| Ok((*slot, gpu.buffer(name, *bytes, BufferUsage::Storage)?)))
        .collect()
}

impl StateCheckpoint {
    /// Number of tokens in the states.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a checkpoint to `kept`; reuses the buffers of the oldest one if they are not shared.
    pub fn push_to(
        model: &Model,
        own: &Buffers,
        len: usize,
        kept: &mut Vec<Rc<Self>>,
    ) -> Result<()> {
        let slots = used_buffers(model, usize::MAX, needs_copy)?;
        let bytes: u64 = slots.iter().map(|(_, bytes)| bytes).sum();
        // The logits alone need no checkpoint.
        if slots.len() < 2 || bytes > MAX_CHECKPOINT_BYTES {
            return Ok(());
        }
        let spare = (kept.len() >= MAX_CHECKPOINTS).then(|| kept.remove(0));
        let buffers = match spare.and_then(|saved| Rc::try_unwrap(saved).ok()) {
            Some(saved) => saved.buffers,
            None => copy_targets(&model.gpu, "checkpoint", &slots)?,
        };
        copy_buffers(&model.gpu, own, &buffers, &slots)?;
        kept.push(Rc::new(Self { len, buffers }));
        Ok(())
    }

    /// Restores the states.
    pub fn load(&self, model: &Model, own: &Buffers) -> Result<()> {
        copy_buffers(
            &model.gpu,
            &self.buffers,
            own,
            &used_buffers(model, usize::MAX, needs_copy)?,
        )
    }
}

/// Copies the states of `len` tokens from one sequence to another.
pub fn copy_states(model: &Model, from: &Buffers, to: &Buffers, len: usize) -> Result<()> {
    copy_buffers(&model.gpu, from, to, &used_buffers(model, len, |_| true)?)
}

/// A copy of a whole sequence.
pub struct SessionSnapshot {
    model: Rc<Model>,
    pub(super) tokens: Vec<u32>,
    pub(super) reached: usize,
    buffers: Buffers,
}

impl SessionSnapshot {
    pub(super) fn of(
        model: &Rc<Model>,
        own: &Buffers,
        tokens: &[u32],
        reached: usize,
    ) -> Result<Self> {
        let slots = used_buffers(model, reached, |_| true)?;
        let buffers = copy_targets(&model.gpu, "snapshot", &slots)?;
        copy_buffers(&model.gpu, own, &buffers, &slots)?;
        Ok(Self {
            model: model.clone(),
            tokens: tokens.to_vec(),
            reached,
            buffers,
        })
    }

    /// Rejects a snapshot of another model.
    pub(super) fn check_model(&self, model: &Rc<Model>) -> Result<()> {
        if !Rc::ptr_eq(&self.model, model) {
            let reason = "it belongs to another model. Restore it in a session of the model it was taken from.".into();
            return Err(Error::Request {
                parameter: "snapshot".into(),
                reason,
            });
        }
        Ok(())
    }

    pub(super) fn load(&self, model: &Model, own: &Buffers) -> Result<()> {
        copy_states(model, &self.buffers, own, self.reached)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(Buffer::size).sum()
    }
}
