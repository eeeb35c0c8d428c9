//! A sequence on a model: its states, position and bound steps. Sessions of one model share weights
//! and kernels and may be interleaved; each submission is self-contained.

mod all_rows;
mod rollback;

use super::checkpoint::StateCheckpoint;
use super::files::ModelFiles;
use super::image_cache::ImageCache;
use super::lazy_programs::SpeculationSteps;
use super::logits_pipeline::{LogitsPipeline, MAX_STOP_TOKENS, TOKEN_RING_BYTES};
use super::model::Model;
use super::options::RunOptions;
use super::step::{
    Buffers, PlanBuffers, STATE_BYTES, SessionSteps, Step, StepTimes, check_logits, rope_buffers,
    rows_bytes, state_words,
};
use crate::arch::vision::ImageMask;
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::hub::Source;
use crate::ir::{Dim, InputId, StepSizes};
use crate::kernels::kv_splits::SHORT_CONTEXT;
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::Slot;
use crate::util::map::SortedSet;
use crate::vision::MropePositions;
use crate::{Error, Result};
use serde_json::Value;
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

/// The hint of a sequence that exceeds the KV cache.
pub(super) const LONGER_CONTEXT: &str =
    "Pass fewer tokens, or load the model with a larger maxContext.";

/// A sequence on a model; dereferences to the model.
pub struct Session {
    pub(super) model: Rc<Model>,
    /// The sequence's own buffers.
    pub(super) own: Buffers,
    /// The subset of them that is shared with other owners.
    shared_buffers: Buffers,
    pub(super) steps: SessionSteps,
    pub(super) greedy: Step,
    pub(super) short_prefill: Option<Step>,
    pub(super) sampling_steps: Vec<(LogitsPipeline, Step)>,
    pub(super) speculation: Option<SpeculationSteps>,
    /// Row dimensions of its steps other than the step's own.
    dims: SortedSet<Dim>,
    /// The tokens in the states.
    pub(super) tokens: Vec<u32>,
    /// The position up to which states may have been written.
    pub(super) written_until: usize,
    /// Checkpoints of states that cannot be trimmed, oldest first.
    pub(super) checkpoints: Vec<Rc<StateCheckpoint>>,
    /// The images that prompts may reference.
    pub(super) image_cache: Rc<RefCell<ImageCache>>,
    /// M-RoPE positions up to the last image token; empty for plain text.
    pub(super) mrope: MropePositions,
    rope_dirty: usize,
    /// Capacity of the states in positions.
    pub(super) kv_capacity: usize,
    pub(super) state_bytes: u64,
    /// Bytes of this session's buffers for drafts.
    pub(super) draft_bytes: u64,
}

impl Deref for Session {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.model.update_memory_use(|bytes| {
            bytes.kv -= self.state_bytes;
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
        config: Value,
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
        Self::with_capacity(model, given, 0)
    }

    /// Starts one with an initial capacity of `positions`.
    fn with_capacity(model: &Rc<Model>, given: Buffers, positions: usize) -> Result<Self> {
        let plans = [&model.decode.plan, &model.prefill.plan];
        let binds = plans
            .iter()
            .flat_map(|p| &p.launches)
            .flat_map(|l| &l.binds);
        let dims = binds.filter_map(|(_, slot)| {
            if let Slot::Cursor(dim) = slot {
                Some(*dim)
            } else {
                None
            }
        });
        let dims: SortedSet<Dim> = dims.filter(|dim| *dim != Dim::TOKENS).collect();
        let held = model.capacity_for(positions.max(1), 0);
        let own = own_buffers(model, &dims, &given, held)?;
        let steps = model.steps(&own)?;
        let greedy = model.step(&own, "sample", &model.greedy, 1)?;
        let state_bytes = model.state_bytes(held);
        model.update_memory_use(|bytes| bytes.kv += state_bytes);
        let mut session = Self {
            model: model.clone(),
            own,
            shared_buffers: given,
            steps,
            greedy,
            short_prefill: None,
            sampling_steps: Vec::new(),
            speculation: None,
            dims,
            tokens: Vec::new(),
            written_until: 0,
            checkpoints: Vec::new(),
            image_cache: Rc::default(),
            mrope: MropePositions::default(),
            rope_dirty: 0,
            kv_capacity: held,
            state_bytes,
            draft_bytes: 0,
        };
        session.write_ropes(0, session.capacity, 0)?;
        session.rope_dirty = 0;
        Ok(session)
    }

    /// The decode step for sequences that end at `end` at the latest.
    pub(super) fn decode_step(&self, end: usize) -> &Step {
        let step = self
            .steps
            .short_context
            .as_ref()
            .filter(|_| end <= SHORT_CONTEXT as usize)
            .unwrap_or(&self.steps.decode);
        step.limit_keys(&self.gpu, end)
    }

    /// The model, to create further sessions.
    pub fn model(&self) -> &Rc<Model> {
        &self.model
    }

    /// The tokens in its states.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        let found = self.own.get(&slot).or_else(|| self.model.shared.get(&slot));
        found.ok_or_else(|| Error::Internal(format!("no buffer for {slot:?}")))
    }

    /// Builds a step of this sequence.
    pub(super) fn build_step(
        &self,
        name: &str,
        prepared: &PlanBuffers,
        rows: usize,
    ) -> Result<Step> {
        self.model.step(&self.own, name, prepared, rows)
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
        self.gpu.write(
            self.buffer(Slot::CURSOR)?,
            0,
            bytemuck::cast_slice(&state_words(pos, rows, step, budget)),
        );
        for dim in &self.dims {
            let words = state_words(pos, dim.eval(StepSizes::rows(rows)), step, budget);
            self.gpu.write(
                self.buffer(Slot::Cursor(*dim))?,
                0,
                bytemuck::cast_slice(&words),
            );
        }
        Ok(())
    }

    /// Writes the RoPE tables of plain text; length-independent ones are shared by the model.
    fn write_ropes(&self, first: usize, count: usize, total: usize) -> Result<()> {
        for (index, spec) in self.graph.ropes.iter().enumerate() {
            let slot = Slot::Rope(index);
            let Some(buffer) = self.own.get(&slot) else {
                continue;
            };
            if let Some(plain) = self.model.shared.get(&slot) {
                self.gpu.submit(&[Command::Copy {
                    from: (plain, 0),
                    to: (buffer, 0),
                    size: plain.size(),
                }])?;
                continue;
            }
            let table = spec.table(first, count, total);
            self.gpu.write(
                buffer,
                (first * spec.dim * 4) as u64,
                bytemuck::cast_slice(&table),
            );
        }
        Ok(())
    }

    /// Updates length-dependent RoPE tables for positions from `start` to `end`.
    fn update_dynamic_ropes(&mut self, start: usize, end: usize) -> Result<()> {
        if self.reuses_prefix() {
            return Ok(());
        }
        if self.rope_dirty > end {
            self.write_ropes(end, self.rope_dirty - end, 0)?;
        }
        self.write_ropes(start, end - start, end)?;
        self.rope_dirty = end;
        Ok(())
    }

    /// Starts a sequence whose token positions are set with [`Self::stand`].
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its states.
    pub fn with_positions(model: &Rc<Model>) -> Result<Self> {
        let mut given = Buffers::new();
        rope_buffers(&model.gpu, &model.graph, model.capacity, &mut given, |_| {
            true
        })?;
        Self::with_shared_buffers(model, given)
    }

    /// Sets the positions of all tokens, in a sequence created by [`Self::standing`].
    pub fn set_positions(&self, positions: &[f32]) {
        for (index, spec) in self.graph.ropes.iter().enumerate() {
            if let Some(buffer) = self.own.get(&Slot::Rope(index)) {
                let table = spec.table_at(&positions[..positions.len().min(self.capacity)]);
                self.gpu.write(buffer, 0, bytemuck::cast_slice(&table));
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
        let common = if self.reuses_prefix() { common } else { 0 };
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
        self.reserve(start + ids.len()).await?;
        self.update_dynamic_ropes(start, start + ids.len())?;
        self.poll_short();
        let whole = [&self.tokens[..start], ids].concat();
        self.update_mrope(&whole)?;
        for (index, part) in self
            .prefill_chunks(ids, self.chunk)?
            .into_iter()
            .enumerate()
        {
            go_on()?;
            self.write_visible_ends(&whole, start + part.start..start + part.end)?;
            let pos = start + part.start;
            let part = &ids[part];

            let soft = self.stage_soft_tokens(part)?;
            self.gpu.write(
                self.buffer(Slot::Ids)?,
                0,
                bytemuck::cast_slice(soft.as_deref().unwrap_or(part)),
            );
            self.set_state(pos, part.len(), 0)?;
            let step = match (&soft, part.len()) {
                // A decode step accepts no soft tokens.
                (None, 1) => self.decode_step(pos + 1),
                (_, rows) => self.prefill_step(rows),
            };
            self.submit_step(step, part.len(), Some(soft.as_deref().unwrap_or(part)))
                .await?;
            self.tokens.extend_from_slice(part);
            self.written_until = self.written_until.max(self.tokens.len());
            if index > 0 {
                // At most one chunk ahead: the page stays responsive and aborts take effect soon.
                self.gpu.wait_idle().await?;
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
        if start + ids.len() > self.capacity {
            return Err(Error::SequenceTooLong {
                what: "the sequence",
                tokens: start + ids.len(),
                limit: self.capacity,
                hint: LONGER_CONTEXT,
            });
        }
        let vocab = self.vocab();
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) if !self.accepts_images() => refuse(format!(
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
            .gpu
            .read(self.buffer(Slot::Output)?, 0, self.vocab() as u64 * 4)
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
        self.gpu
            .write(self.buffer(Slot::Ids)?, 0, bytemuck::cast_slice(&[token]));
        self.set_state(pos, 1, 0)?;
        self.submit_step(self.decode_step(pos + 1), 1, Some(&[token]))
            .await?;
        self.tokens.push(token);
        self.written_until = self.written_until.max(self.tokens.len());
        Ok(())
    }

    /// Times each dispatch of one decode step, or of a prefill of `rows` tokens. Clears the
    /// sequence.
    ///
    /// # Errors
    /// Device errors.
    pub async fn profile(&mut self, rows: usize, pos: usize) -> Result<StepTimes> {
        self.clear();
        self.reserve(pos + rows).await?;
        self.set_state(pos, rows, 0)?;
        let step = if rows == 1 {
            self.decode_step(pos + 1)
        } else {
            self.prefill_step(rows)
        };
        step.profile(&self.gpu, rows).await
    }

    /// Waits until the device has confirmed the allocation of the states.
    ///
    /// # Errors
    /// `OutOfMemory` when it failed.
    pub async fn ready(&self) -> Result<()> {
        self.gpu.check().await
    }
}

/// Creates the buffers of a sequence, except the `given` ones.
fn own_buffers(
    model: &Model,
    dims: &SortedSet<Dim>,
    given: &Buffers,
    positions: usize,
) -> Result<Buffers> {
    let mut own = given.clone();
    let sizes = [
        (Slot::Ids, model.chunk.max(DRAFT_ROWS as usize) as u64 * 4),
        (Slot::CURSOR, STATE_BYTES),
        (Slot::Tokens, TOKEN_RING_BYTES),
        (Slot::Stops, MAX_STOP_TOKENS as u64 * 4),
        (Slot::ArgmaxPartials, 128 * 8 * u64::from(DRAFT_ROWS)),
        (Slot::Output, model.decode.plan.output),
    ];
    let ends = (model.image_mask != ImageMask::Causal)
        .then_some((Slot::VisibleEnds, model.chunk as u64 * 4));
    let cursors = dims.iter().map(|dim| (Slot::Cursor(*dim), STATE_BYTES));
    let inputs = model.graph.inputs.iter().enumerate().map(|(index, input)| {
        let rows = input.rows.eval(StepSizes::rows(model.chunk));
        (Slot::Input(InputId(index)), rows_bytes(rows, input.cols))
    });
    let all = sizes.into_iter().chain(ends).chain(cursors).chain(inputs);
    for (slot, size) in all.filter(|(slot, _)| !given.contains_key(slot)) {
        own.insert(
            slot,
            model.gpu.buffer("session", size, BufferUsage::Storage)?,
        );
    }
    for index in 0..model.states.len() {
        model.state_buffers(index, positions, &mut own)?;
    }
    rope_buffers(&model.gpu, &model.graph, model.capacity, &mut own, |rope| {
        rope.depends_on_length() || model.mrope_sections.is_some()
    })?;
    Ok(own)
}
