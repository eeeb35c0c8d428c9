//! The stages between the logits of a step and the next token: their kernels, buffers and host
//! input. The kernels are described in shaders/sample.

use crate::Result;
use crate::kernels::sample::{
    AdvanceBuffers, CANDIDATE_SLOT_WORDS, CandidateSlots, DRAFT_ROWS, LogitBuffers,
    MAX_CANDIDATE_TOP_K, MAX_VOCABULARY, SETTINGS_BYTES, SampleKernels, SampledRow, advance,
    advance_drafted, advance_rows, argmax, bias, list_candidates, mask_words, needs_adjust,
    runs_on_gpu, settings, slices, work_bytes,
};
use crate::plan::{Plan, Slot};
use crate::sample::{Sampler, SamplingParams, TokenLimits};

/// Maximum steps of one submission; two submissions are in flight.
pub(super) const MAX_BATCH_STEPS: usize = 16;
/// Batches grow while they complete faster than this, and shrink when they take twice as long. Text
/// then streams smoothly on slow devices, and fast ones do not wait for readbacks. Milliseconds.
pub(super) const TARGET_BATCH_MS: f64 = 25.0;
/// Capacity of the GPU's token ring: the tokens of the longest batch of steps with drafts.
pub(super) const TOKEN_RING_LEN: u32 = MAX_BATCH_STEPS as u32 * DRAFT_ROWS;
/// Capacity of the ring of a batched step's row: the tokens of the longest batch of steps.
pub(super) const ROW_RING_LEN: u32 = MAX_BATCH_STEPS as u32;
/// Bytes of the ring and of the words after it: tokens, stop flag, drafts, accepted drafts.
pub(super) const TOKEN_RING_BYTES: u64 = (TOKEN_RING_LEN as u64 + 4) * 4;
/// Words of [`Slot::Candidates`] before its slots: a copy of [`Slot::Tokens`].
const CANDIDATES_HEAD: u32 = TOKEN_RING_LEN + 4;
/// Steps whose candidates are stored; more than are ever in flight under a guessed mask.
const CANDIDATE_SLOTS: u32 = 32;
/// Bytes of [`Slot::Candidates`].
pub(super) const CANDIDATES_BYTES: u64 =
    (CANDIDATES_HEAD + CANDIDATE_SLOTS * CANDIDATE_SLOT_WORDS) as u64 * 4;
/// Maximum stop tokens that the GPU compares with.
pub(super) const MAX_STOP_TOKENS: usize = 64;

/// A stage between the logits and the next token, in the order of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsStage {
    /// Adds the logit bias.
    Bias,
    /// Applies the repetition, frequency and presence penalties.
    Penalties,
    /// Bans the tokens without a bit in the mask that the host writes before each step.
    Mask,
    /// Applies temperature, top-k, top-p and min-p.
    Filters,
    /// Chooses a random token among those that pass the filters.
    Sample,
    /// Lists the most likely tokens, from which the host tells what another mask would have given.
    Candidates,
    /// Chooses the token with the largest logit.
    Argmax,
    /// Makes the token the next step's input and advances the state.
    Advance,
}

impl LogitsStage {
    /// Returns the buffers that it needs besides the model's, with their bytes.
    fn buffers(self, vocabulary: u32) -> Vec<(Slot, u64)> {
        let row = u64::from(vocabulary) * 4;
        // The kernel of these stages writes scores and, for the filters, the extremes of each block.
        let scores = [
            (Slot::Sampling, SETTINGS_BYTES),
            (Slot::SamplerScratch, work_bytes(vocabulary)),
            (Slot::AdjustedLogits, row),
        ];
        match self {
            Self::Bias => [&scores[..], &[(Slot::Bias, row)]].concat(),
            Self::Penalties => [&scores[..], &[(Slot::Counts, row)]].concat(),
            Self::Mask => {
                let bytes = mask_words(vocabulary) as u64 * 4;
                [&scores[..], &[(Slot::TokenMask, bytes)]].concat()
            }
            Self::Filters => scores[..2].to_vec(),
            Self::Sample => vec![(Slot::SampledToken, 16)],
            Self::Candidates => vec![(Slot::Candidates, CANDIDATES_BYTES)],
            Self::Argmax | Self::Advance => vec![],
        }
    }

    /// Returns the words that the host writes once, before the first token of a request.
    fn request_input(self, sampler: &Sampler, vocabulary: u32) -> Vec<(Slot, Vec<u32>)> {
        let params = sampler.params();
        let settings = || {
            (
                Slot::Sampling,
                settings(params, sampler.seed(), vocabulary).into(),
            )
        };
        match self {
            Self::Bias => {
                let words = bias(params, vocabulary).into_iter().map(f32::to_bits);
                vec![(Slot::Bias, words.collect())]
            }
            Self::Penalties => vec![settings(), (Slot::Counts, sampler.counts().to_vec())],
            // The first kernel reads a constant of the settings.
            Self::Mask | Self::Filters => vec![settings()],
            Self::Sample | Self::Candidates | Self::Argmax | Self::Advance => vec![],
        }
    }

    /// Returns the buffer that the host writes before each step, if any.
    fn step_input(self) -> Option<Slot> {
        (self == Self::Mask).then_some(Slot::TokenMask)
    }

    /// Whether it changes the logits; these stages share one kernel.
    fn adjusts_logits(self) -> bool {
        matches!(self, Self::Bias | Self::Penalties | Self::Mask)
    }
}

/// The stages from the logits of a step to the next token, for the parameters of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitsPipeline {
    stages: Vec<LogitsStage>,
}

impl LogitsPipeline {
    /// The pipeline that chooses the largest logit.
    pub fn greedy() -> Self {
        Self {
            stages: vec![LogitsStage::Argmax, LogitsStage::Advance],
        }
    }

    /// Returns the pipeline of a request; `None` if it must be sampled on the CPU. `masked` adds a
    /// token mask.
    pub fn for_params(params: &SamplingParams, vocabulary: usize, masked: bool) -> Option<Self> {
        let adjusted = needs_adjust(params);
        let greedy = params.is_greedy();
        if greedy && !adjusted && !masked && params.rules.is_empty() {
            return Some(Self::greedy());
        }
        let is_supported = params.rules.is_empty()
            && vocabulary <= MAX_VOCABULARY
            && (greedy || runs_on_gpu(params));
        if !is_supported {
            return None;
        }
        let stages = [
            (LogitsStage::Bias, adjusted),
            (LogitsStage::Penalties, adjusted),
            (LogitsStage::Mask, masked),
            (LogitsStage::Filters, !greedy),
            (LogitsStage::Sample, !greedy),
            (LogitsStage::Argmax, greedy),
            (LogitsStage::Advance, true),
        ];
        let stages = stages.into_iter().filter(|(_, wanted)| *wanted);
        Some(Self {
            stages: stages.map(|(stage, _)| stage).collect(),
        })
    }

    /// Adds the list of the most likely tokens, if the parameters have a top-k that fits into it and
    /// tokens are sampled under a mask.
    pub(super) fn with_candidates(mut self, params: &SamplingParams, vocabulary: usize) -> Self {
        let fits = (1..=MAX_CANDIDATE_TOP_K).contains(&params.top_k)
            && (params.top_k as usize) < vocabulary;
        let sample = self
            .stages
            .iter()
            .position(|stage| *stage == LogitsStage::Sample);
        if let Some(at) = sample.filter(|_| fits && self.has(LogitsStage::Mask)) {
            self.stages.insert(at + 1, LogitsStage::Candidates);
        }
        self
    }

    /// The candidates of the token at `step`, from the words of [`Slot::Candidates`].
    pub(super) fn candidates_at(words: &[u32], step: usize) -> Vec<(u32, f32)> {
        let slots = words.get(CANDIDATES_HEAD as usize..).unwrap_or_default();
        let slot = slots
            .chunks_exact(CANDIDATE_SLOT_WORDS as usize)
            .nth(step % CANDIDATE_SLOTS as usize);
        let Some([count, pairs @ ..]) = slot else {
            return Vec::new();
        };
        let pairs = pairs.chunks_exact(2).take(*count as usize);
        pairs
            .map(|pair| (pair[0], f32::from_bits(pair[1])))
            .collect()
    }

    /// The stages in order.
    pub fn stages(&self) -> &[LogitsStage] {
        &self.stages
    }

    /// Whether it has a stage.
    pub fn has(&self, stage: LogitsStage) -> bool {
        self.stages.contains(&stage)
    }

    /// The buffer that the host must write before the sampling of each step. Without one, steps can
    /// be submitted ahead.
    pub fn host_input(&self) -> Option<Slot> {
        self.stages.iter().find_map(|stage| stage.step_input())
    }

    /// Whether tokens are chosen from other scores than the logits.
    pub(super) fn adjusts_logits(&self) -> bool {
        self.stages.iter().any(|stage| stage.adjusts_logits())
    }

    /// What may ban tokens.
    pub(super) fn token_limits(&self) -> TokenLimits {
        TokenLimits {
            grammar: self.has(LogitsStage::Mask),
            bias: self.has(LogitsStage::Bias),
            ..TokenLimits::default()
        }
    }

    /// Returns the buffers that it needs besides the model's, with their bytes.
    pub(super) fn buffers(&self, vocabulary: u32) -> Vec<(Slot, u64)> {
        let all = self.stages.iter();
        all.flat_map(|stage| stage.buffers(vocabulary)).collect()
    }

    /// Returns the words that the host writes before the first token of a request.
    pub(super) fn request_input(
        &self,
        sampler: &Sampler,
        vocabulary: u32,
    ) -> Vec<(Slot, Vec<u32>)> {
        let mut inputs: Vec<(Slot, Vec<u32>)> = Vec::new();
        for stage in &self.stages {
            for (slot, words) in stage.request_input(sampler, vocabulary) {
                if !inputs.iter().any(|(known, _)| *known == slot) {
                    inputs.push((slot, words));
                }
            }
        }
        let settings = inputs.iter_mut().find(|(slot, _)| *slot == Slot::Sampling);
        if let Some((_, words)) = settings.filter(|_| self.has(LogitsStage::Candidates)) {
            list_candidates(words);
        }
        inputs
    }

    /// Plans its kernels. [`Self::greedy`] can append tokens to `history`. If dispatches are
    /// expensive, argmax takes none of its own.
    pub fn plan(
        &self,
        vocabulary: u32,
        history: Option<Slot>,
        dispatch_is_expensive: bool,
    ) -> Result<Plan> {
        self.plan_for(
            vocabulary,
            SampledRow::Single,
            history,
            dispatch_is_expensive,
        )
    }

    /// Plans its kernels for one row of a batched step, with buffers of its own except the logits,
    /// the row table, and the ids and tokens of all rows; or for one row of a step with drafts,
    /// with the buffers of its sequence.
    pub fn plan_row(&self, vocabulary: u32, row: SampledRow) -> Result<Plan> {
        self.plan_for(vocabulary, row, None, false)
    }

    fn plan_for(
        &self,
        vocabulary: u32,
        row: SampledRow,
        history: Option<Slot>,
        dispatch_is_expensive: bool,
    ) -> Result<Plan> {
        let penalties = self.has(LogitsStage::Penalties);
        let adjusts = self.adjusts_logits();
        let index = match row {
            SampledRow::Single => 0,
            SampledRow::Batched(row) | SampledRow::Drafted(row) => row,
        };
        let kernels = SampleKernels {
            label: "draw".into(),
            vocabulary,
            logits: Slot::Output,
            offset: index * vocabulary.next_multiple_of(4),
            row,
            sampling: Slot::Sampling,
            work: Slot::SamplerScratch,
            state: Slot::CURSOR,
            sampled: Slot::SampledToken,
            adjust: penalties.then_some(LogitBuffers {
                counts: Slot::Counts,
                bias: Slot::Bias,
            }),
            mask: self.host_input(),
            adjusted: Slot::AdjustedLogits,
            candidates: self.has(LogitsStage::Candidates).then_some(CandidateSlots {
                buffer: Slot::Candidates,
                first: CANDIDATES_HEAD,
                count: CANDIDATE_SLOTS,
            }),
        };
        let scores = if adjusts {
            Slot::AdjustedLogits
        } else {
            Slot::Output
        };
        let mut advancing = AdvanceBuffers {
            candidates: Slot::SampledToken,
            slices: 1,
            stops: Slot::Stops,
            stop_count: MAX_STOP_TOKENS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: match row {
                SampledRow::Batched(_) => ROW_RING_LEN,
                SampledRow::Single | SampledRow::Drafted(_) => TOKEN_RING_LEN,
            },
            // The sample stage counts its token itself.
            counts: (penalties && self.has(LogitsStage::Argmax)).then_some(Slot::Counts),
            history,
            vocabulary: None,
        };
        let mut launches = Vec::new();
        if adjusts || self.has(LogitsStage::Filters) {
            launches.push(kernels.adjustment());
        }
        for stage in &self.stages {
            match stage {
                // Part of another stage's kernel.
                LogitsStage::Bias
                | LogitsStage::Penalties
                | LogitsStage::Mask
                | LogitsStage::Candidates => {}
                LogitsStage::Filters => launches.extend(kernels.filters()),
                LogitsStage::Sample => launches.push(kernels.select()),
                LogitsStage::Argmax if dispatch_is_expensive => {
                    advancing.candidates = scores;
                    advancing.slices = 0;
                    advancing.vocabulary = Some(vocabulary);
                }
                LogitsStage::Argmax => {
                    launches.push(argmax(scores, Slot::ArgmaxPartials, vocabulary));
                    advancing.candidates = Slot::ArgmaxPartials;
                    advancing.slices = slices(vocabulary);
                }
                LogitsStage::Advance => launches.push(match row {
                    SampledRow::Single => advance(advancing.clone()),
                    SampledRow::Batched(row) => advance_rows(advancing.clone(), Some(row)),
                    SampledRow::Drafted(row) => advance_drafted(advancing.clone(), row),
                }),
            }
        }
        Ok(Plan::sampling(launches))
    }
}
