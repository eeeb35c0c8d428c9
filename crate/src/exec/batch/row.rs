//! A sequence of a batch, and its entry in the row table.

use crate::exec::logits_pipeline::LogitsPipeline;
use crate::sample::Sampler;
use std::rc::Rc;

/// A sequence of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(super) u64);

/// Parameters of a sequence's generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceParams<'a> {
    /// Tokens that end the generation.
    pub stops: &'a [u32],
    /// Maximum number of new tokens.
    pub budget: usize,
    /// Sampling parameters and token counts; greedy without.
    pub sampler: Option<&'a Sampler>,
    /// Number of tokens sampled before; it offsets the random number stream.
    pub sampled_before: usize,
    /// Whether the host writes the allowed tokens before each step; requires a sampler.
    pub masked: bool,
}

impl<'a> SequenceParams<'a> {
    /// Greedy decoding of up to `budget` tokens.
    pub fn greedy(budget: usize) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    /// The same with stop tokens.
    pub fn with_stops(self, stops: &'a [u32]) -> Self {
        Self { stops, ..self }
    }
}

/// A sequence in the order of the step's rows.
#[derive(Clone)]
pub struct Row {
    pub id: SequenceId,
    pub slot: usize,
    /// The tokens that the session held.
    pub prompt: Rc<[u32]>,
    /// Tokens that the session held when it joined.
    pub held: usize,
    pub sampled: Vec<u32>,
    pub sampled_before: usize,
    pub stops: Vec<u32>,
    pub budget: usize,
    /// Added to positions to get those in the RoPE tables.
    pub rope_offset: i64,
    pub pipeline: LogitsPipeline,
    /// Whether the states hold its last token too.
    pub last_has_run: bool,
    /// Whether the output has the logits of that token, and nothing was sampled from them yet.
    pub has_logits: bool,
    pub stopped: bool,
}

impl Row {
    /// Whether a token is to be sampled from its logits.
    pub fn is_pending(&self) -> bool {
        self.has_logits && !self.stopped
    }

    /// Whether launches of its own sample its tokens.
    pub fn is_sampled_apart(&self) -> bool {
        self.pipeline != LogitsPipeline::greedy()
    }

    /// Whether the host writes a mask before each of its tokens.
    pub fn has_host_input(&self) -> bool {
        self.pipeline.host_input().is_some()
    }

    /// Tokens that the states hold.
    pub fn positions(&self) -> usize {
        self.held + self.sampled.len() - usize::from(!self.last_has_run)
    }

    /// Number of tokens that its states hold and that `tokens` begin with.
    pub fn common_positions(&self, tokens: &[u32]) -> usize {
        let run = &self.sampled[..self.positions() - self.held];
        let own = self.prompt.iter().chain(run);
        own.zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Notes that a forward pass has run its last token.
    pub fn set_run(&mut self) {
        (self.last_has_run, self.has_logits) = (true, true);
    }

    /// Positions that the states need for `steps` more forward passes.
    pub fn positions_after(&self, steps: usize) -> usize {
        (self.position() + steps).min((self.held + self.budget).saturating_sub(1))
    }

    /// The position in the row table: that of the last token.
    fn position(&self) -> usize {
        self.held + self.sampled.len() - 1
    }

    /// Tokens sampled since the beginning of the random number stream.
    pub fn step(&self) -> usize {
        self.sampled_before + self.sampled.len()
    }

    /// Words of the row table (shaders/common/state.wgsl).
    pub fn words(&self, runs: bool) -> [u32; 8] {
        [
            self.position() as u32,
            self.slot as u32,
            (self.position() as i64 + self.rope_offset) as u32,
            self.step() as u32,
            u32::from(!runs),
            self.budget.saturating_sub(self.sampled.len()) as u32,
            u32::from(self.is_sampled_apart()),
            0,
        ]
    }

    /// Takes the new tokens from the words that the device has written; returns them.
    pub fn take_tokens(&mut self, words: &[u32]) -> Vec<u32> {
        let [ring @ .., count, stopped] = words else {
            return Vec::new();
        };
        let new = self.step()..*count as usize;
        let tokens: Vec<u32> = new.map(|step| ring[step % ring.len()]).collect();
        self.sampled.extend(&tokens);
        self.last_has_run &= tokens.is_empty();
        self.stopped = *stopped != 0;
        tokens
    }
}
