//! How sequences join a batch, fork and leave it.

use super::row::Row;
use super::{
    DecodeBatch, MAX_SEQUENCES, SequenceId, SequenceParams, buffer_of, refused, row_buffers,
};
use crate::exec::logits_pipeline::{LogitsPipeline, MAX_STOP_TOKENS};
use crate::exec::program_key::ProgramKey;
use crate::exec::session::Session;
use crate::exec::step::Buffers;
use crate::gpu::{Backend, Buffer, BufferUsage, Command};
use crate::kernels::attention::PAGE_POSITIONS;
use crate::plan::Slot;
use crate::{Error, Result};
use std::collections::hash_map::Entry;
use std::rc::Rc;

impl DecodeBatch {
    /// Adds a sequence after the prompt that a session has run. The session must not run again
    /// until the sequence leaves.
    ///
    /// # Errors
    /// `Request` when the batch is full, or for more stop tokens than the GPU supports;
    /// `UnsupportedOption` for parameters that must be sampled on the CPU; `Internal` for a session
    /// that does not match the batch; `OutOfMemory` when the device has no room for its states.
    pub async fn join(
        &mut self,
        session: &Session,
        params: SequenceParams<'_>,
    ) -> Result<SequenceId> {
        self.check_session(session)?;
        let pipeline = self.pipeline_of(&params)?;
        self.drain().await?;
        let held = session.tokens().len();
        let slot = self.pools.take_slot()?;
        let index = self.free_index();
        let joined = match self.copy_in(session, slot, index).await {
            Ok(()) => self.prepare_sampling(&pipeline, &params, slot),
            failed => failed,
        };
        if let Err(error) = joined {
            self.pools.release_slot(slot);
            return Err(error);
        }
        let budget = params.budget.min(self.model.capacity() + 1 - held);
        let id = self.new_id();
        let row = Row {
            id,
            slot,
            prompt: session.tokens().into(),
            held,
            sampled: Vec::new(),
            sampled_before: params.sampled_before,
            stops: params.stops.to_vec(),
            budget,
            rope_offset: session.rope_offset(),
            pipeline,
            last_has_run: true,
            has_logits: true,
            stopped: budget == 0,
        };
        self.set_row(index, row);
        Ok(id)
    }

    /// Makes room for more sequences; those in the batch go on.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room; the batch then stays as it was.
    pub async fn grow(&mut self, sequences: usize) -> Result<()> {
        let sequences = sequences.min(MAX_SEQUENCES);
        if sequences <= self.capacity() {
            return Ok(());
        }
        self.drain().await?;
        let key =
            ProgramKey::decode_batch(sequences, self.model.capacity()).with_overlay(self.overlay);
        self.model.prepare(key).await?;
        let before = self.model.gpu.resource_counts().bytes;
        let words = self.pools.table_words() / self.capacity() * sequences;
        let made = row_buffers(&self.model, key, words)?;
        self.model.gpu.check().await?;
        let copy = |slot| {
            let [from, to] = [self.buffer(slot)?, buffer_of(&made, slot)?];
            Ok(Command::Copy {
                from: (from, 0),
                to: (to, 0),
                size: from.size(),
            })
        };
        let copies = [copy(Slot::Output)?, copy(Slot::Pages)?];
        self.model.gpu.submit(&copies)?;
        self.buffers.extend(made);
        self.other_bytes += self.model.gpu.resource_counts().bytes - before;
        self.pools.add_slots(sequences);
        self.sampling.resize(sequences, Buffers::new());
        self.row_steps.clear();
        self.after_reserve(true);
        self.is_dirty = true;
        Ok(())
    }

    /// Continues a sequence twice, with other parameters for the new one: it shares the pages of
    /// what both have in common. Its budget counts from the sequence's beginning.
    ///
    /// # Errors
    /// As [`Self::join`]; `Internal` for an unknown sequence.
    pub async fn fork(&mut self, id: SequenceId, params: SequenceParams<'_>) -> Result<SequenceId> {
        let pipeline = self.pipeline_of(&params)?;
        self.drain().await?;
        let from = self.index_of(id)?;
        let index = self.free_index();
        let made = self.share(from)?;
        let logits = [[from, index]];
        let logits = if made.has_logits { &logits[..] } else { &[] };
        let fork = ([self.row(from)?.slot, made.slot], made.positions());
        let forked = match self.prepare_sampling(&pipeline, &params, made.slot) {
            Ok(()) => self.copy_rest(&[fork], logits),
            failed => failed,
        };
        if let Err(error) = forked {
            self.pools.release_slot(made.slot);
            return Err(error);
        }
        let row = Row {
            stops: params.stops.to_vec(),
            budget: params.budget.min(self.model.capacity() + 1 - made.held),
            pipeline,
            ..made
        };
        let id = row.id;
        self.set_row(index, row);
        Ok(id)
    }

    /// Replaces all sequences by continuations of them, such as beams: `parents` may name a
    /// sequence several times or not at all. The first continuation of a sequence keeps its id. Run
    /// [`Self::step_with`] next: logits are given up.
    ///
    /// # Errors
    /// `Internal` for an unknown sequence; `Request` for more than fit;
    /// `OutOfMemory` when the device has no room.
    pub async fn continue_from(&mut self, parents: &[SequenceId]) -> Result<Vec<SequenceId>> {
        self.drain().await?;
        for index in 0..self.rows.len() {
            let unused = |row: &Row| !parents.contains(&row.id);
            if self.rows[index].as_ref().is_some_and(unused) {
                self.remove(index);
            }
        }
        let mut ids = Vec::with_capacity(parents.len());
        let mut forks = Vec::new();
        for parent in parents {
            if !ids.contains(parent) {
                ids.push(*parent);
                continue;
            }
            let from = self.index_of(*parent)?;
            let made = self.share(from)?;
            forks.push(([self.row(from)?.slot, made.slot], made.positions()));
            ids.push(made.id);
            let index = self.free_index();
            self.set_row(index, made);
        }
        self.copy_rest(&forks, &[])?;
        self.rows
            .iter_mut()
            .flatten()
            .for_each(|row| row.has_logits = false);
        Ok(ids)
    }

    /// Makes a row with a slot that shares the full pages of another.
    fn share(&mut self, from: usize) -> Result<Row> {
        let slot = self.pools.take_slot()?;
        let id = self.new_id();
        let parent = self.row(from)?;
        let made = Row {
            id,
            slot,
            ..parent.clone()
        };
        // Tokens that were not returned yet are the fork's too.
        let unseen = self.read_early.iter().find(|(id, _)| *id == parent.id);
        if let Some((_, tokens)) = unseen.cloned() {
            self.read_early.push((id, tokens));
        }
        let slots = [self.row(from)?.slot, slot];
        let Self {
            pools,
            model,
            buffers,
            ..
        } = self;
        let moved = pools.share(model, buffers, slots, made.positions());
        self.after_reserve(*moved.as_ref().unwrap_or(&true));
        if let Err(error) = moved {
            self.pools.release_slot(slot);
            return Err(error);
        }
        Ok(made)
    }

    fn copy_rest(&mut self, forks: &[([usize; 2], usize)], logits: &[[usize; 2]]) -> Result<()> {
        let rows = (logits, self.row_bytes());
        let Self {
            pools,
            model,
            buffers,
            ..
        } = self;
        pools.copy_rest(model, buffers, forks, rows)
    }

    fn check_session(&self, session: &Session) -> Result<()> {
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
        Ok(())
    }

    fn pipeline_of(&self, params: &SequenceParams<'_>) -> Result<LogitsPipeline> {
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
        let vocabulary = self.model.vocab();
        let found = match params.sampler {
            Some(sampler) => {
                LogitsPipeline::for_params(sampler.params(), vocabulary, params.masked)
            }
            None => Some(LogitsPipeline::greedy()),
        };
        found.ok_or_else(|| refused(&self.model, "parameters that are sampled on the CPU"))
    }

    /// Makes the buffers of a slot's sampling parameters and writes them.
    fn prepare_sampling(
        &mut self,
        pipeline: &LogitsPipeline,
        params: &SequenceParams<'_>,
        slot: usize,
    ) -> Result<()> {
        let (Some(sampler), true) = (params.sampler, *pipeline != LogitsPipeline::greedy()) else {
            return Ok(());
        };
        let vocabulary = self.model.vocab() as u32;
        let own = &mut self.sampling[slot];
        let before = self.model.gpu.resource_counts().bytes;
        let partials = (Slot::ArgmaxPartials, 128 * 8);
        let needed = pipeline.buffers(vocabulary).into_iter().chain([partials]);
        for (buffer, bytes) in needed {
            if let Entry::Vacant(missing) = own.entry(buffer) {
                let gpu = &self.model.gpu;
                missing.insert(gpu.buffer("sampling", bytes, BufferUsage::Storage)?);
            }
        }
        for (buffer, words) in pipeline.request_input(sampler, vocabulary) {
            let words = bytemuck::cast_slice(&words);
            self.model.gpu.write(buffer_of(own, buffer)?, 0, words);
        }
        self.other_bytes += self.model.gpu.resource_counts().bytes - before;
        self.bytes.set(self.pools.bytes(), self.other_bytes);
        Ok(())
    }

    /// Copies a session's states to a slot, and its last logits to a row. Pages that another
    /// sequence has filled with the same tokens are shared.
    async fn copy_in(&mut self, session: &Session, slot: usize, index: usize) -> Result<()> {
        let held = session.tokens().len();
        let mut shared = 0;
        if self.model.reuses_prefix() {
            let same = |row: &Row| (row.common_positions(session.tokens()), row.slot);
            let most = self.all_rows().map(same).max().unwrap_or_default();
            shared = most.0 / PAGE_POSITIONS;
            self.pools.share_pages([most.1, slot], shared);
        }
        let first = shared * PAGE_POSITIONS;
        self.reserve(slot, held)?;
        self.pools
            .write_table(&self.model, &self.buffers, slot, 0)?;
        self.model.gpu.check().await?;
        let own = |slot| session.buffer(slot).cloned();
        self.pools.copy(
            &self.model,
            &self.buffers,
            &own,
            (slot, false),
            (first, held),
        )?;
        let size = self.row_bytes();
        self.model.gpu.submit(&[Command::Copy {
            from: (session.buffer(Slot::Output)?, 0),
            to: (self.buffer(Slot::Output)?, index as u64 * size),
            size,
        }])
    }

    /// Ends a sequence and gives its tokens and states back to the session that it came from. As
    /// after a [`DecodeLoop`](super::DecodeLoop), the last token was usually sampled but not run.
    /// If it was run, its logits are given back too. Not for forks, whose session has other tokens.
    ///
    /// # Errors
    /// `Internal` for another session; `OutOfMemory` when the session cannot grow.
    pub async fn leave(&mut self, id: SequenceId, session: &mut Session) -> Result<()> {
        self.drain().await?;
        let index = self.index_of(id)?;
        let row = self.row(index)?;
        let end = row.positions();
        let run = &row.sampled[..end - row.held];
        session.prepare_return(row.held, end).await?;
        let own = |slot| session.buffer(slot).cloned();
        self.pools.copy(
            &self.model,
            &self.buffers,
            &own,
            (row.slot, true),
            (row.held, end),
        )?;
        if row.has_logits {
            let size = self.row_bytes();
            self.model.gpu.submit(&[Command::Copy {
                from: (self.buffer(Slot::Output)?, index as u64 * size),
                to: (session.buffer(Slot::Output)?, 0),
                size,
            }])?;
        }
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
}
