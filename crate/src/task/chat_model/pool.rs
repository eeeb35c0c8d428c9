//! Conversations for requests that run at once without a session of their own.

use super::{ChatModel, ChatParts};
use crate::exec::{MAX_SEQUENCES, Model, OverlayId};
use crate::hub::{AbortFlag, Source};
use crate::task::request::GenerateRequest;
use crate::{Error, Result};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Conversations that stay after their request, for the next one with the same beginning.
const MAX_IDLE: usize = 4;

/// Whose request is next: that of higher priority, then the earlier one.
type RequestOrder = (Reverse<i64>, u64);

/// Conversations on one model. Each request leases one; further ones are created while requests run
/// at once, as far as memory allows.
pub struct ChatPool {
    parts: ChatParts,
    /// The adapter of requests that name none.
    adapter: String,
    state: RefCell<PoolState>,
}

struct PoolState {
    /// Least recently used first.
    idle: Vec<ChatModel>,
    leased: usize,
    /// Maximum conversations at a time.
    limit: usize,
    waiting: Vec<(RequestOrder, Waker)>,
    requests: u64,
}

impl PoolState {
    fn wake(&self) {
        self.waiting
            .iter()
            .for_each(|(_, waker)| waker.wake_by_ref());
    }
}

impl ChatPool {
    /// Creates a pool with a conversation, of at most `limit` at a time.
    pub fn new(chat: ChatModel, limit: usize) -> Rc<Self> {
        Self::with_adapter(chat, limit, "")
    }

    /// Creates one whose requests use an adapter unless they name another.
    pub fn with_adapter(chat: ChatModel, limit: usize, adapter: &str) -> Rc<Self> {
        Rc::new(Self {
            parts: ChatParts::of(&chat),
            adapter: adapter.into(),
            state: RefCell::new(PoolState {
                idle: vec![chat],
                leased: 0,
                limit: limit.min(MAX_SEQUENCES),
                waiting: Vec::new(),
                requests: 0,
            }),
        })
    }

    /// The model.
    pub fn model(&self) -> &Rc<Model> {
        &self.parts.model
    }

    /// The adapter of requests that name none; empty for none.
    pub fn adapter(&self) -> &str {
        &self.adapter
    }

    /// Loads a LoRA adapter under a name.
    ///
    /// # Errors
    /// As [`ChatModel::load_adapter`].
    pub async fn load_adapter(&self, name: &str, source: &Source, merge: bool) -> Result<()> {
        let load = self.parts.model.load_adapter(source, merge);
        self.parts.adapters.load(name, load).await
    }

    /// Frees an adapter; requests that name it are refused from now on.
    ///
    /// # Errors
    /// `Request` for an unknown adapter.
    pub fn unload_adapter(&self, name: &str) -> Result<()> {
        let adapter = self.parts.adapters.remove(name)?;
        let mut state = self.state.borrow_mut();
        let uses = |chat: &ChatModel| chat.session.overlay() == Some(adapter);
        state.idle.retain(|chat| !uses(chat));
        self.parts.model.unload_adapter(adapter);
        Ok(())
    }

    /// Prepares idle conversations for the next request.
    pub fn warm_up(&self) {
        self.state
            .borrow_mut()
            .idle
            .iter_mut()
            .for_each(ChatModel::warm_up);
    }

    /// Leases the conversation that shares most with a request; waits while all are in use.
    ///
    /// # Errors
    /// `Request` for an unknown adapter; `OutOfMemory` if not even one fits; `Aborted`.
    pub async fn lease(
        self: &Rc<Self>,
        request: Option<&GenerateRequest>,
        abort: &AbortFlag,
    ) -> Result<ChatLease> {
        let named = request.and_then(|request| request.adapter.as_deref());
        let name = named.unwrap_or(&self.adapter);
        let place = {
            let mut state = self.state.borrow_mut();
            state.requests += 1;
            let priority = request.map_or(0, |request| request.priority);
            PoolRequest {
                pool: self,
                order: (Reverse(priority), state.requests),
            }
        };
        loop {
            abort.guard("generating", place.turn()).await?;
            let adapter = self.parts.adapters.find(name)?;
            let made = match self.take_idle(request, adapter) {
                Some(chat) => Ok(chat),
                None => self.create(adapter).await,
            };
            let mut state = self.state.borrow_mut();
            match made {
                Ok(chat) => {
                    drop(state);
                    return Ok(ChatLease {
                        chat: Some(chat),
                        pool: self.clone(),
                    });
                }
                Err(error) => {
                    state.leased -= 1;
                    state.wake();
                    if state.leased == 0 || !matches!(error, Error::OutOfMemory { .. }) {
                        return Err(error);
                    }
                    // Wait for one of the others instead.
                    state.limit = state.leased;
                }
            }
        }
    }

    /// Creates an empty conversation outside the pool, with an adapter if named. Does not wait for
    /// leased ones.
    ///
    /// # Errors
    /// `Request` for an unknown adapter; `OutOfMemory` if it does not fit.
    pub async fn create_session(&self, adapter: &str) -> Result<ChatModel> {
        self.create(self.parts.adapters.find(adapter)?).await
    }

    async fn create(&self, adapter: Option<OverlayId>) -> Result<ChatModel> {
        let made = self.parts.create_session(adapter)?;
        made.session.ready().await?;
        Ok(made)
    }

    /// Takes the idle conversation that shares most with the request, and counts it as leased.
    fn take_idle(
        &self,
        request: Option<&GenerateRequest>,
        adapter: Option<OverlayId>,
    ) -> Option<ChatModel> {
        let mut state = self.state.borrow_mut();
        state.leased += 1;
        let ids = match (request, &state.idle[..]) {
            (Some(request), [first, _, ..]) => first.prompt_ids(request, 0).ok().flatten(),
            _ => None,
        };
        let ids = ids.unwrap_or_default();
        let common = |chat: &ChatModel| {
            let pairs = chat.session.tokens().iter().zip(&ids);
            pairs.take_while(|(a, b)| a == b).count()
        };
        // The least recently used of equals.
        let all = state.idle.iter().enumerate().rev();
        let all = all.filter(|(_, chat)| chat.session.overlay() == adapter);
        let best = all.max_by_key(|(_, chat)| common(chat))?.0;
        Some(state.idle.remove(best))
    }
}

/// A request that waits for a conversation.
struct PoolRequest<'a> {
    pool: &'a ChatPool,
    order: RequestOrder,
}

impl PoolRequest<'_> {
    /// Waits until a conversation is idle or may be created.
    async fn turn(&self) {
        poll_fn(|context| {
            let mut state = self.pool.state.borrow_mut();
            state.waiting.retain(|(order, _)| *order != self.order);
            let is_first = state.waiting.iter().all(|(order, _)| self.order < *order);
            if is_first && state.leased < state.limit {
                return Poll::Ready(());
            }
            state.waiting.push((self.order, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for PoolRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.borrow_mut();
        state.waiting.retain(|(order, _)| *order != self.order);
        state.wake();
    }
}

/// A conversation in use; returns to its pool on drop.
pub struct ChatLease {
    chat: Option<ChatModel>,
    pool: Rc<ChatPool>,
}

impl ChatLease {
    /// The conversation.
    ///
    /// # Errors
    /// None: it is taken on drop only.
    pub fn chat(&mut self) -> Result<&mut ChatModel> {
        let missing = || Error::Internal("the conversation was returned".into());
        self.chat.as_mut().ok_or_else(missing)
    }
}

impl Drop for ChatLease {
    fn drop(&mut self) {
        let mut state = self.pool.state.borrow_mut();
        state.leased -= 1;
        state.idle.extend(self.chat.take());
        if state.idle.len() > MAX_IDLE {
            state.idle.remove(0);
        }
        state.wake();
    }
}
