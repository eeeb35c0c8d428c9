//! An event that several futures wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Closed until it is opened once.
#[derive(Default)]
pub(crate) struct Latch {
    open: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Latch {
    /// Lets all waiting futures go on.
    pub fn open(&self) {
        self.open.set(true);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits until it is open.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.open.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
