//! Work that begins before its result is needed.

use crate::util::latch::Latch;
use futures_util::future::{AbortHandle, abortable};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen_futures::spawn_local;

/// A running future. It ends when this is dropped.
pub(super) struct Background<T> {
    done: Rc<(Latch, RefCell<Option<T>>)>,
    handle: AbortHandle,
}

impl<T: 'static> Background<T> {
    /// Starts a future.
    pub fn start(work: impl Future<Output = T> + 'static) -> Self {
        let done = Rc::new((Latch::default(), RefCell::new(None)));
        let (work, handle) = abortable(work);
        let running = done.clone();
        spawn_local(async move {
            if let Ok(result) = work.await {
                *running.1.borrow_mut() = Some(result);
                running.0.open();
            }
        });
        Self { done, handle }
    }

    /// Waits for the result; `None` if it was taken before.
    pub async fn result(self) -> Option<T> {
        self.done.0.wait().await;
        self.done.1.take()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}
