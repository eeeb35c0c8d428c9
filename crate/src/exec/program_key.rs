//! Keys of a runner's programs.

use crate::kernels::kv_splits::SHORT_BATCH_CONTEXT;
use crate::kernels::sample::DRAFT_ROWS;

/// Names a program of a runner: the step that it runs and the overlay whose weights it reads first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramKey {
    /// The step.
    pub step: ProgramStep,
    /// The overlay.
    pub overlay: Option<OverlayId>,
}

/// An overlay of a model: weights that extend or replace the model's, such as an adapter's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverlayId(pub(super) usize);

/// What a program runs. The graph follows from the step: a decoder derives one for few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramStep {
    /// One token of a sequence.
    Decode(ContextClass),
    /// Tokens of a prompt.
    Prefill(PromptClass),
    /// The last token with drafts of its continuation: from draft tokens to accepted tokens.
    Verify,
    /// The last token with tokens that a draft model proposes: their logits.
    VerifyProposed,
    /// Advances the recurrent states by the accepted rows of [`Self::VerifyProposed`].
    AdvanceStates,
    /// The last tokens, in a draft model: the logits of the last.
    DraftBegin {
        /// Maximum tokens.
        rows: usize,
    },
    /// The next token of each of several sequences.
    DecodeBatch {
        /// Maximum sequences.
        rows: usize,
        /// Context length of the longest.
        context: ContextClass,
    },
    /// Greedy sampling of each row of a batched step.
    GreedyRows {
        /// Maximum sequences.
        rows: usize,
    },
    /// Greedy sampling of the next token.
    Greedy,
    /// Greedy sampling that appends the token to the lookup history.
    AppendHistory,
    /// Rows without a sequence, or of packed sequences.
    Rows {
        /// Maximum rows.
        most: usize,
        /// Whether it has an output buffer of its own.
        has_output: bool,
    },
}

/// Context length that a decode program supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContextClass {
    /// The model's capacity.
    Full,
    /// Up to [`SHORT_CONTEXT`](crate::kernels::kv_splits::SHORT_CONTEXT) positions, or
    /// [`SHORT_BATCH_CONTEXT`] in a batched step, with fewer dispatches.
    Short,
}

/// Rows that a prefill program supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PromptClass {
    /// A chunk.
    Full,
    /// Up to [`TALL_TILE_ROWS`](crate::kernels::subgroup_matrix::MatrixTiling::TALL_TILE_ROWS):
    /// larger prompts use larger tiles.
    Medium,
    /// A later turn of a chat, with the smallest tiles.
    Short,
}

impl ProgramKey {
    /// The decode step at any context length.
    pub const DECODE: Self = Self::of(ProgramStep::Decode(ContextClass::Full));
    /// The decode step at short context.
    pub const DECODE_SHORT: Self = Self::of(ProgramStep::Decode(ContextClass::Short));
    /// The prefill step for a chunk.
    pub const PREFILL: Self = Self::of(ProgramStep::Prefill(PromptClass::Full));
    /// The prefill step for medium prompts.
    pub const PREFILL_MEDIUM: Self = Self::of(ProgramStep::Prefill(PromptClass::Medium));
    /// The prefill step for short prompts.
    pub const PREFILL_SHORT: Self = Self::of(ProgramStep::Prefill(PromptClass::Short));
    /// Verification of drafts.
    pub const VERIFY: Self = Self::of(ProgramStep::Verify);
    /// Logits of tokens that a draft model proposes.
    pub const VERIFY_PROPOSED: Self = Self::of(ProgramStep::VerifyProposed);
    /// Update of the recurrent states after [`Self::VERIFY_PROPOSED`].
    pub const ADVANCE_STATES: Self = Self::of(ProgramStep::AdvanceStates);
    /// Greedy sampling.
    pub const GREEDY: Self = Self::of(ProgramStep::Greedy);
    /// Greedy sampling with a lookup history.
    pub const APPEND_HISTORY: Self = Self::of(ProgramStep::AppendHistory);

    /// The program of a step with the model's own weights.
    pub const fn of(step: ProgramStep) -> Self {
        Self {
            step,
            overlay: None,
        }
    }

    /// The same step with an overlay, or without.
    pub const fn with_overlay(self, overlay: Option<OverlayId>) -> Self {
        Self { overlay, ..self }
    }

    /// First step of a draft model.
    pub const fn draft_begin(rows: usize) -> Self {
        Self::of(ProgramStep::DraftBegin { rows })
    }

    /// The batched decode step for a number of sequences of at most `positions` positions.
    pub const fn decode_batch(sequences: usize, positions: usize) -> Self {
        let rows = sequences.next_power_of_two();
        let context = if positions <= SHORT_BATCH_CONTEXT as usize {
            ContextClass::Short
        } else {
            ContextClass::Full
        };
        Self::of(ProgramStep::DecodeBatch { rows, context })
    }

    /// Greedy sampling after [`Self::decode_batch`].
    pub const fn greedy_rows(sequences: usize) -> Self {
        let rows = sequences.next_power_of_two();
        Self::of(ProgramStep::GreedyRows { rows })
    }

    /// At most this many rows without a sequence, or of packed sequences.
    pub const fn rows(most: usize, has_output: bool) -> Self {
        Self::of(ProgramStep::Rows { most, has_output })
    }

    /// The name of the program and its buffers in GPU tools.
    pub fn label(self) -> &'static str {
        match self.step {
            ProgramStep::Decode(_) => "decode",
            ProgramStep::Prefill(PromptClass::Short) => "short prefill",
            ProgramStep::Prefill(_) => "prefill",
            ProgramStep::Verify | ProgramStep::VerifyProposed | ProgramStep::AdvanceStates => {
                "drafts"
            }
            ProgramStep::DraftBegin { .. } => "draft",
            ProgramStep::DecodeBatch { .. } => "batched decode",
            ProgramStep::GreedyRows { .. } => "sample rows",
            ProgramStep::Greedy | ProgramStep::AppendHistory => "sample",
            ProgramStep::Rows { .. } => "rows",
        }
    }

    /// Rows of the grids that a step of a sequence records.
    pub fn recorded_rows(self) -> usize {
        match self.step {
            ProgramStep::Verify | ProgramStep::VerifyProposed => DRAFT_ROWS as usize,
            ProgramStep::DraftBegin { rows }
            | ProgramStep::DecodeBatch { rows, .. }
            | ProgramStep::GreedyRows { rows } => rows,
            _ => 1,
        }
    }

    /// Whether it has an output buffer of its own. The others write to the session's.
    pub fn has_output(self) -> bool {
        match self.step {
            ProgramStep::Verify | ProgramStep::VerifyProposed => true,
            ProgramStep::Rows { has_output, .. } => has_output,
            _ => false,
        }
    }

    /// Whether it runs rows without a sequence, or of packed sequences.
    fn is_rows(self) -> bool {
        matches!(self.step, ProgramStep::Rows { .. })
    }

    /// Whether it reads or writes the states of a sequence.
    pub fn uses_states(self) -> bool {
        matches!(
            self.step,
            ProgramStep::Decode(_)
                | ProgramStep::Prefill(_)
                | ProgramStep::Verify
                | ProgramStep::VerifyProposed
                | ProgramStep::AdvanceStates
                | ProgramStep::DraftBegin { .. }
        )
    }

    /// The program whose temporary buffers it uses where they are large enough: the two never run
    /// concurrently.
    pub fn shares_buffers_with(self) -> Option<Self> {
        match self.step {
            ProgramStep::Decode(ContextClass::Short) => Some(Self::DECODE),
            ProgramStep::Decode(ContextClass::Full) if self.overlay.is_none() => {
                Some(Self::DECODE_SHORT)
            }
            ProgramStep::Prefill(PromptClass::Medium) => Some(Self::PREFILL),
            // It reads what the verification has left there.
            ProgramStep::AdvanceStates => Some(Self::VERIFY_PROPOSED.with_overlay(self.overlay)),
            step if self.overlay.is_some() && (!self.has_output() || self.is_rows()) => {
                Some(Self::of(step))
            }
            _ => None,
        }
    }
}
