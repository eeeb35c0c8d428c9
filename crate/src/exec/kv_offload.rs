//! KV caches in main memory, for a sequence whose caches exceed the memory that they may take on the
//! device. A step then runs in parts: before the launches of a layer its cache is written to buffers
//! that all such layers share, and afterwards its new positions are copied to a buffer of their own.
//! Kernels and results are the same as with the whole cache on the device.

use super::step::{Buffers, Step, grids_in};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu, HostBytes, Readback};
use crate::ir::StateId;
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::{KvOffloadPlan, Slot, StatePlan};
use crate::util::map::SortedMap;
use crate::{Error, Result};

/// Bytes that are read from the device at a time.
const PART_BYTES: u64 = 4 << 20;

/// Plans which KV caches are in main memory, for steps of at most `chunk` rows.
///
/// # Errors
/// `OutOfMemory` when the states take more than `limit` bytes of the device in any case.
pub(super) fn plan_kv_offload(
    states: &[StatePlan],
    chunk: usize,
    limit: u64,
) -> Result<KvOffloadPlan> {
    let recent = chunk.max(DRAFT_ROWS as usize);
    KvOffloadPlan::new(states, recent, limit).map_err(|needed| Error::OutOfMemory {
        what: "the KV cache".into(),
        needed,
        limit,
        hint: "Load the model with a larger 'maxKvMemory', which sets this limit, or a smaller 'maxContext'.".into(),
    })
}

/// Consecutive bytes of a plane in main memory.
struct HostPage {
    bytes: HostBytes,
    /// Those at its beginning that are in use; the rest was trimmed.
    used: u64,
}

/// A plane of a cache in main memory.
struct OffloadedPlane {
    position_bytes: u64,
    pages: Vec<HostPage>,
    /// The positions after those in main memory.
    recent: Buffer,
}

impl OffloadedPlane {
    fn push(&mut self, bytes: HostBytes) {
        let used = bytes.size();
        self.pages.push(HostPage { bytes, used });
    }

    /// Drops what is in main memory after the first `bytes` bytes.
    fn truncate(&mut self, bytes: u64) {
        let mut left = bytes;
        for page in &mut self.pages {
            page.used = page.used.min(left);
            left -= page.used;
        }
        self.pages.retain(|page| page.used > 0);
    }

    /// Uploads the pages to the start of a buffer.
    async fn write(&self, gpu: &Gpu, to: &Buffer) -> Result<()> {
        let mut at = 0;
        for page in &self.pages {
            gpu.upload_room().await?;
            gpu.write_host(to, at, &page.bytes, page.used);
            at += page.used;
        }
        Ok(())
    }
}

/// The KV caches of a sequence in main memory, and the buffers that they share on the device.
pub(super) struct KvOffload {
    /// The planes of each cache.
    caches: SortedMap<StateId, Vec<OffloadedPlane>>,
    /// By plane.
    shared: Vec<Buffer>,
    /// Positions of the buffers of recent ones.
    recent: usize,
    /// Positions in main memory; recent ones follow.
    moved: usize,
    /// Resolves when the last part of a step is done. The next is submitted before, but not the one
    /// after it: the bytes under way would be without bound.
    under_way: Option<Readback>,
}

impl KvOffload {
    /// Creates the buffers of an empty sequence.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub fn new(gpu: &Gpu, states: &[StatePlan], plan: &KvOffloadPlan) -> Result<Self> {
        let plane = |state: &StatePlan, bytes: u64| {
            let recent = state.written_bytes(bytes, plan.recent);
            Ok(OffloadedPlane {
                position_bytes: state.written_bytes(bytes, 1),
                pages: Vec::new(),
                recent: gpu.buffer("recent keys and values", recent, BufferUsage::Storage)?,
            })
        };
        let cache = |id: &StateId| {
            let state = &states[id.0];
            let planes = state.planes.iter().map(|bytes| plane(state, *bytes));
            Ok((*id, planes.collect::<Result<Vec<_>>>()?))
        };
        let shared = plan.shared.iter();
        Ok(Self {
            caches: plan.offloaded.iter().map(cache).collect::<Result<_>>()?,
            shared: shared
                .map(|bytes| gpu.buffer("shared keys and values", *bytes, BufferUsage::Storage))
                .collect::<Result<_>>()?,
            recent: plan.recent,
            moved: 0,
            under_way: None,
        })
    }

    /// Bytes in main memory.
    pub fn host_bytes(&self) -> u64 {
        let pages = self
            .caches
            .values()
            .flatten()
            .flat_map(|plane| &plane.pages);
        pages.map(|page| page.bytes.size()).sum()
    }

    /// The buffers that the steps of the sequence use for these caches.
    pub fn buffers(&self) -> Buffers {
        let caches = self.caches.iter();
        caches
            .flat_map(|(id, planes)| {
                let shared = self.shared.iter().take(planes.len()).enumerate();
                shared.map(|(plane, buffer)| (Slot::State(*id, plane as u8), buffer.clone()))
            })
            .collect()
    }

    /// Whether a slot is a plane of a cache in main memory.
    pub fn has(&self, slot: Slot) -> bool {
        self.plane(slot).is_some()
    }

    fn plane(&self, slot: Slot) -> Option<&OffloadedPlane> {
        let Slot::State(id, plane) = slot else {
            return None;
        };
        self.caches.get(&id)?.get(usize::from(plane))
    }

    fn plane_mut(&mut self, slot: Slot) -> Option<&mut OffloadedPlane> {
        let Slot::State(id, plane) = slot else {
            return None;
        };
        self.caches.get_mut(&id)?.get_mut(usize::from(plane))
    }

    /// Moves the first `positions` positions of whole caches to main memory.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn move_in(&mut self, gpu: &Gpu, whole: &Buffers, positions: usize) -> Result<()> {
        for (slot, from) in whole {
            let Some(to) = self.plane_mut(*slot) else {
                continue;
            };
            let bytes = to.position_bytes * positions as u64;
            for at in (0..bytes).step_by(PART_BYTES as usize) {
                let part = gpu.start_read(from, at, PART_BYTES.min(bytes - at))?;
                to.push(part.wait_in_host().await?);
            }
        }
        self.moved = positions;
        Ok(())
    }

    /// Drops what is in main memory after the first `positions` positions.
    pub fn truncate(&mut self, positions: usize) {
        self.moved = self.moved.min(positions);
        for plane in self.caches.values_mut().flatten() {
            plane.truncate(plane.position_bytes * self.moved as u64);
        }
    }

    /// Appends bytes of a plane, of a sequence that is read from elsewhere; [`Self::set_moved`]
    /// completes it.
    pub fn append(&mut self, slot: Slot, bytes: &[u8]) {
        if let Some(plane) = self.plane_mut(slot) {
            plane.push(HostBytes::new(bytes));
        }
    }

    /// Sets the number of positions that were appended to each plane.
    pub fn set_moved(&mut self, positions: usize) {
        self.moved = positions;
    }

    /// Copies bytes of a plane, as they would be in a buffer of the whole cache.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn read(&self, gpu: &Gpu, slot: Slot, offset: u64, size: u64) -> Result<Vec<u8>> {
        let plane = self
            .plane(slot)
            .ok_or_else(|| Error::Internal(format!("{slot:?} is not in main memory")))?;
        let mut bytes = Vec::with_capacity(size as usize);
        let (mut at, end) = (0, offset + size);
        for page in &plane.pages {
            let from = offset.max(at).min(at + page.used);
            let to = end.min(at + page.used).max(from);
            bytes.extend(page.bytes.copy(from - at..to - at));
            at += page.used;
        }
        let from = offset.max(at) - at;
        let to = (end.max(at) - at).min(plane.recent.size());
        if to > from {
            bytes.extend(gpu.read(&plane.recent, from, to - from).await?);
        }
        // Positions that were rolled back, which no step reads.
        bytes.resize(size as usize, 0);
        Ok(bytes)
    }

    /// Runs a step of `rows` rows at the positions from `pos` on.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn run_step(
        &mut self,
        gpu: &Gpu,
        step: &Step,
        pos: usize,
        rows: usize,
    ) -> Result<()> {
        self.make_room(gpu, pos, rows).await?;
        let grids = step.grids(rows);
        let mut turns: Vec<(usize, StateId)> = step.state_uses.clone();
        turns.retain(|(_, id)| self.caches.contains_key(id));
        turns.dedup_by_key(|(_, id)| *id);
        if turns.is_empty() {
            return gpu.submit(&[step.with_grids(&grids)]);
        }
        for (index, (first, id)) in turns.iter().enumerate() {
            let first = if index == 0 { 0 } else { *first };
            let end = turns.get(index + 1).map_or(grids.len(), |next| next.0);
            let part = grids_in(&grids, first..end);
            let planes = &self.caches[id];
            // A layer that reads the cache of an earlier one also reads the step's own rows.
            let is_repeated = turns[..index].iter().any(|(_, earlier)| earlier == id);
            let known = pos + if is_repeated { rows } else { 0 };
            let pairs = || planes.iter().zip(&self.shared);
            for (plane, shared) in pairs() {
                plane.write(gpu, shared).await?;
            }
            let copy = |plane: &OffloadedPlane, from: usize, positions: usize| {
                let [from, base, size] =
                    [from, self.moved, positions].map(|count| count as u64 * plane.position_bytes);
                (from - base, from, size)
            };
            let mut work = Vec::new();
            for (plane, shared) in pairs().filter(|_| known > self.moved) {
                let (recent, whole, size) = copy(plane, self.moved, known - self.moved);
                work.push(Command::Copy {
                    from: (&plane.recent, recent),
                    to: (shared, whole),
                    size,
                });
            }
            work.push(step.with_grids(&part));
            for (plane, shared) in pairs() {
                let (recent, whole, size) = copy(plane, pos, rows);
                work.push(Command::Copy {
                    from: (shared, whole),
                    to: (&plane.recent, recent),
                    size,
                });
            }
            gpu.submit(&work)?;
            let fence = gpu.start_read(&self.shared[0], 0, 4)?;
            if let Some(before) = self.under_way.replace(fence) {
                before.wait_in_host().await?;
            }
        }
        Ok(())
    }

    /// Makes `pos` the length of the sequence, with room for `rows` more recent positions.
    async fn make_room(&mut self, gpu: &Gpu, pos: usize, rows: usize) -> Result<()> {
        if rows > self.recent {
            return Err(Error::Internal(format!(
                "KV caches in main memory: a step of {rows} rows, at most {}",
                self.recent
            )));
        }
        self.truncate(pos);
        if pos + rows <= self.moved + self.recent {
            return Ok(());
        }
        let full = (pos - self.moved) as u64;
        let planes = self.caches.values().flatten();
        let reads: Vec<Readback> = planes
            .map(|plane| gpu.start_read(&plane.recent, 0, full * plane.position_bytes))
            .collect::<Result<_>>()?;
        let mut pages = Vec::with_capacity(reads.len());
        for read in reads {
            pages.push(read.wait_in_host().await?);
        }
        for (plane, page) in self.caches.values_mut().flatten().zip(pages) {
            plane.push(page);
        }
        self.moved = pos;
        Ok(())
    }
}
