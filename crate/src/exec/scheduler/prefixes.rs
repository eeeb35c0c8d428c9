//! Prompts with a common beginning run it once: a session waits for the one that runs it already,
//! and continues from a copy of its states.

use crate::exec::checkpoint::SessionSnapshot;
use crate::exec::program_key::OverlayId;
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Tokens from which on waiting for a common beginning pays.
pub const MIN_COMMON_TOKENS: usize = 64;

/// The prompts that run.
#[derive(Clone, Default)]
pub struct RunningPrompts(Rc<RefCell<Vec<RunningPrompt>>>);

struct RunningPrompt {
    tokens: Rc<[u32]>,
    overlay: Option<OverlayId>,
    waiting: Rc<RefCell<PromptResult>>,
}

/// What those that wait for a prompt get.
#[derive(Default)]
struct PromptResult {
    wakers: Vec<Waker>,
    /// None for a prompt that failed.
    snapshot: Option<Option<Rc<SessionSnapshot>>>,
}

impl RunningPrompts {
    /// Waits for the prompt that begins with most of the same tokens, if more than the `held` ones
    /// of the session. None if there is none, or if it failed.
    pub async fn common(
        &self,
        tokens: &[u32],
        overlay: Option<OverlayId>,
        held: usize,
    ) -> Option<Rc<SessionSnapshot>> {
        while let Some(best) = self.best(tokens, overlay, held) {
            let snapshot = poll_fn(|context| {
                let mut waiting = best.borrow_mut();
                match &waiting.snapshot {
                    Some(snapshot) => Poll::Ready(snapshot.clone()),
                    None => {
                        waiting.wakers.push(context.waker().clone());
                        Poll::Pending
                    }
                }
            });
            if let Some(snapshot) = snapshot.await {
                return Some(snapshot);
            }
        }
        None
    }

    fn best(
        &self,
        tokens: &[u32],
        overlay: Option<OverlayId>,
        held: usize,
    ) -> Option<Rc<RefCell<PromptResult>>> {
        let running = self.0.borrow();
        let common = |other: &&RunningPrompt| {
            let pairs = other.tokens.iter().zip(tokens);
            pairs.take_while(|(a, b)| a == b).count()
        };
        // Waiting must not take much longer than running the tokens again.
        let pays = |other: &&RunningPrompt| {
            let common = common(other);
            other.overlay == overlay
                && common >= held + MIN_COMMON_TOKENS
                && 2 * common >= other.tokens.len()
        };
        let all = running.iter().filter(pays);
        all.max_by_key(common).map(|other| other.waiting.clone())
    }

    /// Registers a prompt until the result is dropped.
    pub fn start(&self, tokens: &[u32], overlay: Option<OverlayId>) -> PromptLease {
        let waiting = Rc::<RefCell<PromptResult>>::default();
        self.0.borrow_mut().push(RunningPrompt {
            tokens: tokens.into(),
            overlay,
            waiting: waiting.clone(),
        });
        PromptLease {
            prompts: self.clone(),
            waiting,
        }
    }
}

/// A prompt that runs.
pub struct PromptLease {
    prompts: RunningPrompts,
    waiting: Rc<RefCell<PromptResult>>,
}

impl PromptLease {
    /// Whether another session waits for it.
    pub fn is_awaited(&self) -> bool {
        !self.waiting.borrow().wakers.is_empty()
    }

    /// Ends it with the states after the prompt.
    pub fn finish(self, snapshot: Option<SessionSnapshot>) {
        self.waiting.borrow_mut().snapshot = Some(snapshot.map(Rc::new));
    }
}

impl Drop for PromptLease {
    fn drop(&mut self) {
        let is_other = |prompt: &RunningPrompt| !Rc::ptr_eq(&prompt.waiting, &self.waiting);
        self.prompts.0.borrow_mut().retain(is_other);
        let mut waiting = self.waiting.borrow_mut();
        waiting.snapshot.get_or_insert(None);
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }
}
