//! What is read before anything asks for it, while a load waits for something else.

use crate::util::latch::Latch;
use crate::util::map::SortedMap;
use std::cell::RefCell;
use std::rc::Rc;

/// A read that has begun.
struct Reading<T> {
    has_ended: Latch,
    result: RefCell<Option<T>>,
}

/// Ends the wait for a read when it ends or is dropped.
pub(super) struct EndOfRead<T>(Rc<Reading<T>>);

impl<T> Drop for EndOfRead<T> {
    fn drop(&mut self) {
        self.0.has_ended.open();
    }
}

impl<T> EndOfRead<T> {
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
        let reading = self.0.borrow_mut().remove(name)?;
        reading.has_ended.wait().await;
        reading.result.take()
    }

    /// Notes that a read begins: [`Self::take`] waits for it from now on.
    pub fn begin(&self, name: &str) -> EndOfRead<T> {
        let reading = Rc::new(Reading {
            has_ended: Latch::default(),
            result: RefCell::new(None),
        });
        self.0.borrow_mut().insert(name.to_owned(), reading.clone());
        EndOfRead(reading)
    }

    /// Forgets all reads: what they have read is dropped.
    pub fn clear(&self) {
        self.0.take();
    }
}
