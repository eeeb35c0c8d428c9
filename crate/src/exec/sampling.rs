//! Picking tokens on the GPU: the kernels that a request's parameters want, their buffers, and what is written before the
//! first token. What the kernels compute is told in shaders/sample.

use super::decode::MAX_BATCH;
use super::model::Model;
use super::step::{Step, compile};
use crate::gpu::{Backend, Usage};
use crate::kernels::Launch;
use crate::kernels::sample::{
    Adjust, Advance, GUESSED_ROWS, MAX_VOCABULARY, SETTINGS_BYTES, Sample, advance, argmax, bias, needs_adjust,
    runs_on_gpu, settings, slices, status, work_bytes,
};
use crate::plan::{Plan, Slot};
use crate::sample::{Params, Sampler};
use crate::{Error, Result};

/// Sampled tokens that the GPU holds before the first is overwritten: those of the longest batch of steps with guesses.
pub(super) const RING: u32 = MAX_BATCH as u32 * GUESSED_ROWS;
/// Bytes of the ring and of the words after it: tokens, whether it stopped, guesses, guesses that held.
pub(super) const RING_BYTES: u64 = (RING as u64 + 4) * 4;
/// Stop tokens that the GPU compares with.
pub(super) const MAX_STOPS: usize = 64;

/// What follows the logits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The largest logit.
    Greedy,
    /// The largest after bias and penalties.
    GreedyAdjusted,
    /// A draw.
    Draw,
    /// A draw after bias and penalties.
    DrawAdjusted,
}

impl Tail {
    /// The kernels for a request; none where only the CPU can pick.
    pub fn of(params: &Params, vocabulary: usize) -> Option<Self> {
        let adjust = needs_adjust(params);
        match (params.is_greedy(), adjust) {
            (true, false) => Some(Tail::Greedy),
            _ if vocabulary > MAX_VOCABULARY => None,
            (true, true) => Some(Tail::GreedyAdjusted),
            (false, _) if !runs_on_gpu(params) => None,
            (false, false) => Some(Tail::Draw),
            (false, true) => Some(Tail::DrawAdjusted),
        }
    }

    /// Its kernels; the greedy one may keep the tokens in a history.
    pub(super) fn plan(self, vocabulary: u32, history: Option<Slot>) -> Result<Plan> {
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
        let best_of = |scores| argmax(scores, Slot::Candidates, vocabulary);
        let (mut launches, picked): (Vec<Launch<Slot>>, bool) = match self {
            Tail::Greedy => (vec![best_of(Slot::Output)], false),
            Tail::GreedyAdjusted => (vec![draw.adjustment(), best_of(Slot::Scores)], false),
            Tail::Draw | Tail::DrawAdjusted => (draw.launches()?.into(), true),
        };
        launches.push(advance(Advance {
            candidates: if picked { Slot::Picked } else { Slot::Candidates },
            slices: if picked { 1 } else { slices(vocabulary) },
            stops: Slot::Stops,
            stop_count: MAX_STOPS as u32,
            state: Slot::CURSOR,
            ids: Slot::Ids,
            tokens: Slot::Tokens,
            ring: RING,
            counts: (self == Tail::GreedyAdjusted).then_some(Slot::Counts),
            history,
        }));
        Ok(Plan { launches, activations: vec![], output: 0, output_cols: 0, rotated: 0, scratch: 0, sorted: 0 })
    }

    /// The buffers it needs beside the model's own, with their bytes.
    fn buffers(self, vocabulary: u32) -> Vec<(Slot, u64)> {
        let draw = [(Slot::Sampling, SETTINGS_BYTES), (Slot::SampleWork, work_bytes(vocabulary)), (Slot::Picked, 16)];
        let adjust = [Slot::Counts, Slot::Bias, Slot::Scores].map(|slot| (slot, u64::from(vocabulary) * 4));
        match self {
            Tail::Greedy => vec![],
            Tail::Draw => draw.to_vec(),
            Tail::GreedyAdjusted | Tail::DrawAdjusted => [draw, adjust].concat(),
        }
    }
}

impl Model {
    /// Makes the kernels for a sampler's parameters ready and writes what they start from; none where only the CPU can
    /// pick.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn prepare_sampling(&mut self, sampler: &Sampler) -> Result<Option<Tail>> {
        let vocabulary = self.vocab() as u32;
        let Some(tail) = Tail::of(sampler.params(), self.vocab()) else { return Ok(None) };
        if tail == Tail::Greedy {
            return Ok(Some(tail));
        }
        if !self.tails.iter().any(|(t, _)| *t == tail) {
            for (slot, bytes) in tail.buffers(vocabulary) {
                if !self.shared.contains_key(&slot) {
                    self.shared.insert(slot, self.gpu.buffer("sampling", bytes, Usage::Storage)?);
                    self.bytes.activations += bytes;
                }
            }
            let plan = tail.plan(vocabulary, None)?;
            let pipelines = compile(&self.gpu, &[&plan]).await?;
            let step = Step::new(&self.gpu, "sample", &plan, &self.shared, &pipelines)?;
            self.tails.push((tail, step));
        }
        let words = settings(sampler.params(), sampler.seed(), vocabulary);
        self.gpu.write(self.buffer(Slot::Sampling)?, 0, bytemuck::cast_slice(&words));
        if needs_adjust(sampler.params()) {
            self.gpu.write(self.buffer(Slot::Counts)?, 0, bytemuck::cast_slice(sampler.counts()));
            let row = bias(sampler.params(), vocabulary);
            self.gpu.write(self.buffer(Slot::Bias)?, 0, bytemuck::cast_slice(&row));
        }
        Ok(Some(tail))
    }

    /// The kernels after the logits; those that draw are there after [`Self::prepare_sampling`].
    pub(super) fn tail(&self, tail: Tail) -> Result<&Step> {
        if tail == Tail::Greedy {
            return Ok(&self.tail);
        }
        let found = self.tails.iter().find(|(t, _)| *t == tail);
        found.map(|(_, step)| step).ok_or_else(|| Error::Internal(format!("{tail:?} was not prepared")))
    }

    /// Why no token could be picked at a step.
    pub(super) async fn sampling_fault(&self, tail: Tail, step: usize) -> Error {
        let hint = "The weights or the driver are damaged; load the model again.".into();
        let unknown = Error::NotFinite { step: format!("token {step}"), hint };
        if !matches!(tail, Tail::Draw | Tail::DrawAdjusted) {
            return unknown;
        }
        let Ok(buffer) = self.buffer(Slot::Picked) else { return unknown };
        match self.gpu.read(buffer, 8, 4).await.map(|bytes| bytemuck::pod_collect_to_vec::<u8, u32>(&bytes)) {
            Ok(words) => status(words[0], step as u32).err().unwrap_or(unknown),
            Err(error) => error,
        }
    }
}
