//! The states of a batch's sequences: KV caches in pages that a table assigns to sequences; rings
//! and recurrent states in a slot for each sequence. Pools grow by copying on the device.

use crate::exec::model::Model;
use crate::exec::step::Buffers;
use crate::gpu::{Backend, Buffer, BufferUsage, Command};
use crate::ir::{StateId, StateSpec};
use crate::kernels::attention::PAGE_POSITIONS;
use crate::plan::{Slot, StatePlan};
use crate::{Error, Result};
use std::rc::Rc;

/// Pages that a new pool has room for.
const FIRST_PAGES: usize = 8;

/// A plane of a state in its pool.
struct PoolPlane {
    slot: Slot,
    name: &'static str,
    /// Bytes of a page, or of a sequence's slot.
    unit: u64,
    /// Whether it is a KV cache in pages.
    paged: bool,
}

/// The states of a batch's sequences.
pub struct StatePools {
    planes: Vec<PoolPlane>,
    /// Capacity in pages.
    pages: usize,
    /// Capacity in slots of states without pages.
    slots: usize,
    free_pages: Vec<u32>,
    free_slots: Vec<usize>,
    /// The pages of each slot, by position.
    owned: Vec<Vec<u32>>,
    /// The number of slots that have each page.
    owners: Vec<u32>,
    /// Copies within a pool go through it: WebGPU has none within a buffer.
    scratch: Option<Buffer>,
    pages_per_slot: usize,
}

impl StatePools {
    /// Plans pools for at most `sequences` sequences, without buffers.
    pub fn new(model: &Model, sequences: usize) -> Self {
        let plane = |index: usize, state: &StatePlan, plane: usize, bytes: u64| {
            let paged = matches!(state.spec, StateSpec::Kv { .. }) && !state.ring;
            let position = bytes / state.positions.max(1) as u64;
            PoolPlane {
                slot: Slot::State(StateId(index), plane as u8),
                name: state.spec.name(),
                unit: if paged {
                    position * PAGE_POSITIONS as u64
                } else {
                    bytes
                },
                paged,
            }
        };
        let states = model.states().iter().enumerate();
        let planes = states.flat_map(|(index, state)| {
            let planes = state.planes.iter().enumerate();
            planes.map(move |(number, bytes)| plane(index, state, number, *bytes))
        });
        Self {
            planes: planes.collect(),
            pages: 0,
            slots: 0,
            free_pages: Vec::new(),
            free_slots: (0..sequences).rev().collect(),
            owned: vec![Vec::new(); sequences],
            owners: Vec::new(),
            scratch: None,
            pages_per_slot: model.capacity().div_ceil(PAGE_POSITIONS),
        }
    }

    /// Words of the page table.
    pub fn table_words(&self) -> usize {
        self.owned.len() * self.pages_per_slot
    }

    /// Bytes of all pools.
    pub fn bytes(&self) -> u64 {
        let planes = self.planes.iter();
        let scratch = self.scratch.as_ref().map_or(0, Buffer::size);
        let pools = planes.map(|plane| plane.unit * self.units(plane) as u64);
        scratch + pools.sum::<u64>()
    }

    fn units(&self, plane: &PoolPlane) -> usize {
        if plane.paged { self.pages } else { self.slots }
    }

    /// Takes the slot of a new sequence.
    ///
    /// # Errors
    /// `Request` when all slots are taken.
    pub fn take_slot(&mut self) -> Result<usize> {
        self.free_slots.pop().ok_or_else(|| Error::Request {
            parameter: "sequences".into(),
            reason: format!(
                "the batch has {} sequences. Wait until one leaves.",
                self.owned.len()
            ),
        })
    }

    /// Returns a sequence's slot, and its pages unless another sequence has them too.
    pub fn release_slot(&mut self, slot: usize) {
        for page in std::mem::take(&mut self.owned[slot]) {
            let owners = &mut self.owners[page as usize];
            *owners -= 1;
            if *owners == 0 {
                self.free_pages.push(page);
            }
        }
        self.free_slots.push(slot);
    }

    /// Makes `to` share the full pages of the first `positions` of `from`. What is shared is never
    /// written again: [`Self::copy_rest`] copies the page that both go on writing.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub fn share(
        &mut self,
        model: &Model,
        buffers: &mut Buffers,
        [from, to]: [usize; 2],
        positions: usize,
    ) -> Result<bool> {
        self.share_pages([from, to], positions / PAGE_POSITIONS);
        self.write_table(model, buffers, to, 0)?;
        self.reserve(model, buffers, (to, positions))
    }

    /// Makes `to`, which has no pages, share the first pages of `from`.
    pub fn share_pages(&mut self, [from, to]: [usize; 2], count: usize) {
        let pages = self.owned[from][..count].to_vec();
        for page in &pages {
            self.owners[*page as usize] += 1;
        }
        self.owned[to] = pages;
    }

    /// Adds slots up to this number.
    pub fn add_slots(&mut self, sequences: usize) {
        let added = self.owned.len()..sequences;
        self.free_slots.splice(0..0, added.rev());
        self.owned.resize(sequences, Vec::new());
    }

    /// Copies what [`Self::share`] did not share, for pairs of slots with their positions: the last
    /// page, and states without pages; and rows of another buffer.
    pub fn copy_rest(
        &mut self,
        model: &Model,
        buffers: &Buffers,
        forks: &[([usize; 2], usize)],
        (rows, row_bytes): (&[[usize; 2]], u64),
    ) -> Result<()> {
        // (buffer, source, target, bytes)
        let mut copies: Vec<(Slot, u64, u64, u64)> = Vec::new();
        for ([from, to], positions) in forks {
            let full = positions / PAGE_POSITIONS;
            let rest = (positions % PAGE_POSITIONS) as u64;
            for plane in &self.planes {
                let [from, to, bytes] = match plane.paged {
                    true if rest == 0 => continue,
                    true => [
                        u64::from(self.owned[*from][full]) * plane.unit,
                        u64::from(self.owned[*to][full]) * plane.unit,
                        rest * plane.unit / PAGE_POSITIONS as u64,
                    ],
                    false => [
                        *from as u64 * plane.unit,
                        *to as u64 * plane.unit,
                        plane.unit,
                    ],
                };
                copies.push((plane.slot, from, to, bytes));
            }
        }
        let row = |[from, to]: &[usize; 2]| {
            let [from, to] = [*from as u64 * row_bytes, *to as u64 * row_bytes];
            (Slot::Output, from, to, row_bytes)
        };
        copies.extend(rows.iter().map(row));
        let bytes: u64 = copies.iter().map(|(.., bytes)| bytes).sum();
        if bytes == 0 {
            return Ok(());
        }
        let scratch = match self.scratch.take().filter(|known| known.size() >= bytes) {
            Some(known) => known,
            None => model.gpu.buffer("batch", bytes, BufferUsage::Storage)?,
        };
        let mut at = 0;
        let mut out = Vec::with_capacity(copies.len());
        let mut back = Vec::with_capacity(copies.len());
        for (slot, from, to, size) in copies {
            let pool = buffer_of(buffers, slot)?;
            let [from, to, between] = [(pool, from), (pool, to), (&scratch, at)];
            out.push(Command::Copy {
                from,
                to: between,
                size,
            });
            back.push(Command::Copy {
                from: between,
                to,
                size,
            });
            at += size;
        }
        out.extend(back);
        model.gpu.submit(&out)?;
        self.scratch = Some(scratch);
        Ok(())
    }

    /// Writes a slot's pages from the index `first` on to the page table.
    pub fn write_table(
        &self,
        model: &Model,
        buffers: &Buffers,
        slot: usize,
        first: usize,
    ) -> Result<()> {
        let at = (slot * self.pages_per_slot + first) as u64 * 4;
        let words = bytemuck::cast_slice(&self.owned[slot][first..]);
        model.gpu.write(buffer_of(buffers, Slot::Pages)?, at, words);
        Ok(())
    }

    /// Makes room for a sequence of `positions` positions. Returns whether buffers were replaced, so
    /// that steps must be bound again.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room.
    pub fn reserve(
        &mut self,
        model: &Model,
        buffers: &mut Buffers,
        (slot, positions): (usize, usize),
    ) -> Result<bool> {
        let missing = positions
            .div_ceil(PAGE_POSITIONS)
            .saturating_sub(self.owned[slot].len());
        let mut pages = self.pages;
        if missing > self.free_pages.len() {
            let needed = pages + missing - self.free_pages.len();
            pages = needed.max(pages + pages / 2).max(FIRST_PAGES);
            // Rather fewer than the device's limit allows than none.
            let limit = model.gpu.caps().max_weight_buffer();
            let planes = self.planes.iter().filter(|plane| plane.paged);
            let fit = planes.map(|plane| (limit / plane.unit.max(1)) as usize);
            pages = pages.min(fit.min().unwrap_or(pages)).max(needed);
        }
        let slots = match self.slots {
            slots if slot < slots => slots,
            slots => (slot + 1).max(2 * slots).min(self.owned.len()),
        };
        let grows = pages > self.pages || slots > self.slots;
        if grows {
            self.grow(model, buffers, (pages, slots))?;
        }
        if missing == 0 {
            return Ok(grows);
        }
        // The lowest pages first, so that copies of whole sequences are few.
        self.free_pages.sort_unstable_by(|a, b| b.cmp(a));
        let first = self.owned[slot].len();
        let rest = self.free_pages.len() - missing;
        self.owned[slot].extend(self.free_pages.drain(rest..).rev());
        for page in &self.owned[slot][first..] {
            self.owners[*page as usize] = 1;
        }
        self.write_table(model, buffers, slot, first)?;
        Ok(grows)
    }

    /// Replaces the buffers by larger ones with the same contents.
    fn grow(
        &mut self,
        model: &Model,
        buffers: &mut Buffers,
        (pages, slots): (usize, usize),
    ) -> Result<()> {
        for plane in &self.planes {
            let [old, new] = [self.units(plane), if plane.paged { pages } else { slots }];
            if new == old {
                continue;
            }
            let bytes = plane.unit * new as u64;
            model.gpu.check_size(plane.name, bytes)?;
            let buffer = model.gpu.buffer(plane.name, bytes, BufferUsage::Storage)?;
            if let Some(before) = buffers.get(&plane.slot) {
                model.gpu.submit(&[Command::Copy {
                    from: (before, 0),
                    to: (&buffer, 0),
                    size: plane.unit * old as u64,
                }])?;
            }
            buffers.insert(plane.slot, buffer);
        }
        self.free_pages.extend(self.pages as u32..pages as u32);
        self.owners.resize(pages, 0);
        (self.pages, self.slots) = (pages, slots);
        Ok(())
    }

    /// Copies positions from `first` to `end` of a sequence's KV caches, and its other states as a
    /// whole, from a session's buffers into the pools, or with `out` back.
    pub fn copy(
        &self,
        model: &Model,
        buffers: &Buffers,
        own: &dyn Fn(Slot) -> Result<Buffer>,
        (slot, out): (usize, bool),
        (first, end): (usize, usize),
    ) -> Result<()> {
        for plane in &self.planes {
            let session = own(plane.slot)?;
            let pool = buffer_of(buffers, plane.slot)?;
            let spans = match plane.paged {
                true => self.page_spans(slot, (first, end), plane.unit),
                false => vec![(0, slot as u64 * plane.unit, plane.unit)],
            };
            let command = |(at, pooled, size): &(u64, u64, u64)| {
                let [from, to] = match out {
                    false => [(&session, *at), (pool, *pooled)],
                    true => [(pool, *pooled), (&session, *at)],
                };
                let size = *size;
                Command::Copy { from, to, size }
            };
            model
                .gpu
                .submit(&spans.iter().map(command).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Returns (offset in the sequence, offset in the pool, bytes) of positions, with consecutive
    /// pages in one.
    fn page_spans(
        &self,
        slot: usize,
        (first, end): (usize, usize),
        unit: u64,
    ) -> Vec<(u64, u64, u64)> {
        let position = unit / PAGE_POSITIONS as u64;
        let mut spans: Vec<(u64, u64, u64)> = Vec::new();
        let mut at = first;
        while at < end {
            let next = (at / PAGE_POSITIONS + 1) * PAGE_POSITIONS;
            let page = u64::from(self.owned[slot][at / PAGE_POSITIONS]);
            let pooled = page * unit + (at % PAGE_POSITIONS) as u64 * position;
            let size = (next.min(end) - at) as u64 * position;
            match spans.last_mut() {
                Some((_, before, all)) if *before + *all == pooled => *all += size,
                _ => spans.push((at as u64 * position, pooled, size)),
            }
            at = next;
        }
        spans
    }
}

fn buffer_of(buffers: &Buffers, slot: Slot) -> Result<&Buffer> {
    let found = buffers.get(&slot);
    found.ok_or_else(|| Error::Internal(format!("batch: no buffer for {slot:?}")))
}

/// Bytes that a batch holds on a model's device; they are freed with it.
pub struct BatchBytes {
    model: Rc<Model>,
    kv: u64,
    activations: u64,
}

impl BatchBytes {
    /// Counts nothing yet.
    pub fn new(model: &Rc<Model>) -> Self {
        Self {
            model: model.clone(),
            kv: 0,
            activations: 0,
        }
    }

    /// Sets the bytes of states, and of all other buffers.
    pub fn set(&mut self, kv: u64, activations: u64) {
        self.model.update_memory_use(|bytes| {
            bytes.kv = bytes.kv + kv - self.kv;
            bytes.activations = bytes.activations + activations - self.activations;
        });
        (self.kv, self.activations) = (kv, activations);
    }
}

impl Drop for BatchBytes {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}
