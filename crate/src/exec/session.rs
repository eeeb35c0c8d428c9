//! A sequence on a model: its states, position and bound steps. Sessions of one model share weights
//! and kernels and may be interleaved; each submission is self-contained.

mod all_rows;
mod batch;
mod draft;
mod growth;
mod measure;
mod offload;
mod rollback;
mod sampling;
mod saved;
mod soft_tokens;
mod speculation;
mod submit;
mod trace;

pub use draft::DraftSession;
pub use measure::{
    HostOverhead, KernelShare, MEASURE_OPTIONS, MeasureOptions, Measurement, Profile,
};
pub use saved::{ReadPart, WritePart};
pub use speculation::PromptLookup;
pub use trace::TracedValue;

use super::checkpoint::StateCheckpoint;
use super::files::ModelFiles;
use super::kv_offload::KvOffload;
use super::logits_pipeline::{LogitsPipeline, MAX_STOP_TOKENS, TOKEN_RING_BYTES};
use super::model::Model;
use super::options::RunOptions;
use super::program_key::{OverlayId, ProgramKey};
use super::soft_tokens::SoftTokenCache;
use super::step::{
    Buffers, STATE_BYTES, Step, StepTimes, check_logits, rope_buffers, rows_bytes, state_words,
};
use crate::arch::LoadConfig;
use crate::arch::vision::ImageMask;
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::hub::Source;
use crate::ir::{Dim, InputId, StepSizes};
use crate::kernels::kv_splits::SHORT_CONTEXT;
use crate::kernels::sample::DRAFT_ROWS;
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::Slot;
use crate::util::map::{SortedMap, SortedSet};
use crate::vision::MropePositions;
use crate::{Error, Result};
use futures_util::lock::Mutex;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The hint of a sequence that exceeds the KV cache.
pub(super) const LONGER_CONTEXT: &str =
    "Pass fewer tokens, or load the model with a larger maxContext.";

/// A sequence on a model. Only this folder reads and writes its fields.
pub struct Session {
    model: Rc<Model>,
    /// The sequence's own buffers.
    own: Buffers,
    /// The subset of them that is shared with other owners.
    shared_buffers: Buffers,
    /// The overlay whose weights its steps look up first.
    overlay: Option<OverlayId>,
    /// The model's programs bound to these buffers, without the overlay in their keys.
    steps: SortedMap<ProgramKey, Step>,
    sampling_steps: Vec<(LogitsPipeline, Step)>,
    /// Row dimensions of its steps other than the step's own.
    dims: SortedSet<Dim>,
    /// The tokens in the states.
    tokens: Vec<u32>,
    /// The position up to which states may have been written.
    written_until: usize,
    /// Checkpoints of states that cannot be trimmed, oldest first.
    checkpoints: Vec<Rc<StateCheckpoint>>,
    /// The soft tokens that prompts may reference.
    soft_token_cache: Rc<RefCell<SoftTokenCache>>,
    /// M-RoPE positions up to the last image token; empty for plain text.
    mrope: MropePositions,
    rope_dirty: usize,
    /// Capacity of the states in positions.
    kv_capacity: usize,
    state_bytes: u64,
    /// KV caches in main memory.
    offload: Option<Mutex<KvOffload>>,
    /// Bytes of them.
    host_bytes: Cell<u64>,
    /// Bytes of this session's buffers for drafts.
    draft_bytes: u64,
    /// Its prompts run before those of lower priority.
    priority: i64,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.model.update_memory_use(|bytes| {
            bytes.kv -= self.state_bytes;
            bytes.kv_in_main_memory -= self.host_bytes.get();
            bytes.activations -= self.draft_bytes;
        });
    }
}

impl Session {
    /// Loads a model and starts a sequence on it: see [`Model::load`].
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        config: LoadConfig,
        options: RunOptions,
    ) -> Result<Self> {
        Self::new(&Model::load(gpu, source, config, options).await?)
    }

    /// Loads a model from opened files and starts a sequence on it.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load_files(
        gpu: Gpu,
        source: &Source,
        files: ModelFiles,
        options: RunOptions,
    ) -> Result<Self> {
        Self::new(&Model::load_files(gpu, source, files, options).await?)
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its states.
    pub fn new(model: &Rc<Model>) -> Result<Self> {
        Self::with_shared_buffers(model, Buffers::new())
    }

    /// Starts an empty sequence with shared buffers: `given` ones, such as an [`Ear`](super::Ear)'s
    /// memory, replace its own.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its states.
    pub fn with_shared_buffers(model: &Rc<Model>, given: Buffers) -> Result<Self> {
        Self::with_capacity(model, None, given, 0)
    }

    /// Starts an empty sequence that uses an adapter.
    ///
    /// # Errors
    /// `Internal` for an adapter of another model; `OutOfMemory` when the device has no room for
    /// its states.
    pub fn with_adapter(model: &Rc<Model>, adapter: OverlayId) -> Result<Self> {
        Self::with_capacity(model, Some(adapter), Buffers::new(), 0)
    }

    /// Starts one with an initial capacity of `positions`.
    fn with_capacity(
        model: &Rc<Model>,
        overlay: Option<OverlayId>,
        given: Buffers,
        positions: usize,
    ) -> Result<Self> {
        let mut dims = SortedSet::default();
        for key in [ProgramKey::DECODE, ProgramKey::PREFILL] {
            model.read_plan(key, |plan| dims.extend(plan.cursor_dims()))?;
        }
        let held = model.capacity_for(positions.max(1), 0);
        let own = own_buffers(model, &dims, &given, held)?;
        let mut steps = SortedMap::new();
        let first = model.first_programs();
        for key in first.iter().chain(model.decode_programs) {
            let bound = key.with_overlay(overlay);
            if !steps.contains_key(key) && model.poll(bound) {
                steps.insert(*key, model.step(&own, bound)?);
            }
        }
        let state_bytes = model.state_bytes(held);
        let draft_bytes = hidden_bytes(model);
        model.update_memory_use(|bytes| {
            bytes.kv += state_bytes;
            bytes.activations += draft_bytes;
        });
        let mut session = Self {
            model: model.clone(),
            own,
            shared_buffers: given,
            overlay,
            steps,
            sampling_steps: Vec::new(),
            dims,
            tokens: Vec::new(),
            written_until: 0,
            checkpoints: Vec::new(),
            soft_token_cache: Rc::default(),
            mrope: MropePositions::default(),
            rope_dirty: 0,
            kv_capacity: held,
            state_bytes,
            offload: None,
            host_bytes: Cell::new(0),
            draft_bytes,
            priority: 0,
        };
        session.write_ropes(0, model.capacity(), 0)?;
        session.rope_dirty = 0;
        Ok(session)
    }

    /// The bound step of a program.
    ///
    /// # Errors
    /// `Internal` before the program was prepared.
    fn bound_step(&self, key: ProgramKey) -> Result<&Step> {
        self.steps
            .get(&key)
            .ok_or_else(|| Error::Internal(format!("{key:?} was not prepared")))
    }

    /// Binds a program of the model, with the session's overlay, to its buffers.
    fn bind_step(&self, key: ProgramKey) -> Result<Step> {
        self.model.step(&self.own, key.with_overlay(self.overlay))
    }

    /// The decode step for sequences that end at `end` at the latest.
    ///
    /// # Errors
    /// `Internal` before [`Self::reserve`] made it.
    pub(super) fn decode_step(&self, end: usize) -> Result<&Step> {
        let step = self.bound_step(self.decode_key(end))?;
        Ok(step.limit_keys(&self.model.gpu, end))
    }

    fn decode_key(&self, end: usize) -> ProgramKey {
        match end <= SHORT_CONTEXT as usize {
            true => self.model.decode_programs[0],
            false => ProgramKey::DECODE,
        }
    }

    /// Whether [`Self::reserve`] would wait for the kernels of [`Self::decode_step`].
    pub(super) fn awaits_kernels(&self, end: usize) -> bool {
        let key = self.decode_key(end);
        !self.steps.contains_key(&key) && !self.model.poll(key.with_overlay(self.overlay))
    }

    /// Binds the decode step, once its kernels are compiled.
    pub(super) async fn prepare_decode(&mut self, end: usize) -> Result<()> {
        let key = self.decode_key(end);
        if !self.steps.contains_key(&key) {
            self.model.prepare(key.with_overlay(self.overlay)).await?;
            self.steps.insert(key, self.bind_step(key)?);
        }
        Ok(())
    }

    /// The prefill step whose tiles fit this many rows.
    fn prefill_step(&self, rows: usize) -> Result<&Step> {
        let short = MatrixTiling::short_rows(self.model.gpu.caps());
        let limits = [
            (ProgramKey::PREFILL_SHORT, short),
            (ProgramKey::PREFILL_MEDIUM, MatrixTiling::TALL_TILE_ROWS),
        ];
        let fits =
            |(key, limit): &(ProgramKey, usize)| self.steps.get(key).filter(|_| rows <= *limit);
        match limits.iter().find_map(fits) {
            Some(step) => Ok(step),
            None => self.bound_step(ProgramKey::PREFILL),
        }
    }

    /// Adopts the step for short prompts once it is ready.
    fn poll_short(&mut self) {
        let key = ProgramKey::PREFILL_SHORT;
        if self.overlay.is_none()
            && !self.steps.contains_key(&key)
            && self.model.poll(key)
            && let Ok(step) = self.bind_step(key)
        {
            self.steps.insert(key, step);
        }
    }

    /// The model, to create further sessions.
    pub fn model(&self) -> &Rc<Model> {
        &self.model
    }

    /// The device.
    pub fn gpu(&self) -> &Rc<Gpu> {
        &self.model.gpu
    }

    /// Sets the priority of its prompts; 0 at first.
    pub fn set_priority(&mut self, priority: i64) {
        self.priority = priority;
    }

    /// Maximum positions of the sequence.
    pub fn capacity(&self) -> usize {
        self.model.capacity()
    }

    /// Size of the vocabulary, as counted by the logits.
    pub fn vocab(&self) -> usize {
        self.model.vocab()
    }

    /// The tokens in its states.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        let shared = &self.model.runner.shared;
        let found = self.own.get(&slot).or_else(|| shared.get(&slot));
        found.ok_or_else(|| Error::Internal(format!("no buffer for {slot:?}")))
    }

    /// Writes the position state of the next step.
    pub(super) fn set_state(&self, pos: usize, rows: usize, budget: usize) -> Result<()> {
        self.set_sampling_state(pos, rows, 0, budget)
    }

    /// Writes the position state in a generation after `step` sampled tokens.
    pub(super) fn set_sampling_state(
        &self,
        pos: usize,
        rows: usize,
        step: usize,
        budget: usize,
    ) -> Result<()> {
        self.model.gpu.write(
            self.buffer(Slot::CURSOR)?,
            0,
            bytemuck::cast_slice(&state_words(pos, rows, step, budget)),
        );
        for dim in &self.dims {
            let words = state_words(pos, dim.eval(StepSizes::rows(rows)), step, budget);
            self.model.gpu.write(
                self.buffer(Slot::Cursor(*dim))?,
                0,
                bytemuck::cast_slice(&words),
            );
        }
        Ok(())
    }

    /// Writes the RoPE tables of plain text; length-independent ones are shared by the model.
    fn write_ropes(&self, first: usize, count: usize, total: usize) -> Result<()> {
        for (index, spec) in self.model.graph().ropes.iter().enumerate() {
            let slot = Slot::Rope(index);
            let Some(buffer) = self.own.get(&slot) else {
                continue;
            };
            if let Some(plain) = self.model.runner.shared.get(&slot) {
                self.model.gpu.submit(&[Command::Copy {
                    from: (plain, 0),
                    to: (buffer, 0),
                    size: plain.size(),
                }])?;
                continue;
            }
            let table = spec.table(first, count, total);
            self.model.gpu.write(
                buffer,
                (first * spec.dim * 4) as u64,
                bytemuck::cast_slice(&table),
            );
        }
        Ok(())
    }

    /// Updates length-dependent RoPE tables for positions from `start` to `end`.
    fn update_dynamic_ropes(&mut self, start: usize, end: usize) -> Result<()> {
        if self.model.reuses_prefix() {
            return Ok(());
        }
        if self.rope_dirty > end {
            self.write_ropes(end, self.rope_dirty - end, 0)?;
        }
        self.write_ropes(start, end - start, end)?;
        self.rope_dirty = end;
        Ok(())
    }

    /// Starts a sequence whose token positions are set with [`Self::set_positions`].
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its states.
    pub fn with_positions(model: &Rc<Model>) -> Result<Self> {
        let mut given = Buffers::new();
        let positions = model.capacity();
        rope_buffers(&model.gpu, model.graph(), positions, &mut given, |_| true)?;
        Self::with_shared_buffers(model, given)
    }

    /// Sets the positions of all tokens, in a sequence created by [`Self::with_positions`].
    pub fn set_positions(&self, positions: &[f32]) {
        for (index, spec) in self.model.graph().ropes.iter().enumerate() {
            if let Some(buffer) = self.own.get(&Slot::Rope(index)) {
                let table = spec.table_at(&positions[..positions.len().min(self.model.capacity())]);
                self.model
                    .gpu
                    .write(buffer, 0, bytemuck::cast_slice(&table));
            }
        }
    }

    /// Makes `ids` the sequence: reuses the common prefix and runs the rest in chunks. Calls
    /// `go_on` before each chunk; an error from it stops the run. The logits of the last row stay
    /// on the device. Returns the number of reused tokens.
    ///
    /// # Errors
    /// `SequenceTooLong` when `ids` do not fit; `Request` when `ids` is empty or an id is outside the
    /// vocabulary; errors of `go_on`.
    pub async fn prefill_reusing_prefix(
        &mut self,
        ids: &[u32],
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<usize> {
        self.check_ids(ids, 0)?;
        let common = self
            .tokens
            .iter()
            .zip(ids)
            .take_while(|(a, b)| a == b)
            .count();
        // Length-dependent RoPE: reuse all tokens or none.
        let common = if self.model.reuses_prefix() {
            common
        } else {
            0
        };
        if let Some(saved) = self
            .checkpoints
            .iter()
            .find(|saved| saved.len() == ids.len() && common == ids.len())
            .cloned()
        {
            // Its logits were saved.
            self.checkpoints.retain(|other| other.len() <= saved.len());
            saved.load(&self.model, &self.own)?;
            self.tokens.truncate(saved.len());
            self.written_until = saved.len();
            self.update_mrope(ids)?;
            return Ok(common);
        }
        // Run the last token again for its logits.
        let held = self.trim(common.min(ids.len() - 1))?;
        self.run(&ids[held..], held, go_on).await?;
        Ok(held)
    }

    /// Runs what the session lacks of `ids`, whose logits of the last row stay on the device. Unlike
    /// [`Self::prefill_reusing_prefix`] it runs nothing again where a generation ended with these
    /// tokens. Returns the number of tokens that were reused.
    ///
    /// # Errors
    /// As [`Self::prefill_reusing_prefix`].
    pub async fn prefill_rest(
        &mut self,
        ids: &[u32],
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<usize> {
        let held = self.tokens.len();
        if held == 0 || !self.model.reuses_prefix() || !ids.starts_with(&self.tokens) {
            return self.prefill_reusing_prefix(ids, go_on).await;
        }
        self.check_ids(ids, 0)?;
        if held < ids.len() {
            self.run(&ids[held..], held, go_on).await?;
        }
        Ok(held)
    }

    /// Runs `ids` at positions from `start` on, in chunks; the logits of the last row stay on the
    /// device.
    ///
    /// # Errors
    /// `SequenceTooLong` when they do not fit; `Request` when `ids` is empty, an id is outside the
    /// vocabulary, or the sequence has fewer than `start` tokens.
    pub async fn prefill(&mut self, ids: &[u32], start: usize) -> Result<()> {
        self.check_ids(ids, start)?;
        if start > self.tokens.len() {
            let reason = format!(
                "{start} is past the end of the sequence, which has {} tokens. Run the missing tokens first.",
                self.tokens.len()
            );
            return Err(Error::Request {
                parameter: "start".into(),
                reason,
            });
        }
        let mut all = self.tokens[..start].to_vec();
        all.extend_from_slice(ids);
        let held = self.trim(start)?;
        self.run(&all[held..], held, &|| Ok(())).await
    }

    /// Runs tokens after those in the states.
    async fn run(
        &mut self,
        ids: &[u32],
        start: usize,
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.reserve_states(start + ids.len()).await?;
        self.update_dynamic_ropes(start, start + ids.len())?;
        self.poll_short();
        let whole = [&self.tokens[..start], ids].concat();
        let model = self.model.clone();
        let mut turns = model.turns.prompt(self.priority);
        let chunks = self.prepare_prompt(&whole, start, self.model.chunk())?;
        if chunks.iter().any(|chunk| chunk.len() == 1) {
            self.prepare_decode(whole.len()).await?;
        }
        for (index, chunk) in chunks.into_iter().enumerate() {
            turns.next_chunk().await;
            go_on()?;
            let pos = chunk.start;
            let part = &whole[chunk.clone()];
            let staged = self.stage_chunk(&whole, chunk)?;
            self.set_state(pos, part.len(), 0)?;
            // Before it runs: a step that ends early may have advanced recurrent states.
            self.mark_written(pos + part.len());
            let step = if part.len() == 1 && !staged.has_soft_tokens {
                self.decode_step(pos + 1)?
            } else {
                self.prefill_step(part.len())?
            };
            self.submit_step(step, (pos, part.len()), Some(&staged.ids))
                .await?;
            self.tokens.extend_from_slice(part);
            if index > 0 {
                // At most one chunk ahead: the page stays responsive and aborts take effect soon.
                self.model.gpu.wait_idle().await?;
            }
        }
        Ok(())
    }

    fn check_ids(&self, ids: &[u32], start: usize) -> Result<()> {
        let refuse = |reason: String| {
            Err(Error::Request {
                parameter: "ids".into(),
                reason,
            })
        };
        if ids.is_empty() {
            return refuse("no tokens. Pass at least one token.".into());
        }
        if start + ids.len() > self.model.capacity() {
            return Err(Error::SequenceTooLong {
                what: "the sequence",
                tokens: start + ids.len(),
                limit: self.model.capacity(),
                hint: LONGER_CONTEXT,
            });
        }
        let vocab = self.model.vocab();
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) if !self.accepts_soft_tokens() => refuse(format!(
                "id {id} is outside the vocabulary of {vocab} tokens. Use the model's own tokenizer."
            )),
            Some(_) => self.check_soft_tokens(ids),
            None => Ok(()),
        }
    }

    /// Reads the logits of the last row.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn logits(&self) -> Result<Vec<f32>> {
        let bytes = self
            .model
            .gpu
            .read(self.buffer(Slot::Output)?, 0, self.model.vocab() as u64 * 4)
            .await?;
        let logits: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        check_logits(&logits)?;
        Ok(logits)
    }

    /// Runs one token at a position inside or directly after the sequence; its logits stay on the
    /// device.
    ///
    /// # Errors
    /// As [`Self::prefill`]; `Request` also when the states cannot be rolled back that far.
    pub async fn step(&mut self, token: u32, pos: usize) -> Result<()> {
        self.check_ids(&[token], pos)?;
        if self.trim(pos)? != pos {
            let reason = format!(
                "the sequence cannot be rolled back to position {pos}. Run its tokens again from the beginning."
            );
            return Err(Error::Request {
                parameter: "pos".into(),
                reason,
            });
        }
        self.reserve(pos + 1).await?;
        self.model
            .gpu
            .write(self.buffer(Slot::Ids)?, 0, bytemuck::cast_slice(&[token]));
        self.set_state(pos, 1, 0)?;
        self.mark_written(pos + 1);
        self.submit_step(self.decode_step(pos + 1)?, (pos, 1), Some(&[token]))
            .await?;
        self.tokens.push(token);
        Ok(())
    }

    /// Times each dispatch of one decode step, or of a prefill of `rows` tokens. Clears the
    /// sequence.
    ///
    /// # Errors
    /// Device errors.
    pub async fn profile(&mut self, rows: usize, pos: usize) -> Result<StepTimes> {
        self.clear();
        self.reserve_on_device(pos + rows).await?;
        self.set_state(pos, rows, 0)?;
        let step = if rows == 1 {
            self.decode_step(pos + 1)?
        } else {
            self.prefill_step(rows)?
        };
        step.profile(&self.model.gpu, rows).await
    }

    /// The position up to which the states may have been written.
    pub(super) fn written_until(&self) -> usize {
        self.written_until
    }

    /// Whether a decode step stops for the host, as with paged weights.
    ///
    /// # Errors
    /// `Internal` when the step was not planned.
    pub(super) fn needs_host(&self) -> Result<bool> {
        self.model
            .read_plan(ProgramKey::DECODE, |plan| !plan.breaks.is_empty())
    }

    /// Capacity of the states in positions.
    pub(super) fn kv_capacity(&self) -> usize {
        self.kv_capacity
    }

    /// Notes that steps in flight write states up to a position.
    pub(super) fn mark_written(&mut self, until: usize) {
        self.written_until = self.written_until.max(until);
    }

    /// Adds tokens that a generation has run, and sets the position up to which it wrote states.
    pub(super) fn add_generated(&mut self, tokens: &[u32], written_until: usize) {
        self.tokens.extend_from_slice(tokens);
        self.written_until = written_until;
    }

    /// Waits until the device has confirmed the allocation of the states.
    ///
    /// # Errors
    /// `OutOfMemory` when it failed.
    pub async fn ready(&self) -> Result<()> {
        self.model.gpu.check().await
    }
}

/// Bytes of a sequence's hidden states, if the model stores them. Proposals may be one step longer
/// than the sequence.
fn hidden_bytes(model: &Model) -> u64 {
    let positions = model.capacity() + DRAFT_ROWS as usize;
    model.graph().stored_hidden_bytes(positions)
}

/// Creates the buffers of a sequence, except the `given` ones.
fn own_buffers(
    model: &Model,
    dims: &SortedSet<Dim>,
    given: &Buffers,
    positions: usize,
) -> Result<Buffers> {
    let mut own = given.clone();
    let output = model.read_plan(ProgramKey::DECODE, |plan| plan.output)?;
    let sizes = [
        (Slot::Ids, model.chunk().max(DRAFT_ROWS as usize) as u64 * 4),
        (Slot::CURSOR, STATE_BYTES),
        (Slot::Tokens, TOKEN_RING_BYTES),
        (Slot::Stops, MAX_STOP_TOKENS as u64 * 4),
        (Slot::ArgmaxPartials, 128 * 8 * u64::from(DRAFT_ROWS)),
        (Slot::Output, output),
    ];
    let ends = (model.image_mask != ImageMask::Causal)
        .then_some((Slot::VisibleEnds, model.chunk() as u64 * 4));
    let graph = model.graph();
    let last_hidden = match graph.is_mtp_head() {
        true => graph.value(graph.hidden).cols as u64 * 4,
        false => 0,
    };
    let hidden = [
        (Slot::Hidden, hidden_bytes(model)),
        (Slot::LastHidden, last_hidden),
    ];
    let hidden = hidden.into_iter().filter(|(_, size)| *size > 0);
    let cursors = dims.iter().map(|dim| (Slot::Cursor(*dim), STATE_BYTES));
    let inputs = model
        .graph()
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let rows = input.rows.eval(StepSizes::rows(model.chunk()));
            (Slot::Input(InputId(index)), rows_bytes(rows, input.cols))
        });
    let all = sizes
        .into_iter()
        .chain(ends)
        .chain(hidden)
        .chain(cursors)
        .chain(inputs);
    for (slot, size) in all.filter(|(slot, _)| !given.contains_key(slot)) {
        own.insert(
            slot,
            model.gpu.buffer("session", size, BufferUsage::Storage)?,
        );
    }
    for index in 0..model.states().len() {
        model.state_buffers(index, positions, &mut own)?;
    }
    let positions = model.capacity();
    rope_buffers(&model.gpu, model.graph(), positions, &mut own, |rope| {
        rope.depends_on_length() || model.mrope_sections.is_some()
    })?;
    Ok(own)
}
