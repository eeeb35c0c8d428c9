//! Decodes the sequences of concurrent generations together. A generation alone decodes as without
//! this module; while there are several, each joins a [`DecodeBatch`] with its session, and leaves
//! it when it ends or the others have.

mod prefixes;
mod step_queue;

use super::batch::{DecodeBatch, MAX_SEQUENCES, SequenceId, SequenceParams};
use super::program_key::OverlayId;
use super::session::Session;
use crate::hub::AbortFlag;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use prefixes::{MIN_COMMON_TOKENS, RunningPrompts};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use step_queue::{Move, StepQueue};

/// The running generations of a model. Clones share them.
#[derive(Clone, Default)]
pub struct Scheduler {
    /// Batches by adapter.
    groups: Rc<RefCell<SortedMap<Option<OverlayId>, Rc<BatchGroup>>>>,
    prompts: RunningPrompts,
}

/// A sequence, and how many batches had failed when it joined.
type SequenceKey = (u64, SequenceId);

/// Generations whose sequences fit into one batch.
struct BatchGroup {
    queue: RefCell<StepQueue<SequenceKey>>,
    /// Number of batches that have failed.
    failures: Cell<u64>,
    /// None while it is in use, or before the first join.
    batch: RefCell<Option<DecodeBatch>>,
    /// Sequences whose generation was dropped.
    orphans: RefCell<Vec<SequenceId>>,
    members: Cell<usize>,
}

impl Scheduler {
    /// Registers a generation in a session. None if its model cannot decode several sequences in a
    /// step, or the session has buffers of others.
    pub fn enter(&self, session: &Session) -> Option<BatchMember> {
        if session.model().batch_refusal().is_some() || !session.shared_buffers().is_empty() {
            return None;
        }
        let key = session.overlay();
        let mut groups = self.groups.borrow_mut();
        if !groups.contains_key(&key) {
            let group = BatchGroup {
                queue: RefCell::new(StepQueue::new()),
                failures: Cell::new(0),
                batch: RefCell::default(),
                orphans: RefCell::default(),
                members: Cell::new(0),
            };
            groups.insert(key, Rc::new(group));
        }
        let group = groups.get(&key)?.clone();
        group.members.set(group.members.get() + 1);
        Some(BatchMember { group })
    }
}

impl Scheduler {
    /// Makes `ids` the tokens of a session, as [`Session::prefill_reusing_prefix`]. If another
    /// session runs most of them at this time, waits for it and copies its states.
    ///
    /// # Errors
    /// As [`Session::prefill_reusing_prefix`]; `Aborted`.
    pub async fn prefill(
        &self,
        session: &mut Session,
        ids: &[u32],
        abort: &AbortFlag,
    ) -> Result<usize> {
        let go_on = || abort.check("generating");
        let own = session.tokens().iter().zip(ids);
        let held = own.take_while(|(a, b)| a == b).count();
        let is_shareable = session.model().reuses_prefix() && session.shared_buffers().is_empty();
        if !is_shareable || ids.len() < held + MIN_COMMON_TOKENS {
            return session.prefill_reusing_prefix(ids, &go_on).await;
        }
        let overlay = session.overlay();
        let common = self.prompts.common(ids, overlay, held);
        if let Some(snapshot) = abort.guard("generating", common).await?
            // Without memory for the copy the prompt runs again.
            && session.restore(&snapshot).is_ok()
        {
            drop(snapshot);
            return session.prefill_rest(ids, &go_on).await;
        }
        let running = self.prompts.start(ids, overlay);
        let reused = session.prefill_reusing_prefix(ids, &go_on).await?;
        let is_awaited = running.is_awaited();
        running.finish(is_awaited.then(|| session.snapshot().ok()).flatten());
        Ok(reused)
    }
}

/// A running generation.
pub struct BatchMember {
    group: Rc<BatchGroup>,
}

impl Drop for BatchMember {
    fn drop(&mut self) {
        let left = self.group.members.get() - 1;
        self.group.members.set(left);
        if left == 0 {
            if let Some(batch) = self.group.batch.take() {
                batch.free_programs();
            }
            self.group.orphans.take();
        }
        // The last one goes on alone.
        self.group.queue.borrow_mut().wake();
    }
}

impl BatchMember {
    /// Whether other generations run, so that decoding together pays.
    pub fn is_shared(&self) -> bool {
        self.group.members.get() > 1
    }

    /// Adds the session's sequence to the batch. None if there is no room: the session then decodes
    /// alone.
    pub async fn join(
        &self,
        session: &Session,
        params: SequenceParams<'_>,
    ) -> Option<SharedSequence> {
        let mut access = self.group.access().await;
        let is_masked = params.masked;
        let id = access.join(session, params).await.ok()?;
        let key = (self.group.failures.get(), id);
        self.group.queue.borrow_mut().add(key, is_masked);
        Some(SharedSequence {
            group: self.group.clone(),
            key,
            has_left: false,
        })
    }
}

/// What a sequence gets from the batch.
#[derive(Debug)]
pub enum BatchOutput {
    /// New tokens.
    Tokens(Vec<u32>),
    /// None: its budget is used, or a stop token came.
    Ended,
    /// None: the batch has failed. The session has the tokens that it joined with.
    Failed,
}

/// A sequence in a batch.
pub struct SharedSequence {
    group: Rc<BatchGroup>,
    key: SequenceKey,
    has_left: bool,
}

impl SharedSequence {
    /// Returns the next tokens. Set the mask first if [`Self::needs_mask`].
    pub async fn next(&mut self) -> BatchOutput {
        loop {
            let queue = &self.group.queue;
            match poll_fn(|context| queue.borrow_mut().poll_move(self.key, context)).await {
                Move::Take(tokens) => return BatchOutput::Tokens(tokens),
                Move::End => return BatchOutput::Ended,
                Move::Fail => return BatchOutput::Failed,
                Move::Step => BatchAccess::new(&self.group).step().await,
            }
        }
    }

    /// Whether the next step waits for the tokens that it allows.
    pub fn needs_mask(&self) -> bool {
        self.group.queue.borrow_mut().needs_mask(self.key)
    }

    /// Sets the tokens that may come next, one bit each.
    pub fn set_mask(&self, words: Vec<u32>) {
        self.group.queue.borrow_mut().set_mask(self.key, words);
    }

    /// Gives tokens and states back to the session. Returns the tokens that [`Self::next`] has not.
    ///
    /// # Errors
    /// Errors of the device; the session then has the tokens that it joined with.
    pub async fn leave(mut self, session: &mut Session) -> Result<Vec<u32>> {
        let mut access = self.group.access().await;
        self.has_left = true;
        let queue = &self.group.queue;
        let unread = queue.borrow_mut().remove(self.key);
        let mut rest = unread.ok_or_else(failed_batch)?;
        rest.extend(access.leave(self.key.1, session).await?);
        Ok(rest)
    }
}

impl Drop for SharedSequence {
    fn drop(&mut self) {
        if !self.has_left {
            self.group.queue.borrow_mut().remove(self.key);
            if self.key.0 == self.group.failures.get() {
                self.group.orphans.borrow_mut().push(self.key.1);
            }
        }
    }
}

impl BatchGroup {
    /// Waits for exclusive access, before the next step.
    async fn access(&self) -> BatchAccess<'_> {
        let request = ChangeRequest {
            group: self,
            id: self.queue.borrow_mut().request_change(),
        };
        poll_fn(|context| self.queue.borrow_mut().poll_change(request.id, context)).await;
        BatchAccess::new(self)
    }
}

/// Withdraws the request on drop.
struct ChangeRequest<'a> {
    group: &'a BatchGroup,
    id: u64,
}

impl Drop for ChangeRequest<'_> {
    fn drop(&mut self) {
        let mut queue = self.group.queue.borrow_mut();
        queue.cancel_change(self.id);
        queue.wake();
    }
}

/// Exclusive access to a group's batch.
struct BatchAccess<'a> {
    group: &'a BatchGroup,
    batch: Option<DecodeBatch>,
    /// Whether the batch can be used again: not after an error, or while a call runs.
    is_intact: bool,
}

impl<'a> BatchAccess<'a> {
    fn new(group: &'a BatchGroup) -> Self {
        Self {
            group,
            batch: group.batch.take(),
            is_intact: true,
        }
    }

    /// The batch, after the sequences of dropped generations have left it.
    async fn batch(&mut self) -> Result<&mut DecodeBatch> {
        let batch = self.batch.as_mut().ok_or_else(failed_batch)?;
        self.is_intact = false;
        let orphans = self.group.orphans.take();
        for id in orphans {
            batch.discard(id).await?;
        }
        Ok(batch)
    }

    async fn join(&mut self, session: &Session, params: SequenceParams<'_>) -> Result<SequenceId> {
        let members = self.group.members.get().clamp(2, MAX_SEQUENCES);
        if self.batch.is_none() {
            let batch = DecodeBatch::for_sessions_like(session, members.next_power_of_two());
            self.batch = Some(batch.await?);
        }
        let batch = self.batch().await?;
        let joined = async {
            if batch.len() == batch.capacity() {
                batch.grow(2 * batch.capacity()).await?;
            }
            batch.join(session, params).await
        };
        let joined = joined.await;
        // A sequence that does not fit leaves the others as they were.
        self.is_intact = true;
        joined
    }

    async fn leave(&mut self, id: SequenceId, session: &mut Session) -> Result<Vec<u32>> {
        let batch = self.batch().await?;
        let rest = batch.take_rest(id).await?;
        let left = batch.leave(id, session).await;
        if left.is_err() {
            batch.discard(id).await?;
        }
        self.is_intact = true;
        left.map(|()| rest)
    }

    /// Runs a step and hands out its tokens.
    async fn step(mut self) {
        // An error is that of one sequence, which meets it again when it goes on alone.
        if let Ok(tokens) = self.run_step().await {
            self.is_intact = true;
            let mut queue = self.group.queue.borrow_mut();
            let failures = self.group.failures.get();
            for (id, tokens, has_stopped) in tokens {
                queue.give((failures, id), &tokens, has_stopped);
            }
        }
    }

    async fn run_step(&mut self) -> Result<Vec<(SequenceId, Vec<u32>, bool)>> {
        let group = self.group;
        let batch = self.batch().await?;
        for ((_, id), words) in group.queue.borrow().masks() {
            batch.write_mask(id, words)?;
        }
        let tokens = batch.next().await?;
        if tokens.is_empty() {
            return Err(Error::Internal("batch: no sequence got a token".into()));
        }
        let all = tokens.into_iter();
        Ok(all
            .map(|(id, tokens)| (id, tokens, batch.has_stopped(id)))
            .collect())
    }
}

impl Drop for BatchAccess<'_> {
    fn drop(&mut self) {
        let mut queue = self.group.queue.borrow_mut();
        if self.is_intact && self.group.members.get() > 0 {
            self.group.batch.replace(self.batch.take());
        } else if !self.is_intact {
            self.group.orphans.take();
            self.group.failures.set(self.group.failures.get() + 1);
            queue.fail();
        }
        queue.release();
    }
}

fn failed_batch() -> Error {
    Error::Internal("batch: it has failed".into())
}
