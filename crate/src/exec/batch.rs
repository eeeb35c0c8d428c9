//! Batched decoding: a step takes the next token of each of several sequences. The row table tells
//! the kernels each row's sequence slot and position, and the GPU advances it. See
//! docs/architecture.md.

mod pools;

use super::decode::pace_batches;
use super::logits_pipeline::{MAX_STOP_TOKENS, ROW_RING_LEN};
use super::model::Model;
use super::program_key::{OverlayId, ProgramKey};
use super::session::Session;
use super::step::{
    Buffers, STATE_BYTES, Step, check_logits, rope_buffers, state_words, unpad_rows,
};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Readback};
use crate::ir::{Dim, StepSizes};
use crate::plan::Slot;
use crate::util::clock::now_ms;
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result};
use pools::{BatchBytes, StatePools};
use std::collections::VecDeque;
use std::rc::Rc;

/// Maximum sequences of a batch.
pub const MAX_SEQUENCES: usize = 32;
/// Words of a row's sampled tokens: the ring, their count and whether the row has stopped.
const ROW_RING_WORDS: usize = ROW_RING_LEN as usize + 2;

/// A sequence of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// Parameters of a sequence's generation.
#[derive(Debug, Clone, Copy)]
pub struct SequenceParams<'a> {
    /// Tokens that end the generation.
    pub stops: &'a [u32],
    /// Maximum number of new tokens.
    pub budget: usize,
}

/// A sequence in the order of the step's rows.
struct Row {
    id: SequenceId,
    slot: usize,
    /// Tokens that the session held when it joined.
    held: usize,
    sampled: Vec<u32>,
    stops: Vec<u32>,
    budget: usize,
    rope_offset: i64,
    /// Whether its next token is sampled from the logits of a prefill.
    is_fresh: bool,
    stopped: bool,
}

impl Row {
    /// The position of the next step's token, as in the row table.
    fn position(&self) -> usize {
        self.held + self.sampled.len() - 1
    }

    /// Positions that the states may need, with `steps` more steps.
    fn positions_after(&self, steps: usize) -> usize {
        (self.position() + steps).min(self.held + self.budget - 1)
    }

    /// Words of the row table (shaders/common/state.wgsl).
    fn words(&self, runs: bool) -> [u32; 8] {
        [
            self.position() as u32,
            self.slot as u32,
            (self.position() as i64 + self.rope_offset) as u32,
            self.sampled.len() as u32,
            u32::from(!runs),
            (self.budget - self.sampled.len()) as u32,
            0,
            0,
        ]
    }
}

/// Decodes sequences of a model together. Sequences join with the states of a prefilled session and
/// leave with their tokens and states. All use the same overlay and shared buffers.
pub struct DecodeBatch {
    model: Rc<Model>,
    overlay: Option<OverlayId>,
    /// The buffers that its sessions share, such as cross-attention keys.
    given: Buffers,
    pools: StatePools,
    buffers: Buffers,
    /// Row dimensions other than the step's own.
    dims: SortedSet<Dim>,
    steps: SortedMap<ProgramKey, Step>,
    rows: Vec<Row>,
    /// Whether the row table on the device is outdated.
    is_dirty: bool,
    in_flight: VecDeque<(Readback, usize)>,
    /// Tokens that were read before they were asked for.
    read_early: Vec<(SequenceId, Vec<u32>)>,
    batch_size: usize,
    last_ms: f64,
    next_id: u64,
    bytes: BatchBytes,
    other_bytes: u64,
}

impl DecodeBatch {
    /// Prepares a batch of at most `sequences` sequences.
    ///
    /// # Errors
    /// `UnsupportedOption` for a model that cannot be batched; `Request` for more than
    /// [`MAX_SEQUENCES`]; `OutOfMemory` when the device has no room.
    pub async fn new(model: &Rc<Model>, sequences: usize) -> Result<Self> {
        Self::with_shared(model, None, Buffers::new(), sequences).await
    }

    /// Prepares a batch for sessions like this one: with its adapter and its shared buffers.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub async fn for_sessions_like(session: &Session, sequences: usize) -> Result<Self> {
        let given = session.shared_buffers().clone();
        Self::with_shared(session.model(), session.overlay(), given, sequences).await
    }

    async fn with_shared(
        model: &Rc<Model>,
        overlay: Option<OverlayId>,
        given: Buffers,
        sequences: usize,
    ) -> Result<Self> {
        if sequences == 0 || sequences > MAX_SEQUENCES {
            return Err(Error::Request {
                parameter: "sequences".into(),
                reason: format!("{sequences} is not between 1 and {MAX_SEQUENCES}. Change it."),
            });
        }
        if let Some(reason) = model.batch_refusal() {
            return Err(Error::UnsupportedOption {
                architecture: model.graph().name.clone(),
                option: format!("batched decoding with {reason}"),
                hint: "Run its sequences in turns.".into(),
            });
        }
        let key = ProgramKey::decode_batch(sequences).with_overlay(overlay);
        model.prepare(key).await?;
        let plan = &model.program(key)?.plan;
        let binds = plan.launches.iter().flat_map(|launch| &launch.binds);
        let dims = binds.filter_map(|(_, slot)| match slot {
            Slot::Cursor(dim) if *dim != Dim::TOKENS => Some(*dim),
            _ => None,
        });
        let dims: SortedSet<Dim> = dims.collect();
        let pools = StatePools::new(model, sequences);
        let rows = key.recorded_rows() as u64;
        let before = model.gpu.resource_counts().bytes;
        let mut buffers = given.clone();
        let sizes = [
            (Slot::Ids, rows * 4),
            (Slot::CURSOR, STATE_BYTES + rows * STATE_BYTES),
            (Slot::Tokens, rows * ROW_RING_WORDS as u64 * 4),
            (Slot::Stops, rows * MAX_STOP_TOKENS as u64 * 4),
            (Slot::ArgmaxPartials, rows * 128 * 8),
            (Slot::Output, plan.output),
            (Slot::Pages, pools.table_words() as u64 * 4),
        ];
        let cursors = dims.iter().map(|dim| (Slot::Cursor(*dim), STATE_BYTES));
        for (slot, size) in sizes.into_iter().chain(cursors) {
            buffers.insert(slot, model.gpu.buffer("batch", size, BufferUsage::Storage)?);
        }
        let mut batch = Self {
            model: model.clone(),
            overlay,
            given,
            pools,
            buffers,
            dims,
            steps: SortedMap::new(),
            rows: Vec::new(),
            is_dirty: true,
            in_flight: VecDeque::new(),
            read_early: Vec::new(),
            batch_size: 1,
            last_ms: now_ms(),
            next_id: 0,
            bytes: BatchBytes::new(model),
            other_bytes: 0,
        };
        batch.write_ropes()?;
        batch.other_bytes = model.gpu.resource_counts().bytes - before;
        batch.bytes.set(0, batch.other_bytes);
        model.gpu.check().await?;
        Ok(batch)
    }

    /// Writes the RoPE tables that depend on a sequence's length: each position is the last.
    fn write_ropes(&mut self) -> Result<()> {
        let model = &self.model;
        let capacity = model.capacity();
        rope_buffers(
            &model.gpu,
            model.graph(),
            capacity,
            &mut self.buffers,
            |rope| rope.depends_on_length(),
        )?;
        for (index, spec) in model.graph().ropes.iter().enumerate() {
            if let Some(buffer) = self.buffers.get(&Slot::Rope(index)) {
                let table = spec.table(0, capacity, 0);
                model.gpu.write(buffer, 0, bytemuck::cast_slice(&table));
            }
        }
        Ok(())
    }

    /// Sequences in the batch, including those that have stopped.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the batch has no sequence.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether a sequence's generation is over.
    pub fn has_stopped(&self, id: SequenceId) -> bool {
        self.rows.iter().all(|row| row.id != id || row.stopped)
    }

    /// Adds a sequence after the prompt that a session has run. The session must not run again
    /// until the sequence leaves.
    ///
    /// # Errors
    /// `Request` when all places are taken, or for more stop tokens than the GPU supports;
    /// `Internal` for a session that does not match the batch; `OutOfMemory` when the device has no
    /// room for its states.
    pub async fn join(
        &mut self,
        session: &Session,
        params: SequenceParams<'_>,
    ) -> Result<SequenceId> {
        self.check_session(session, params)?;
        self.drain().await?;
        let held = session.tokens().len();
        let slot = self.pools.take_slot()?;
        if let Err(error) = self.copy_in(session, slot).await {
            self.pools.release_slot(slot);
            return Err(error);
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let budget = params.budget.min(self.model.capacity() + 1 - held);
        self.rows.push(Row {
            id,
            slot,
            held,
            sampled: Vec::new(),
            stops: params.stops.to_vec(),
            budget,
            rope_offset: session.rope_offset(),
            is_fresh: budget > 0,
            stopped: budget == 0,
        });
        self.is_dirty = true;
        Ok(id)
    }

    fn check_session(&self, session: &Session, params: SequenceParams<'_>) -> Result<()> {
        let shared = session.shared_buffers();
        let is_same = |(slot, buffer): (&Slot, &Buffer)| {
            let given = self.given.get(slot);
            given.is_some_and(|given| given.is_same_buffer(buffer))
        };
        if !Rc::ptr_eq(session.model(), &self.model)
            || session.overlay() != self.overlay
            || session.has_own_positions()
            || shared.len() != self.given.len()
            || !shared.iter().all(is_same)
        {
            let reason = "batch: the session has another model, adapter or shared buffers";
            return Err(Error::Internal(reason.into()));
        }
        if session.tokens().is_empty() {
            return Err(Error::Internal("batch: the session has no tokens".into()));
        }
        if params.stops.len() > MAX_STOP_TOKENS {
            let reason = format!(
                "{} stop tokens exceed the limit of {MAX_STOP_TOKENS}. Remove some.",
                params.stops.len()
            );
            return Err(Error::Request {
                parameter: "stop".into(),
                reason,
            });
        }
        Ok(())
    }

    /// Copies a session's states to a slot, and its last logits to the next row.
    async fn copy_in(&mut self, session: &Session, slot: usize) -> Result<()> {
        let held = session.tokens().len();
        self.reserve(slot, held)?;
        self.model.gpu.check().await?;
        let own = |slot| session.shared_handle(slot);
        self.pools
            .copy(&self.model, &self.buffers, &own, (slot, false), (0, held))?;
        let size = self.row_bytes();
        let at = self.rows.len() as u64 * size;
        self.model.gpu.submit(&[Command::Copy {
            from: (session.buffer(Slot::Output)?, 0),
            to: (self.buffer(Slot::Output)?, at),
            size,
        }])
    }

    /// Bytes of a row of logits.
    fn row_bytes(&self) -> u64 {
        self.model.vocab().next_multiple_of(4) as u64 * 4
    }

    fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        let found = self.buffers.get(&slot);
        found.ok_or_else(|| Error::Internal(format!("batch: no buffer for {slot:?}")))
    }

    /// Makes room for a sequence's positions.
    fn reserve(&mut self, slot: usize, positions: usize) -> Result<()> {
        let Self {
            pools,
            model,
            buffers,
            ..
        } = self;
        if pools.reserve(model, buffers, (slot, positions))? {
            self.steps = SortedMap::new();
            self.bytes.set(self.pools.bytes(), self.other_bytes);
        }
        Ok(())
    }

    /// Returns the next tokens of the sequences that run, at least one token of each that was
    /// sampled for; empty when all have stopped.
    ///
    /// # Errors
    /// `NotFinite` when the logits contain NaN or infinity; `OutOfMemory` when the pools cannot
    /// grow.
    pub async fn next(&mut self) -> Result<Vec<(SequenceId, Vec<u32>)>> {
        if self.is_dirty {
            self.drain().await?;
        }
        if self.read_early.is_empty() {
            if self.is_dirty {
                self.write_rows(|row| !row.stopped)?;
                self.is_dirty = false;
            }
            while self.in_flight.len() < 2 && self.submit_next().await? {}
            self.read_next().await?;
        }
        Ok(std::mem::take(&mut self.read_early))
    }

    /// Waits for the steps in flight and samples the first tokens of fresh rows, whose logits would
    /// be overwritten.
    async fn drain(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.read_next().await?;
        }
        if self.rows.iter().all(|row| !row.is_fresh) {
            return Ok(());
        }
        self.write_rows(|row| row.is_fresh)?;
        self.rows.iter_mut().for_each(|row| row.is_fresh = false);
        self.is_dirty = true;
        let greedy = ProgramKey::greedy_rows(self.rows.len());
        self.prepare_step(greedy).await?;
        self.model.gpu.submit(&[self.step(greedy)?.recorded()])?;
        self.start_read(0)?;
        self.read_next().await
    }

    /// Writes the row table, the ids and the stop tokens; the selected rows run.
    fn write_rows(&self, runs: impl Fn(&Row) -> bool) -> Result<()> {
        let count = self.rows.len();
        let mut table: Vec<u32> = state_words(0, count, 0, 0).to_vec();
        let mut stops = Vec::with_capacity(count * MAX_STOP_TOKENS);
        let mut rings = Vec::with_capacity(count * ROW_RING_WORDS);
        for row in &self.rows {
            table.extend(row.words(runs(row)));
            stops.extend(&row.stops);
            stops.resize(stops.len().next_multiple_of(MAX_STOP_TOKENS), u32::MAX);
            if row.stops.is_empty() {
                stops.extend([u32::MAX; MAX_STOP_TOKENS]);
            }
            rings.extend([0; ROW_RING_LEN as usize]);
            rings.extend([row.sampled.len() as u32, u32::from(row.stopped)]);
        }
        let ids: Vec<u32> = self
            .rows
            .iter()
            .map(|row| row.sampled.last().copied().unwrap_or(0))
            .collect();
        let all = [
            (Slot::CURSOR, table),
            (Slot::Stops, stops),
            (Slot::Tokens, rings),
            (Slot::Ids, ids),
        ];
        let cursors = self.dims.iter().map(|dim| {
            let rows = dim.eval(StepSizes::rows(count));
            (Slot::Cursor(*dim), state_words(0, rows, 0, 0).to_vec())
        });
        for (slot, words) in all.into_iter().chain(cursors) {
            let buffer = self.buffer(slot)?;
            self.model
                .gpu
                .write(buffer, 0, bytemuck::cast_slice(&words));
        }
        Ok(())
    }

    /// Submits the next steps ahead; returns whether there were any.
    async fn submit_next(&mut self) -> Result<bool> {
        let ahead: usize = self.in_flight.iter().map(|(_, steps)| steps).sum();
        let running = || self.rows.iter().filter(|row| !row.stopped);
        let left = running().map(|row| row.budget - row.sampled.len()).max();
        let steps = self.batch_size.min(left.unwrap_or(0).saturating_sub(ahead));
        if steps == 0 {
            return Ok(false);
        }
        let ends: Vec<(usize, usize)> = running()
            .map(|row| (row.slot, row.positions_after(ahead + steps)))
            .collect();
        for (slot, end) in &ends {
            self.reserve(*slot, *end)?;
        }
        let forward = ProgramKey::decode_batch(self.rows.len()).with_overlay(self.overlay);
        let greedy = ProgramKey::greedy_rows(self.rows.len());
        self.prepare_step(forward).await?;
        self.prepare_step(greedy).await?;
        let end = ends.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let forward = self.step(forward)?.limit_keys(&self.model.gpu, end);
        let commands = [forward.recorded(), self.step(greedy)?.recorded()];
        self.model.gpu.submit(&commands.repeat(steps))?;
        self.start_read(steps)?;
        Ok(true)
    }

    async fn prepare_step(&mut self, key: ProgramKey) -> Result<()> {
        if !self.steps.contains_key(&key) {
            self.model.prepare(key).await?;
            let step = self.model.step(&self.buffers, key)?;
            self.model.gpu.check().await?;
            self.steps.insert(key, step);
        }
        Ok(())
    }

    fn step(&self, key: ProgramKey) -> Result<&Step> {
        let found = self.steps.get(&key);
        found.ok_or_else(|| Error::Internal(format!("batch: {key:?} was not prepared")))
    }

    fn start_read(&mut self, steps: usize) -> Result<()> {
        let bytes = (self.rows.len() * ROW_RING_WORDS * 4) as u64;
        let tokens = self.buffer(Slot::Tokens)?;
        let read = self.model.gpu.start_read(tokens, 0, bytes)?;
        self.in_flight.push_back((read, steps));
        Ok(())
    }

    /// Waits for the oldest steps in flight and takes their tokens.
    async fn read_next(&mut self) -> Result<()> {
        let Some((read, steps)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read.wait().await?);
        let now = now_ms();
        let took = now - std::mem::replace(&mut self.last_ms, now);
        if steps == self.batch_size {
            self.batch_size = pace_batches(self.batch_size, took);
        }
        for (row, words) in self.rows.iter_mut().zip(words.chunks_exact(ROW_RING_WORDS)) {
            let [ring @ .., count, stopped] = words else {
                continue;
            };
            let known = row.sampled.len();
            let fresh = (known..*count as usize).map(|step| ring[step % ring.len()]);
            row.sampled.extend(fresh);
            row.stopped = *stopped != 0;
            if row.sampled.len() > known {
                let tokens = row.sampled[known..].to_vec();
                match self.read_early.iter_mut().find(|(id, _)| *id == row.id) {
                    Some((_, all)) => all.extend(tokens),
                    None => self.read_early.push((row.id, tokens)),
                }
            }
        }
        let broken = |tokens: &[u32]| tokens.iter().any(|token| *token >= u32::MAX - 1);
        if self.read_early.iter().any(|(_, tokens)| broken(tokens)) {
            let rows = self.logits().await?;
            rows.iter().try_for_each(|row| check_logits(row))?;
        }
        Ok(())
    }

    /// Reads the last logits of all rows, in the order in which their sequences joined.
    ///
    /// # Errors
    /// Device errors.
    pub async fn logits(&self) -> Result<Vec<Vec<f32>>> {
        let bytes = self.row_bytes() * self.rows.len() as u64;
        let output = self.buffer(Slot::Output)?;
        let bytes = self.model.gpu.read(output, 0, bytes).await?;
        let all = unpad_rows(&bytes, self.model.vocab());
        Ok(all
            .chunks_exact(self.model.vocab())
            .map(<[f32]>::to_vec)
            .collect())
    }

    /// Ends a sequence and gives its tokens and states back to the session that it came from. As
    /// after a [`DecodeLoop`](super::DecodeLoop), the last token was usually sampled but not run.
    ///
    /// # Errors
    /// `Internal` for another session; `OutOfMemory` when the session cannot grow.
    pub async fn leave(&mut self, id: SequenceId, session: &mut Session) -> Result<()> {
        self.drain().await?;
        let index = self.index_of(id)?;
        let row = &self.rows[index];
        let (slot, held) = (row.slot, row.held);
        let run = &row.sampled[..row.sampled.len().saturating_sub(1)];
        let end = held + run.len();
        session.prepare_return(held, end).await?;
        let handle = |slot| session.shared_handle(slot);
        self.pools.copy(
            &self.model,
            &self.buffers,
            &handle,
            (slot, true),
            (held, end),
        )?;
        let size = self.row_bytes();
        self.model.gpu.submit(&[Command::Copy {
            from: (self.buffer(Slot::Output)?, index as u64 * size),
            to: (session.buffer(Slot::Output)?, 0),
            size,
        }])?;
        let written = session.written_until().max(end);
        session.add_generated(run, written);
        self.remove(index);
        Ok(())
    }

    /// Ends a sequence without giving its states back.
    ///
    /// # Errors
    /// `Internal` for an unknown sequence.
    pub async fn discard(&mut self, id: SequenceId) -> Result<()> {
        self.drain().await?;
        let index = self.index_of(id)?;
        self.remove(index);
        Ok(())
    }

    fn index_of(&self, id: SequenceId) -> Result<usize> {
        let found = self.rows.iter().position(|row| row.id == id);
        found.ok_or_else(|| Error::Internal(format!("batch: there is no sequence {}", id.0)))
    }

    fn remove(&mut self, index: usize) {
        let row = self.rows.remove(index);
        self.pools.release_slot(row.slot);
        self.is_dirty = true;
    }
}
