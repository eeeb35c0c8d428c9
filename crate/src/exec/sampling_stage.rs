//! The sampling stage after the logits of a step: kernels for a request's parameters, and their
//! buffers. The kernels are described in shaders/sample.

use crate::Result;
use crate::kernels::Launch;
use crate::kernels::sample::{
    AdvanceBuffers, DRAFT_ROWS, LogitBuffers, MAX_VOCABULARY, SETTINGS_BYTES, SampleKernels,
    advance, argmax, needs_adjust, runs_on_gpu, slices, work_bytes,
};
use crate::plan::{Plan, Slot};
use crate::sample::SamplingParams;

/// Maximum steps of one submission; two submissions are in flight.
pub(super) const MAX_BATCH_STEPS: usize = 16;
/// Capacity of the GPU's token ring: the tokens of the longest batch of steps with drafts.
pub(super) const TOKEN_RING_LEN: u32 = MAX_BATCH_STEPS as u32 * DRAFT_ROWS;
/// Bytes of the ring and of the words after it: tokens, stop flag, drafts, accepted drafts.
pub(super) const TOKEN_RING_BYTES: u64 = (TOKEN_RING_LEN as u64 + 4) * 4;
/// Maximum stop tokens that the GPU compares with.
pub(super) const MAX_STOP_TOKENS: usize = 64;

/// How a token is sampled from the logits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingMode {
    /// The largest logit.
    Greedy,
    /// The largest logit after bias and penalties.
    GreedyAdjusted,
    /// Random sampling.
    Random,
    /// Random sampling after bias and penalties.
    RandomAdjusted,
}

impl SamplingMode {
    /// Returns the mode for a request; `None` if it must be sampled on the CPU.
    pub fn for_params(params: &SamplingParams, vocabulary: usize) -> Option<Self> {
        let adjust = needs_adjust(params);
        match (params.is_greedy(), adjust) {
            _ if !params.rules.is_empty() => None,
            (true, false) => Some(SamplingMode::Greedy),
            _ if vocabulary > MAX_VOCABULARY => None,
            (true, true) => Some(SamplingMode::GreedyAdjusted),
            (false, _) if !runs_on_gpu(params) => None,
            (false, false) => Some(SamplingMode::Random),
            (false, true) => Some(SamplingMode::RandomAdjusted),
        }
    }

    /// Plans its kernels; the greedy mode can append tokens to `history`. If dispatches are
    /// expensive (`dear`), argmax takes one dispatch.
    pub fn plan(self, vocabulary: u32, history: Option<Slot>, dear: bool) -> Result<Plan> {
        let adjusted = matches!(
            self,
            SamplingMode::GreedyAdjusted | SamplingMode::RandomAdjusted
        );
        let adjust = LogitBuffers {
            counts: Slot::Counts,
            bias: Slot::Bias,
            adjusted: Slot::AdjustedLogits,
        };
        let draw = SampleKernels {
            label: "draw".into(),
            vocabulary,
            logits: Slot::Output,
            offset: 0,
            sampling: Slot::Sampling,
            work: Slot::SamplerScratch,
            state: Slot::CURSOR,
            sampled: Slot::SampledToken,
            adjust: adjusted.then_some(adjust),
        };
        let scores = if adjusted {
            Slot::AdjustedLogits
        } else {
            Slot::Output
        };
        let (mut launches, picked): (Vec<Launch<Slot>>, bool) = match self {
            SamplingMode::Greedy => (vec![], false),
            SamplingMode::GreedyAdjusted => (vec![draw.adjustment()], false),
            SamplingMode::Random | SamplingMode::RandomAdjusted => (draw.launches()?.into(), true),
        };
        let (candidates, count) = match (picked, dear) {
            (true, _) => (Slot::SampledToken, 1),
            (false, true) => (scores, 0),
            (false, false) => {
                launches.push(argmax(scores, Slot::ArgmaxPartials, vocabulary));
                (Slot::ArgmaxPartials, slices(vocabulary))
            }
        };
        launches.push(advance(AdvanceBuffers {
            candidates,
            slices: count,
            stops: Slot::Stops,
            stop_count: MAX_STOP_TOKENS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: TOKEN_RING_LEN,
            counts: (self == SamplingMode::GreedyAdjusted).then_some(Slot::Counts),
            history,
            vocabulary: (dear && !picked).then_some(vocabulary),
        }));
        Ok(Plan {
            breaks: Vec::new(),
            launches,
            activations: vec![],
            output: 0,
            output_cols: 0,
            roped_queries: 0,
            attention_partials: 0,
            expert_tiles: 0,
        })
    }

    /// Returns the buffers that it needs in addition to the model's, with their bytes.
    pub(super) fn buffers(self, vocabulary: u32) -> Vec<(Slot, u64)> {
        let draw = [
            (Slot::Sampling, SETTINGS_BYTES),
            (Slot::SamplerScratch, work_bytes(vocabulary)),
            (Slot::SampledToken, 16),
        ];
        let adjust = [Slot::Counts, Slot::Bias, Slot::AdjustedLogits]
            .map(|slot| (slot, u64::from(vocabulary) * 4));
        match self {
            SamplingMode::Greedy => vec![],
            SamplingMode::Random => draw.to_vec(),
            SamplingMode::GreedyAdjusted | SamplingMode::RandomAdjusted => [draw, adjust].concat(),
        }
    }
}
