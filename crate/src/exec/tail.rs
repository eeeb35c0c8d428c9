//! The sampling stage after the logits of a step: kernels for a request's parameters, and their buffers. The kernels
//! are described in shaders/sample.

use crate::Result;
use crate::kernels::Launch;
use crate::kernels::sample::{
    Adjust, Advance, DRAFT_ROWS, MAX_VOCABULARY, SETTINGS_BYTES, Sample, advance, argmax, needs_adjust, runs_on_gpu,
    slices, work_bytes,
};
use crate::plan::{Plan, Slot};
use crate::sample::Params;

/// Maximum steps of one submission; two submissions are in flight.
pub(super) const MAX_BATCH: usize = 16;
/// Capacity of the GPU's token ring: the tokens of the longest batch of steps with drafts.
pub(super) const RING: u32 = MAX_BATCH as u32 * DRAFT_ROWS;
/// Bytes of the ring and of the words after it: tokens, stop flag, drafts, accepted drafts.
pub(super) const RING_BYTES: u64 = (RING as u64 + 4) * 4;
/// Maximum stop tokens that the GPU compares with.
pub(super) const MAX_STOPS: usize = 64;

/// How a token is sampled from the logits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The largest logit.
    Greedy,
    /// The largest logit after bias and penalties.
    GreedyAdjusted,
    /// Random sampling.
    Draw,
    /// Random sampling after bias and penalties.
    DrawAdjusted,
}

impl Tail {
    /// Returns the mode for a request; `None` if it must be sampled on the CPU.
    pub fn of(params: &Params, vocabulary: usize) -> Option<Self> {
        let adjust = needs_adjust(params);
        match (params.is_greedy(), adjust) {
            _ if !params.rules.is_empty() => None,
            (true, false) => Some(Tail::Greedy),
            _ if vocabulary > MAX_VOCABULARY => None,
            (true, true) => Some(Tail::GreedyAdjusted),
            (false, _) if !runs_on_gpu(params) => None,
            (false, false) => Some(Tail::Draw),
            (false, true) => Some(Tail::DrawAdjusted),
        }
    }

    /// Plans its kernels; the greedy mode can append tokens to `history`. If dispatches are expensive (`dear`), argmax
    /// takes one dispatch.
    pub fn plan(self, vocabulary: u32, history: Option<Slot>, dear: bool) -> Result<Plan> {
        let adjusted = matches!(self, Tail::GreedyAdjusted | Tail::DrawAdjusted);
        let adjust = Adjust { counts: Slot::Counts, bias: Slot::Bias, scores: Slot::Scores };
        let draw = Sample {
            label: "draw".into(),
            vocabulary,
            logits: Slot::Output,
            offset: 0,
            sampling: Slot::Sampling,
            work: Slot::SampleWork,
            state: Slot::CURSOR,
            picked: Slot::Picked,
            adjust: adjusted.then_some(adjust),
        };
        let scores = if adjusted { Slot::Scores } else { Slot::Output };
        let (mut launches, picked): (Vec<Launch<Slot>>, bool) = match self {
            Tail::Greedy => (vec![], false),
            Tail::GreedyAdjusted => (vec![draw.adjustment()], false),
            Tail::Draw | Tail::DrawAdjusted => (draw.launches()?.into(), true),
        };
        let (candidates, count) = match (picked, dear) {
            (true, _) => (Slot::Picked, 1),
            (false, true) => (scores, 0),
            (false, false) => {
                launches.push(argmax(scores, Slot::Candidates, vocabulary));
                (Slot::Candidates, slices(vocabulary))
            }
        };
        launches.push(advance(Advance {
            candidates,
            slices: count,
            stops: Slot::Stops,
            stop_count: MAX_STOPS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: RING,
            counts: (self == Tail::GreedyAdjusted).then_some(Slot::Counts),
            history,
            vocabulary: (dear && !picked).then_some(vocabulary),
        }));
        Ok(Plan { launches, activations: vec![], output: 0, output_cols: 0, rotated: 0, scratch: 0, sorted: 0 })
    }

    /// Returns the buffers that it needs in addition to the model's, with their bytes.
    pub(super) fn buffers(self, vocabulary: u32) -> Vec<(Slot, u64)> {
        let draw = [(Slot::Sampling, SETTINGS_BYTES), (Slot::SampleWork, work_bytes(vocabulary)), (Slot::Picked, 16)];
        let adjust = [Slot::Counts, Slot::Bias, Slot::Scores].map(|slot| (slot, u64::from(vocabulary) * 4));
        match self {
            Tail::Greedy => vec![],
            Tail::Draw => draw.to_vec(),
            Tail::GreedyAdjusted | Tail::DrawAdjusted => [draw, adjust].concat(),
        }
    }
}
