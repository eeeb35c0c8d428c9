//! What is read before anything asks for it, while a load waits for something else.

use crate::util::map::SortedMap;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A read that has begun.
struct Reading<T> {
    has_ended: Cell<bool>,
    /// Bytes that have arrived.
    arrived: Cell<u64>,
    result: RefCell<Option<T>>,
    /// The one future that waits: taking a read removes it from the others.
    waiting: RefCell<Option<Waker>>,
}

impl<T> Reading<T> {
    fn wake(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}

/// Ends the wait for a read when it ends or is dropped.
pub(super) struct EndOfRead<T>(Rc<Reading<T>>);

impl<T> Drop for EndOfRead<T> {
    fn drop(&mut self) {
        self.0.has_ended.set(true);
        self.0.wake();
    }
}

impl<T> EndOfRead<T> {
    /// Reports bytes that have arrived.
    pub fn arrive(&self, bytes: u64) {
        self.0.arrived.set(self.0.arrived.get() + bytes);
        self.0.wake();
    }

    /// Whether the read can still be taken, or a future waits for it.
    pub fn is_wanted(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Hands over what was read.
    pub fn finish(self, result: T) {
        *self.0.result.borrow_mut() = Some(result);
    }
}

/// The reads that have begun, by name.
pub(super) struct ReadsAhead<T>(RefCell<SortedMap<String, Rc<Reading<T>>>>);

impl<T> Default for ReadsAhead<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T> ReadsAhead<T> {
    /// Waits for a read and takes its result; `None` if none has begun or it was dropped.
    pub async fn take(&self, name: &str) -> Option<T> {
        self.take_counting(name, &|_| ()).await
    }

    /// [`Self::take`], with a call of `count` for bytes as they arrive, first for those that have.
    pub async fn take_counting(&self, name: &str, count: &dyn Fn(u64)) -> Option<T> {
        let reading = self.0.borrow_mut().remove(name)?;
        let mut counted = 0;
        poll_fn(|context| {
            let arrived = reading.arrived.get();
            if arrived > counted {
                count(arrived - counted);
                counted = arrived;
            }
            if reading.has_ended.get() {
                return Poll::Ready(());
            }
            *reading.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        reading.result.take()
    }

    /// Notes that a read begins: [`Self::take`] waits for it from now on.
    pub fn begin(&self, name: &str) -> EndOfRead<T> {
        let reading = Rc::new(Reading {
            has_ended: Cell::new(false),
            arrived: Cell::new(0),
            result: RefCell::new(None),
            waiting: RefCell::new(None),
        });
        self.0.borrow_mut().insert(name.to_owned(), reading.clone());
        EndOfRead(reading)
    }

    /// Forgets all reads: what they have read is dropped.
    pub fn clear(&self) {
        self.0.take();
    }
}
