//! Who runs the next step of a batch, and what each sequence gets from it. There is no task of its
//! own: a sequence that needs tokens runs the step for all, and the others wait for theirs.

use std::task::{Context, Poll, Waker};

/// What a sequence does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Move {
    /// Takes these tokens.
    Take(Vec<u32>),
    /// Runs a step for all; then call [`StepQueue::release`].
    Step,
    /// Nothing: it has stopped.
    End,
    /// Goes on alone: the batch has failed.
    Fail,
}

/// The token mask of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextMask {
    /// All tokens are allowed.
    All,
    /// The next step waits for it.
    Missing,
    /// One bit per token.
    Words(Vec<u32>),
}

/// A sequence of the batch.
struct QueuedSequence<K> {
    key: K,
    tokens: Vec<u32>,
    has_stopped: bool,
    has_failed: bool,
    mask: NextMask,
    waker: Option<Waker>,
}

impl<K> QueuedSequence<K> {
    /// Whether the next step waits for its mask.
    fn lacks_mask(&self) -> bool {
        self.mask == NextMask::Missing && !self.has_stopped && !self.has_failed
    }
}

/// The sequences of a batch, and whether one of them uses it.
pub struct StepQueue<K> {
    sequences: Vec<QueuedSequence<K>>,
    is_busy: bool,
    /// Those that wait to change the batch; they precede the next step.
    changes: Vec<(u64, Waker)>,
    next_change: u64,
}

impl<K: Copy + PartialEq> StepQueue<K> {
    /// Creates a queue without sequences.
    pub fn new() -> Self {
        Self {
            sequences: Vec::new(),
            is_busy: false,
            changes: Vec::new(),
            next_change: 0,
        }
    }

    /// Adds a sequence.
    pub fn add(&mut self, key: K, is_masked: bool) {
        self.sequences.push(QueuedSequence {
            key,
            tokens: Vec::new(),
            has_stopped: false,
            has_failed: false,
            mask: match is_masked {
                true => NextMask::Missing,
                false => NextMask::All,
            },
            waker: None,
        });
    }

    /// Removes a sequence; returns the tokens that it has not taken, unless the batch has failed.
    pub fn remove(&mut self, key: K) -> Option<Vec<u32>> {
        let at = self.sequences.iter().position(|known| known.key == key)?;
        let sequence = self.sequences.remove(at);
        self.wake();
        (!sequence.has_failed).then_some(sequence.tokens)
    }

    fn find(&mut self, key: K) -> Option<&mut QueuedSequence<K>> {
        self.sequences.iter_mut().find(|known| known.key == key)
    }

    /// Whether a sequence needs a mask before the next step.
    pub fn needs_mask(&mut self, key: K) -> bool {
        self.find(key).is_some_and(|known| known.lacks_mask())
    }

    /// Sets the tokens that may come next in a sequence.
    pub fn set_mask(&mut self, key: K, words: Vec<u32>) {
        if let Some(sequence) = self.find(key) {
            sequence.mask = NextMask::Words(words);
        }
        self.wake();
    }

    /// The masks to write before a step.
    pub fn masks(&self) -> impl Iterator<Item = (K, &[u32])> {
        let all = self.sequences.iter();
        all.filter_map(|sequence| match &sequence.mask {
            NextMask::Words(words) if !sequence.has_failed => Some((sequence.key, &words[..])),
            _ => None,
        })
    }

    /// Adds the tokens of a step.
    pub fn give(&mut self, key: K, tokens: &[u32], has_stopped: bool) {
        if let Some(sequence) = self.find(key) {
            sequence.tokens.extend_from_slice(tokens);
            sequence.has_stopped = has_stopped;
            if sequence.mask != NextMask::All && !tokens.is_empty() {
                sequence.mask = NextMask::Missing;
            }
        }
    }

    /// Ends the batch for all sequences. Tokens that they have not taken are sampled again.
    pub fn fail(&mut self) {
        for sequence in &mut self.sequences {
            sequence.has_failed = true;
        }
    }

    /// Decides what a sequence does; it waits while another uses the batch.
    pub fn poll_move(&mut self, key: K, context: &mut Context<'_>) -> Poll<Move> {
        let may_step = !self.is_busy
            && self.changes.is_empty()
            && !self.sequences.iter().any(QueuedSequence::lacks_mask);
        let Some(sequence) = self.find(key) else {
            return Poll::Ready(Move::Fail);
        };
        if sequence.has_failed {
            return Poll::Ready(Move::Fail);
        }
        if !sequence.tokens.is_empty() {
            return Poll::Ready(Move::Take(std::mem::take(&mut sequence.tokens)));
        }
        if sequence.has_stopped {
            return Poll::Ready(Move::End);
        }
        if may_step {
            self.is_busy = true;
            return Poll::Ready(Move::Step);
        }
        sequence.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Registers a change of the batch, such as a join.
    pub fn request_change(&mut self) -> u64 {
        self.next_change += 1;
        self.changes.push((self.next_change, Waker::noop().clone()));
        self.next_change
    }

    /// Waits until a change may be made, in the order of the requests; then call [`Self::release`].
    pub fn poll_change(&mut self, id: u64, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_busy && self.changes.first().is_none_or(|(first, _)| *first == id) {
            self.is_busy = true;
            self.cancel_change(id);
            return Poll::Ready(());
        }
        if let Some((_, waker)) = self.changes.iter_mut().find(|(known, _)| *known == id) {
            waker.clone_from(context.waker());
        }
        Poll::Pending
    }

    /// Forgets a change that was requested.
    pub fn cancel_change(&mut self, id: u64) {
        self.changes.retain(|(known, _)| *known != id);
    }

    /// Ends a step or a change.
    pub fn release(&mut self) {
        self.is_busy = false;
        self.wake();
    }

    /// Wakes all that wait.
    pub fn wake(&mut self) {
        let sequences = self.sequences.iter_mut();
        sequences
            .filter_map(|sequence| sequence.waker.take())
            .for_each(Waker::wake);
        self.changes
            .iter()
            .for_each(|(_, waker)| waker.wake_by_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &mut StepQueue<u32>, key: u32) -> Option<Move> {
        match queue.poll_move(key, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => Some(found),
            Poll::Pending => None,
        }
    }

    fn may_change(queue: &mut StepQueue<u32>, id: u64) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        queue.poll_change(id, &mut context).is_ready()
    }

    fn with(keys: &[u32]) -> StepQueue<u32> {
        let mut queue = StepQueue::new();
        keys.iter().for_each(|key| queue.add(*key, false));
        queue
    }

    #[test]
    fn one_sequence_steps_for_all() {
        let mut queue = with(&[1, 2]);
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
        assert_eq!(next(&mut queue, 2), None, "it waits");
        queue.give(1, &[5], false);
        queue.give(2, &[6, 7], true);
        queue.release();
        assert_eq!(next(&mut queue, 2), Some(Move::Take(vec![6, 7])));
        assert_eq!(next(&mut queue, 2), Some(Move::End));
        assert_eq!(next(&mut queue, 1), Some(Move::Take(vec![5])));
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
    }

    #[test]
    fn tokens_collect_for_a_slow_sequence() {
        let mut queue = with(&[1, 2]);
        for token in 0..3 {
            assert_eq!(next(&mut queue, 1), Some(Move::Step));
            queue.give(1, &[token], false);
            queue.give(2, &[10 + token], false);
            queue.release();
            assert_eq!(next(&mut queue, 1), Some(Move::Take(vec![token])));
        }
        assert_eq!(next(&mut queue, 2), Some(Move::Take(vec![10, 11, 12])));
    }

    #[test]
    fn changes_precede_the_next_step_in_order() {
        let mut queue = with(&[1]);
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
        let [join, leave] = [queue.request_change(), queue.request_change()];
        assert!(!may_change(&mut queue, join), "a step runs");
        queue.give(1, &[5], false);
        queue.release();
        assert_eq!(next(&mut queue, 1), Some(Move::Take(vec![5])));
        assert_eq!(next(&mut queue, 1), None, "a change waits");
        assert!(!may_change(&mut queue, leave), "the join is first");
        assert!(may_change(&mut queue, join));
        assert!(!may_change(&mut queue, leave), "one at a time");
        queue.release();
        assert!(may_change(&mut queue, leave));
        queue.release();
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
    }

    #[test]
    fn a_step_waits_for_all_masks() {
        let mut queue = with(&[1]);
        queue.add(2, true);
        assert!(queue.needs_mask(2) && !queue.needs_mask(1));
        assert_eq!(next(&mut queue, 1), None);
        queue.set_mask(2, vec![3]);
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
        assert_eq!(queue.masks().collect::<Vec<_>>(), [(2, &[3][..])]);
        // Tokens of the other sequence were read early; the mask still counts.
        queue.give(1, &[5], false);
        queue.release();
        assert!(!queue.needs_mask(2));
        assert_eq!(next(&mut queue, 2), Some(Move::Step));
        queue.give(2, &[6], false);
        queue.release();
        assert!(queue.needs_mask(2));
        assert_eq!(next(&mut queue, 1), Some(Move::Take(vec![5])));
        assert_eq!(next(&mut queue, 1), None);
        queue.remove(2);
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
    }

    #[test]
    fn a_failure_reaches_all_sequences_once() {
        let mut queue = with(&[1, 2]);
        assert_eq!(next(&mut queue, 1), Some(Move::Step));
        queue.give(2, &[9], false);
        queue.fail();
        queue.release();
        for key in [1, 2] {
            assert_eq!(next(&mut queue, key), Some(Move::Fail));
            queue.remove(key);
        }
        queue.add(3, false);
        assert_eq!(next(&mut queue, 3), Some(Move::Step));
    }
}
