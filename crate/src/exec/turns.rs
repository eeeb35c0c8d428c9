//! The order of prefill chunks and decode steps of a model's sequences. While answers are decoded,
//! at most one chunk runs between two of their steps, so a long prompt delays them by no more.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Whose chunk runs first: the prompt of higher priority, then the one with fewer chunks so far,
/// then the earlier one.
type ChunkOrder = (Reverse<i64>, usize, u64);

/// Orders the work of a model's sequences.
#[derive(Default)]
pub struct Turns(RefCell<TurnState>);

#[derive(Default)]
struct TurnState {
    /// Number of generations that decode.
    decoding: usize,
    /// Whether one of them has returned tokens since the last chunk.
    has_stepped: bool,
    waiting: Vec<(ChunkOrder, Waker)>,
    prompts: u64,
}

impl TurnState {
    /// Wakes those whose turn may have come.
    fn wake(&self) {
        self.waiting
            .iter()
            .for_each(|(_, waker)| waker.wake_by_ref());
    }
}

impl Turns {
    /// Registers a prompt.
    pub fn prompt(&self, priority: i64) -> PromptTurns<'_> {
        let mut state = self.0.borrow_mut();
        state.prompts += 1;
        PromptTurns {
            turns: self,
            order: (Reverse(priority), 0, state.prompts),
        }
    }

    /// Registers a generation that decodes, until the result is dropped.
    pub fn decoding(&self) -> DecodeTurns<'_> {
        let mut state = self.0.borrow_mut();
        state.has_stepped |= state.decoding == 0;
        state.decoding += 1;
        DecodeTurns(self)
    }
}

/// A prompt that runs in chunks.
pub struct PromptTurns<'a> {
    turns: &'a Turns,
    order: ChunkOrder,
}

impl PromptTurns<'_> {
    /// Waits until the next chunk may be submitted.
    pub async fn next_chunk(&mut self) {
        poll_fn(|context| {
            let mut state = self.turns.0.borrow_mut();
            state.waiting.retain(|(order, _)| *order != self.order);
            let is_first = state.waiting.iter().all(|(order, _)| self.order < *order);
            if is_first && (state.decoding == 0 || state.has_stepped) {
                state.has_stepped = false;
                state.wake();
                return Poll::Ready(());
            }
            state.waiting.push((self.order, context.waker().clone()));
            Poll::Pending
        })
        .await;
        self.order.1 += 1;
    }
}

impl Drop for PromptTurns<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.0.borrow_mut();
        state.waiting.retain(|(order, _)| *order != self.order);
        state.wake();
    }
}

/// A generation that decodes.
pub struct DecodeTurns<'a>(&'a Turns);

impl DecodeTurns<'_> {
    /// Notes that it has got tokens: a chunk may run.
    pub fn stepped(&self) {
        let mut state = self.0.0.borrow_mut();
        state.has_stepped = true;
        state.wake();
    }
}

impl Drop for DecodeTurns<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.borrow_mut();
        state.decoding -= 1;
        state.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;

    /// Runs chunks of a prompt while it is its turn, at most `most`; returns how many.
    fn run(prompt: &mut PromptTurns<'_>, most: usize) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let mut done = 0;
        while done < most {
            let mut next = Box::pin(prompt.next_chunk());
            if Pin::as_mut(&mut next).poll(&mut context).is_pending() {
                break;
            }
            done += 1;
        }
        done
    }

    #[test]
    fn chunks_alternate_with_steps_of_running_answers() {
        let turns = Turns::default();
        let mut prompt = turns.prompt(0);
        assert_eq!(run(&mut prompt, 3), 3, "nothing else runs");
        let answer = turns.decoding();
        assert_eq!(run(&mut prompt, 3), 1);
        assert_eq!(run(&mut prompt, 3), 0, "the answer is due");
        let other = turns.decoding();
        assert_eq!(run(&mut prompt, 3), 0, "another answer changes nothing");
        answer.stepped();
        assert_eq!(run(&mut prompt, 3), 1);
        drop(answer);
        assert_eq!(run(&mut prompt, 3), 0);
        other.stepped();
        other.stepped();
        assert_eq!(run(&mut prompt, 3), 1, "one chunk, however many steps");
        drop(other);
        assert_eq!(run(&mut prompt, 3), 3);
    }

    #[test]
    fn prompts_take_turns_by_priority_then_by_what_they_have_got() {
        let turns = Turns::default();
        let answer = turns.decoding();
        let mut long = turns.prompt(0);
        let mut late = turns.prompt(0);
        let mut urgent = turns.prompt(1);
        assert_eq!(run(&mut long, 9), 1);
        let mut order = Vec::new();
        for _ in 0..5 {
            answer.stepped();
            // All of them wait before any may run.
            turns.0.borrow_mut().has_stepped = false;
            for prompt in [&mut long, &mut late, &mut urgent] {
                assert_eq!(run(prompt, 1), 0);
            }
            turns.0.borrow_mut().has_stepped = true;
            let urgent_runs = order.len() < 2;
            order.push(match (urgent_runs, run(&mut long, 1), run(&mut late, 1)) {
                (true, 0, 0) => run(&mut urgent, 1) * 3,
                (_, long, late) => long + 2 * late,
            });
            if order.len() == 2 {
                drop(std::mem::replace(&mut urgent, turns.prompt(-1)));
            }
        }
        // The long prompt had a chunk before the late one came.
        assert_eq!(order, [3, 3, 2, 1, 2]);
    }

    #[test]
    fn a_dropped_prompt_does_not_block_the_next() {
        let turns = Turns::default();
        let answer = turns.decoding();
        let mut first = turns.prompt(5);
        assert_eq!(run(&mut first, 2), 1);
        let mut second = turns.prompt(0);
        assert_eq!(run(&mut second, 1), 0);
        answer.stepped();
        assert_eq!(run(&mut second, 1), 0, "the first is ahead");
        drop(first);
        assert_eq!(run(&mut second, 1), 1);
    }
}
