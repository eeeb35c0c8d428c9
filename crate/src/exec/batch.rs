//! Batched decoding: a step takes the next token of each of several sequences. The row table tells
//! the kernels each row's sequence slot and position, and the GPU advances it. See
//! docs/architecture.md.

mod membership;
mod pools;
mod row;

use super::decode::{pace_batches, steps_not_run};
use super::logits_pipeline::{LogitsPipeline, MAX_STOP_TOKENS, ROW_RING_LEN};
use super::model::Model;
use super::program_key::{OverlayId, ProgramKey};
use super::session::Session;
use super::step::{Buffers, PlanBuffers, STATE_BYTES, Step, StepTimes};
use super::step::{check_logits, rope_buffers, state_words, unpad_rows};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Readback};
use crate::ir::{Dim, StepSizes};
use crate::kernels::sample::SampledRow;
use crate::plan::Slot;
use crate::sample::{TokenLimits, no_allowed_token};
use crate::util::clock::now_ms;
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result};
use pools::{BatchBytes, StatePools};
use row::Row;
pub use row::{SequenceId, SequenceParams};
use std::collections::VecDeque;
use std::rc::Rc;

/// Maximum sequences of a batch.
pub const MAX_SEQUENCES: usize = 32;
/// Words of a row's sampled tokens: the ring, their count and whether the row has stopped.
const ROW_RING_WORDS: usize = ROW_RING_LEN as usize + 2;

/// Rounds of a call that may sample nothing, such as those of steps in flight for rows that have
/// stopped.
const MAX_ROUNDS_WITHOUT_TOKENS: usize = 4;

/// New tokens of sequences.
pub type SequenceTokens = Vec<(SequenceId, Vec<u32>)>;

/// Decodes sequences of a model together. Sequences join with the states of a prefilled session and
/// leave with their tokens and states. All use the same overlay and shared buffers.
///
/// After an error drop the batch: each session still has the tokens and states it joined with.
pub struct DecodeBatch {
    model: Rc<Model>,
    overlay: Option<OverlayId>,
    /// The buffers that its sessions share, such as cross-attention keys.
    given: Buffers,
    pools: StatePools,
    buffers: Buffers,
    /// Buffers of the sampling parameters of each slot's sequence.
    sampling: Vec<Buffers>,
    /// Row dimensions other than the step's own.
    dims: SortedSet<Dim>,
    steps: SortedMap<ProgramKey, Step>,
    /// Sampling steps of rows with parameters, by row and slot.
    row_steps: Vec<([usize; 2], LogitsPipeline, Step)>,
    /// A row keeps its index while its logits are needed; others may be empty meanwhile.
    rows: Vec<Option<Row>>,
    /// Whether the row table on the device is outdated.
    is_dirty: bool,
    in_flight: VecDeque<(Readback, usize)>,
    /// Tokens that were read before they were asked for.
    read_early: SequenceTokens,
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
            return Err(refused(model, reason));
        }
        let key = ProgramKey::decode_batch(sequences, model.capacity()).with_overlay(overlay);
        model.prepare(key).await?;
        let dims: SortedSet<Dim> = model.program(key)?.plan.cursor_dims().collect();
        let pools = StatePools::new(model, sequences);
        let before = model.gpu.resource_counts().bytes;
        let mut buffers = given.clone();
        buffers.extend(row_buffers(model, key, pools.table_words())?);
        for dim in &dims {
            let cursor = model
                .gpu
                .buffer("batch", STATE_BYTES, BufferUsage::Storage)?;
            buffers.insert(Slot::Cursor(*dim), cursor);
        }
        write_ropes(model, &mut buffers)?;
        let other_bytes = model.gpu.resource_counts().bytes - before;
        let mut bytes = BatchBytes::new(model);
        bytes.set(0, other_bytes);
        model.gpu.check().await?;
        Ok(Self {
            model: model.clone(),
            overlay,
            given,
            pools,
            buffers,
            sampling: vec![Buffers::new(); sequences],
            dims,
            steps: SortedMap::new(),
            row_steps: Vec::new(),
            rows: Vec::new(),
            is_dirty: true,
            in_flight: VecDeque::new(),
            read_early: Vec::new(),
            batch_size: 1,
            last_ms: now_ms(),
            next_id: 0,
            bytes,
            other_bytes,
        })
    }

    /// Ends the batch, and frees the model's programs for batches like it.
    pub fn free_programs(self) {
        let rows = (0..).map(|bits| 1 << bits);
        for rows in rows.take_while(|rows| *rows <= MAX_SEQUENCES) {
            for positions in [0, self.model.capacity()] {
                let step = ProgramKey::decode_batch(rows, positions).with_overlay(self.overlay);
                self.model.runner.remove(step);
            }
            self.model.runner.remove(ProgramKey::greedy_rows(rows));
        }
    }

    fn all_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flatten()
    }

    /// Maximum sequences.
    pub fn capacity(&self) -> usize {
        self.sampling.len()
    }

    /// Sequences in the batch, including those that have stopped.
    pub fn len(&self) -> usize {
        self.all_rows().count()
    }

    /// Whether the batch has no sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a sequence's generation is over.
    pub fn has_stopped(&self, id: SequenceId) -> bool {
        self.all_rows().all(|row| row.id != id || row.stopped)
    }

    fn new_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id)
    }

    /// The first index without a row.
    fn free_index(&self) -> usize {
        let free = self.rows.iter().position(Option::is_none);
        free.unwrap_or(self.rows.len())
    }

    fn set_row(&mut self, index: usize, row: Row) {
        if index == self.rows.len() {
            self.rows.push(None);
        }
        self.rows[index] = Some(row);
        self.is_dirty = true;
    }

    fn row(&self, index: usize) -> Result<&Row> {
        let found = self.rows.get(index).and_then(Option::as_ref);
        found.ok_or_else(|| Error::Internal(format!("batch: no sequence in row {index}")))
    }

    fn index_of(&self, id: SequenceId) -> Result<usize> {
        let is = |row: &Option<Row>| row.as_ref().is_some_and(|row| row.id == id);
        let found = self.rows.iter().position(is);
        found.ok_or_else(|| Error::Internal(format!("batch: there is no {id:?}")))
    }

    fn remove(&mut self, index: usize) {
        if let Some(row) = self.rows[index].take() {
            self.pools.release_slot(row.slot);
        }
        self.is_dirty = true;
    }

    /// Writes the tokens that may come next in a sequence with a mask, one bit each, before
    /// [`Self::next`].
    ///
    /// # Errors
    /// `Internal` for a sequence without a mask.
    pub fn write_mask(&self, id: SequenceId, words: &[u32]) -> Result<()> {
        let row = self.row(self.index_of(id)?)?;
        let buffer = buffer_of(&self.sampling[row.slot], Slot::TokenMask)?;
        self.model.gpu.write(buffer, 0, bytemuck::cast_slice(words));
        Ok(())
    }

    /// Bytes of a row of logits.
    fn row_bytes(&self) -> u64 {
        self.model.vocab().next_multiple_of(4) as u64 * 4
    }

    fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        buffer_of(&self.buffers, slot)
    }

    /// Makes room for a sequence's positions.
    fn reserve(&mut self, slot: usize, positions: usize) -> Result<()> {
        let Self {
            pools,
            model,
            buffers,
            ..
        } = self;
        let moved = pools.reserve(model, buffers, (slot, positions));
        // After an error some buffers may have been replaced.
        self.after_reserve(*moved.as_ref().unwrap_or(&true));
        moved.map(|_| ())
    }

    /// Forgets the steps that are bound to replaced buffers.
    fn after_reserve(&mut self, moved: bool) {
        if moved {
            self.steps = SortedMap::new();
            self.bytes.set(self.pools.bytes(), self.other_bytes);
        }
    }

    /// Returns the next tokens, at least one of each sequence that was sampled for; empty when all
    /// have stopped. If a sequence has a mask, write its next one before each call.
    ///
    /// # Errors
    /// `NotFinite` when the logits contain NaN or infinity, or no token is allowed; `OutOfMemory`
    /// when the pools cannot grow; `DeviceLost` when the GPU runs nothing.
    pub async fn next(&mut self) -> Result<SequenceTokens> {
        if self.is_dirty {
            self.drain().await?;
        }
        let mut rounds = 0;
        while self.read_early.is_empty() {
            if rounds == MAX_ROUNDS_WITHOUT_TOKENS {
                return Err(steps_not_run(&self.model.gpu).await);
            }
            rounds += 1;
            if self.all_rows().any(Row::is_pending) {
                self.sample_pending().await?;
                continue;
            }
            if self.is_dirty {
                self.remove_gaps();
                self.write_rows(|row| !row.stopped)?;
            }
            while self.in_flight.len() < 2 && self.submit_next().await? {}
            // A step that the host must wait for has left logits instead.
            if self.in_flight.is_empty() && !self.all_rows().any(Row::is_pending) {
                break;
            }
            self.read_next().await?;
        }
        Ok(std::mem::take(&mut self.read_early))
    }

    /// Samples from the logits of rows that have any, and queues the forward pass of their tokens
    /// if the host must write masks for the step after it.
    async fn sample_pending(&mut self) -> Result<()> {
        let mixed = self.all_rows().any(|row| !row.stopped && !row.has_logits);
        if mixed || self.is_dirty {
            self.write_rows(Row::is_pending)?;
        }
        self.is_dirty = mixed;
        let sampling = self.prepare_samplers().await?;
        self.submit_sampling(&sampling, 1, None)?;
        self.start_read(0)?;
        let steps_alone = self
            .all_rows()
            .any(|row| !row.stopped && row.has_host_input());
        self.rows
            .iter_mut()
            .flatten()
            .for_each(|row| row.has_logits = false);
        if steps_alone && !mixed {
            // The step after the token that is being sampled.
            let forward = self.prepare_forward(2).await?;
            let forward = self.step(forward)?.recorded();
            self.model.gpu.submit(&[forward])?;
        }
        self.read_next().await?;
        if steps_alone && !mixed {
            let running = self.rows.iter_mut().flatten().filter(|row| !row.stopped);
            running.for_each(Row::set_run);
        }
        Ok(())
    }

    /// Runs one token that the caller has chosen for each of these sequences; the others wait. The
    /// logits stay on the device: [`Self::logits`].
    ///
    /// # Errors
    /// `Internal` for an unknown sequence, or one without room; `OutOfMemory` when the pools cannot
    /// grow.
    pub async fn step_with(&mut self, tokens: &[(SequenceId, u32)]) -> Result<()> {
        self.drain().await?;
        let mut longest = 0;
        for (id, token) in tokens {
            let index = self.index_of(*id)?;
            let row = self.row(index)?;
            let [slot, end] = [row.slot, row.held + row.sampled.len() + 1];
            if end > self.model.capacity() {
                return Err(Error::Internal(format!("batch: no room in {id:?}")));
            }
            self.reserve(slot, end)?;
            longest = longest.max(end);
            if let Some(row) = &mut self.rows[index] {
                row.sampled.push(*token);
            }
        }
        let runs = |row: &Row| tokens.iter().any(|(id, _)| *id == row.id);
        self.write_rows(runs)?;
        self.is_dirty = true;
        let forward = self.prepare_program(longest).await?;
        let forward = self.step(forward)?;
        self.model.gpu.submit(&[forward.recorded()])?;
        for row in self.rows.iter_mut().flatten() {
            row.has_logits = false;
            if runs(row) {
                row.set_run();
            }
        }
        Ok(())
    }

    /// Times each dispatch of a step of all sequences, which stay at their tokens. Recurrent states
    /// advance, so the batch must not go on.
    ///
    /// # Errors
    /// `OutOfMemory` when the pools cannot grow; device errors.
    pub async fn profile(&mut self) -> Result<StepTimes> {
        self.drain().await?;
        self.write_rows(|row| !row.stopped)?;
        let forward = self.prepare_forward(1).await?;
        let rows = self.rows.len();
        self.step(forward)?.profile(&self.model.gpu, rows).await
    }

    /// Waits for the steps in flight, and takes the tokens of a sequence that [`Self::next`] has not
    /// returned.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn take_rest(&mut self, id: SequenceId) -> Result<Vec<u32>> {
        self.drain().await?;
        let unread = self.read_early.iter().position(|(of, _)| *of == id);
        Ok(unread.map_or_else(Vec::new, |at| self.read_early.swap_remove(at).1))
    }

    /// Waits for the steps in flight.
    async fn drain(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.read_next().await?;
        }
        Ok(())
    }

    /// Closes the gaps that sequences have left. Their logits are not needed any more.
    fn remove_gaps(&mut self) {
        if !self.all_rows().any(Row::is_pending) {
            self.rows.retain(Option::is_some);
        }
    }

    /// Writes the row table, the ids and the stop tokens; the selected rows run.
    fn write_rows(&mut self, runs: impl Fn(&Row) -> bool) -> Result<()> {
        let count = self.rows.len();
        let mut table: Vec<u32> = state_words(0, count, 0, 0).to_vec();
        let mut stops = vec![u32::MAX; count * MAX_STOP_TOKENS];
        let mut rings = vec![0; count * ROW_RING_WORDS];
        let mut ids = vec![0; count];
        for (index, row) in self.rows.iter().enumerate() {
            let Some(row) = row else {
                table.extend([0, 0, 0, 0, 1, 0, 0, 0]);
                continue;
            };
            table.extend(row.words(runs(row)));
            stops[index * MAX_STOP_TOKENS..][..row.stops.len()].copy_from_slice(&row.stops);
            let end = [row.step() as u32, u32::from(row.stopped)];
            rings[(index + 1) * ROW_RING_WORDS - 2..][..2].copy_from_slice(&end);
            ids[index] = row.sampled.last().copied().unwrap_or(0);
        }
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
        self.is_dirty = false;
        Ok(())
    }

    /// Submits the next steps ahead; returns whether there were any.
    async fn submit_next(&mut self) -> Result<bool> {
        let ahead: usize = self.in_flight.iter().map(|(_, steps)| steps).sum();
        let running = self.all_rows().filter(|row| !row.stopped);
        let left = running.map(|row| row.budget - row.sampled.len()).max();
        let left = left.unwrap_or(0).saturating_sub(ahead);
        let steps_alone = self
            .all_rows()
            .any(|row| !row.stopped && row.has_host_input());
        let steps = match steps_alone {
            true => left.min(usize::from(ahead == 0)),
            false => left.min(self.batch_size),
        };
        if steps == 0 {
            return Ok(false);
        }
        let forward = self.prepare_forward(ahead + steps).await?;
        if steps_alone {
            self.model.gpu.submit(&[self.step(forward)?.recorded()])?;
            let running = self.rows.iter_mut().flatten().filter(|row| !row.stopped);
            running.for_each(Row::set_run);
            return Ok(false);
        }
        let sampling = self.prepare_samplers().await?;
        self.submit_sampling(&sampling, steps, Some(forward))?;
        self.start_read(steps)?;
        Ok(true)
    }

    /// Makes room for `steps` more tokens, and prepares the forward pass for them.
    async fn prepare_forward(&mut self, steps: usize) -> Result<ProgramKey> {
        let running = self.all_rows().filter(|row| !row.stopped);
        let ends: Vec<(usize, usize)> = running
            .map(|row| (row.slot, row.positions_after(steps)))
            .collect();
        for (slot, end) in &ends {
            self.reserve(*slot, *end)?;
        }
        let longest = ends.iter().map(|(_, end)| *end).max().unwrap_or(0);
        self.prepare_program(longest).await
    }

    /// Prepares the forward pass of sequences of at most `longest` positions.
    async fn prepare_program(&mut self, longest: usize) -> Result<ProgramKey> {
        let forward = ProgramKey::decode_batch(self.rows.len(), longest);
        let forward = forward.with_overlay(self.overlay);
        self.prepare_step(forward).await?;
        self.step(forward)?.limit_keys(&self.model.gpu, longest);
        Ok(forward)
    }

    /// Prepares the sampling of all rows and returns the indices of the steps of those with parameters.
    async fn prepare_samplers(&mut self) -> Result<Vec<usize>> {
        self.prepare_step(ProgramKey::greedy_rows(self.rows.len()))
            .await?;
        let mut wanted = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            if let Some(row) = row.as_ref().filter(|row| row.is_sampled_apart()) {
                wanted.push(([index, row.slot], row.pipeline.clone()));
            }
        }
        if self.row_steps.len() > 2 * MAX_SEQUENCES {
            self.row_steps.clear();
        }
        let mut found = Vec::with_capacity(wanted.len());
        for (at, pipeline) in wanted {
            let known = |(index, p, _): &(_, _, _)| *index == at && *p == pipeline;
            if let Some(index) = self.row_steps.iter().position(known) {
                found.push(index);
                continue;
            }
            let model = &self.model;
            let plan =
                pipeline.plan_row(model.vocab() as u32, SampledRow::Batched(at[0] as u32))?;
            model.runner.compile(&model.gpu, &plan).await?;
            let mut buffers = self.buffers.clone();
            buffers.extend(self.sampling[at[1]].clone());
            let program = PlanBuffers::new(&model.gpu, "sample row", plan, false)?;
            let step = model
                .runner
                .bind(&model.gpu, &buffers, "sample row", &program, 1)?;
            found.push(self.row_steps.len());
            self.row_steps.push((at, pipeline, step));
        }
        Ok(found)
    }

    /// Submits the sampling of all rows, `steps` times, after a forward pass if given.
    fn submit_sampling(
        &self,
        apart: &[usize],
        steps: usize,
        forward: Option<ProgramKey>,
    ) -> Result<()> {
        let greedy = ProgramKey::greedy_rows(self.rows.len());
        let forward = forward.map(|key| self.step(key)).transpose()?;
        let all = forward.into_iter().chain([self.step(greedy)?]);
        let apart = apart.iter().map(|index| &self.row_steps[*index].2);
        let commands: Vec<Command<'_>> = all.chain(apart).map(Step::recorded).collect();
        self.model.gpu.submit(&commands.repeat(steps))
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
        let bytes = read.wait_urgently_if(self.in_flight.is_empty()).await?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        let now = now_ms();
        let took = now - std::mem::replace(&mut self.last_ms, now);
        if steps == self.batch_size {
            self.batch_size = pace_batches(self.batch_size, took);
        }
        let mut is_broken = false;
        for (row, words) in self.rows.iter_mut().zip(words.chunks_exact(ROW_RING_WORDS)) {
            let Some(row) = row else { continue };
            let tokens = row.take_tokens(words);
            is_broken |= tokens.iter().any(|token| *token >= u32::MAX - 1);
            match self.read_early.iter_mut().find(|(id, _)| *id == row.id) {
                Some((_, all)) => all.extend(tokens),
                None if tokens.is_empty() => {}
                None => self.read_early.push((row.id, tokens)),
            }
        }
        if is_broken {
            return Err(self.sampling_error().await);
        }
        Ok(())
    }

    /// Returns the error of a step that sampled no token for a row.
    async fn sampling_error(&self) -> Error {
        let bytes = self.row_bytes() * self.rows.len() as u64;
        let read = match self.buffer(Slot::Output) {
            Ok(output) => self.model.gpu.read(output, 0, bytes).await,
            Err(error) => return error,
        };
        let rows = read.map(|bytes| unpad_rows(&bytes, self.model.vocab()));
        let checked = rows.and_then(|rows| {
            let mut rows = rows.chunks_exact(self.model.vocab());
            rows.try_for_each(check_logits)
        });
        checked
            .err()
            .unwrap_or_else(|| no_allowed_token(TokenLimits::ON_DEVICE))
    }

    /// Reads the last logits of these sequences at once.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity; `Internal` for an unknown sequence, or one
    /// that was not part of the last step.
    pub async fn logits(&self, ids: &[SequenceId]) -> Result<Vec<Vec<f32>>> {
        let indices = ids.iter().map(|id| self.index_of(*id));
        let indices: Vec<usize> = indices.collect::<Result<_>>()?;
        for index in &indices {
            if !self.row(*index)?.has_logits {
                return Err(Error::Internal(format!("batch: row {index} has no logits")));
            }
        }
        let size = self.row_bytes();
        let end = indices.iter().map(|index| index + 1).max().unwrap_or(0) as u64;
        let output = self.buffer(Slot::Output)?;
        let bytes = self.model.gpu.read(output, 0, end * size).await?;
        let row = |index: &usize| {
            let row = &bytes[index * size as usize..(index + 1) * size as usize];
            let row = unpad_rows(row, self.model.vocab());
            check_logits(&row).map(|()| row)
        };
        indices.iter().map(row).collect()
    }
}

/// Creates the buffers whose size depends on the number of rows of a batched step.
fn row_buffers(model: &Model, key: ProgramKey, table_words: usize) -> Result<Buffers> {
    let rows = key.recorded_rows() as u64;
    let sizes = [
        (Slot::Ids, rows * 4),
        (Slot::CURSOR, STATE_BYTES + rows * STATE_BYTES),
        (Slot::Tokens, rows * ROW_RING_WORDS as u64 * 4),
        (Slot::Stops, rows * MAX_STOP_TOKENS as u64 * 4),
        (Slot::ArgmaxPartials, rows * 128 * 8),
        (Slot::Output, model.program(key)?.plan.output),
        (Slot::Pages, table_words as u64 * 4),
    ];
    let buffer = |(slot, size)| Ok((slot, model.gpu.buffer("batch", size, BufferUsage::Storage)?));
    sizes.into_iter().map(buffer).collect()
}

/// Writes the RoPE tables that depend on a sequence's length: each position is the last.
fn write_ropes(model: &Model, buffers: &mut Buffers) -> Result<()> {
    let capacity = model.capacity();
    rope_buffers(&model.gpu, model.graph(), capacity, buffers, |rope| {
        rope.depends_on_length()
    })?;
    for (index, spec) in model.graph().ropes.iter().enumerate() {
        if let Some(buffer) = buffers.get(&Slot::Rope(index)) {
            let table = spec.table(0, capacity, 0);
            model.gpu.write(buffer, 0, bytemuck::cast_slice(&table));
        }
    }
    Ok(())
}

fn buffer_of(buffers: &Buffers, slot: Slot) -> Result<&Buffer> {
    let found = buffers.get(&slot);
    found.ok_or_else(|| Error::Internal(format!("batch: no buffer for {slot:?}")))
}

fn refused(model: &Model, reason: &str) -> Error {
    Error::UnsupportedOption {
        architecture: model.graph().name.clone(),
        option: format!("batched decoding with {reason}"),
        hint: "Run its sequences in turns.".into(),
    }
}
