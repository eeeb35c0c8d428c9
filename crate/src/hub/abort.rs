//! A flag that aborts a load at any point.

use crate::util::map::SortedMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::future::{Either, select};

use crate::{Error, Result};

#[derive(Default, Debug)]
struct AbortState {
    aborted: bool,
    next_id: u64,
    wakers: SortedMap<u64, Waker>,
    #[cfg(target_arch = "wasm32")]
    heard: Option<browser::SignalListener>,
}

/// Abort flag shared by the caller and the work it aborts. Clones share the state, and any thread
/// can set it.
#[derive(Clone, Default, Debug)]
pub struct AbortFlag(Arc<Mutex<AbortState>>);

impl AbortFlag {
    /// Creates a flag that is not set.
    pub fn new() -> AbortFlag {
        AbortFlag::default()
    }

    fn lock(&self) -> MutexGuard<'_, AbortState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts all work that watches this flag.
    pub fn abort(&self) {
        let wakers = {
            let mut state = self.lock();
            state.aborted = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    /// Whether the flag is set.
    pub fn is_aborted(&self) -> bool {
        self.lock().aborted
    }

    /// Returns `Aborted` if the flag is set; `what` names the aborted work.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.is_aborted() {
            Err(Error::Aborted {
                what: what.to_string(),
            })
        } else {
            Ok(())
        }
    }

    /// Runs `future` until it completes or the flag is set; an abort drops the future.
    pub async fn guard<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T> {
        self.check(what)?;
        match select(
            pin!(future),
            AbortWait {
                flag: self.clone(),
                id: None,
            },
        )
        .await
        {
            Either::Left((value, _)) => Ok(value),
            Either::Right(_) => Err(Error::Aborted {
                what: what.to_string(),
            }),
        }
    }
}

struct AbortWait {
    flag: AbortFlag,
    id: Option<u64>,
}

impl Future for AbortWait {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let flag = self.flag.clone();
        let mut state = flag.lock();
        if state.aborted {
            return Poll::Ready(());
        }
        let id = self.id.unwrap_or_else(|| {
            state.next_id += 1;
            state.next_id
        });
        self.id = Some(id);
        state.wakers.insert(id, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for AbortWait {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.flag.lock().wakers.remove(&id);
        }
    }
}

#[cfg(target_arch = "wasm32")]
mod browser {
    use super::AbortFlag;
    use std::sync::Arc;
    use wasm_bindgen::prelude::*;
    use web_sys::AbortSignal;

    /// Listener on an `AbortSignal`, removed with the flag: a signal may live as long as its page.
    #[derive(Debug)]
    pub(super) struct SignalListener {
        signal: AbortSignal,
        listener: Closure<dyn FnMut()>,
    }

    impl Drop for SignalListener {
        fn drop(&mut self) {
            let listener = self.listener.as_ref().unchecked_ref();
            // A listener that cannot be removed has no effect any more.
            let _ = self
                .signal
                .remove_event_listener_with_callback("abort", listener);
        }
    }

    impl AbortFlag {
        /// Creates a flag that an `AbortSignal` sets.
        pub fn from_signal(signal: &AbortSignal) -> AbortFlag {
            let flag = AbortFlag::new();
            if signal.aborted() {
                flag.abort();
                return flag;
            }
            let state = Arc::downgrade(&flag.0);
            let listener = Closure::new(move || {
                state
                    .upgrade()
                    .into_iter()
                    .for_each(|state| AbortFlag(state).abort());
            });
            // A signal that accepts no listener cannot abort; ignore the error.
            let _ =
                signal.add_event_listener_with_callback("abort", listener.as_ref().unchecked_ref());
            flag.lock().heard = Some(SignalListener {
                signal: signal.clone(),
                listener,
            });
            flag
        }
    }
}
