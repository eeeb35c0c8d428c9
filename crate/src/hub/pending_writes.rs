//! A queue of concurrent writes with a limited number in flight.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::{FutureExt, LocalBoxFuture, Shared};

/// A write with several waiters, each of which drives it.
type SharedWrite<T> = Shared<LocalBoxFuture<'static, T>>;

/// Writes in flight, oldest first; all waiters of a write receive its result `T`.
pub(super) struct PendingWrites<T: Clone> {
    max_pending: usize,
    pending: RefCell<VecDeque<SharedWrite<T>>>,
}

impl<T: Clone> PendingWrites<T> {
    /// Creates a queue in which at most `most` writes stay in flight after [`Self::begin`].
    pub fn new(max_pending: usize) -> Self {
        Self {
            max_pending,
            pending: RefCell::default(),
        }
    }

    /// Starts a write, then waits while too many are in flight. Returns the results of those that
    /// completed.
    pub async fn start(&self, write: impl Future<Output = T> + 'static) -> Vec<T> {
        let mut write = write.boxed_local().shared();
        let mut done = Vec::new();
        // A store continues on its own once the write was submitted.
        match poll_fn(|context| Poll::Ready(write.poll_unpin(context))).await {
            Poll::Ready(end) => done.push(end),
            Poll::Pending => self.pending.borrow_mut().push_back(write),
        }
        self.wait_until(self.max_pending, &mut done).await;
        done
    }

    /// Waits for all writes and returns their results.
    pub async fn wait_all(&self) -> Vec<T> {
        let mut done = Vec::new();
        self.wait_until(0, &mut done).await;
        done
    }

    /// Waits for the oldest writes until at most `most` are left. A write stays queued until it
    /// completes, so that concurrent waiters see it too.
    async fn wait_until(&self, most: usize, done: &mut Vec<T>) {
        while let Some(oldest) = self.oldest_over_limit(most) {
            done.push(oldest.clone().await);
            self.pending
                .borrow_mut()
                .retain(|write| !write.ptr_eq(&oldest));
        }
    }

    fn oldest_over_limit(&self, most: usize) -> Option<SharedWrite<T>> {
        let pending = self.pending.borrow();
        pending.front().filter(|_| pending.len() > most).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join;
    use std::cell::Cell;
    use std::rc::Rc;

    const NONE: [u32; 0] = [];

    /// A write that completes after `turns` polls and counts itself in `begun` at the first poll.
    fn write(
        name: u32,
        turns: u32,
        begun: &Rc<Cell<usize>>,
    ) -> impl Future<Output = u32> + 'static {
        let begun = begun.clone();
        let mut left = turns;

        poll_fn(move |context| {
            if left == turns {
                begun.set(begun.get() + 1);
            }
            if left == 0 {
                return Poll::Ready(name);
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[test]
    fn a_write_is_begun_at_once_and_waited_for_when_there_are_too_many() {
        pollster::block_on(async {
            let writes = PendingWrites::new(2);
            let begun = Rc::new(Cell::new(0));

            assert_eq!(writes.start(write(1, 3, &begun)).await, NONE);
            assert_eq!(writes.start(write(2, 1, &begun)).await, NONE);
            assert_eq!(begun.get(), 2);
            assert_eq!(
                writes.start(write(3, 5, &begun)).await,
                [1],
                "the oldest makes room"
            );
            assert_eq!(begun.get(), 3);
            assert_eq!(
                writes.start(write(4, 0, &begun)).await,
                [4],
                "a write that completes at once takes no slot"
            );
            assert_eq!(writes.wait_all().await, [2, 3]);
            assert_eq!(writes.wait_all().await, NONE);
        });
    }

    #[test]
    fn a_write_that_somebody_waits_for_is_waited_for_by_all() {
        pollster::block_on(async {
            let writes = PendingWrites::new(1);
            let begun = Rc::new(Cell::new(0));

            assert_eq!(writes.start(write(1, 5, &begun)).await, NONE);
            let (one, all) = join(writes.start(write(2, 9, &begun)), writes.wait_all()).await;
            assert_eq!((one, all), (vec![1], vec![1, 2]));
        });
    }
}
