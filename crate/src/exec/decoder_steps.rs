//! Plans the steps of a decoder by key: which graph, how many rows, how many positions.

use super::logits_pipeline::{LogitsPipeline, MAX_STOP_TOKENS, ROW_RING_LEN, TOKEN_RING_LEN};
use super::planned_graph::{LoadPlans, PlannedGraph, StepPlan};
use super::program_key::{ContextClass, ProgramKey, ProgramStep, PromptClass};
use crate::device::Caps;
use crate::ir::{Graph, WeightKind};
use crate::kernels::Launch;
use crate::kernels::kv_splits::{DecodeTiling, SHORT_BATCH_CONTEXT, SHORT_CONTEXT};
use crate::kernels::sample::{
    AdvanceBuffers, DRAFT_ROWS, accept, advance_rows, argmax_rows, draft, slices,
};
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::{Fusions, Plan, Slot, StepKind, add_prefetch_routers, fuse};
use crate::{Error, Result};

/// Plans the steps of a decoder.
pub struct DecoderSteps {
    /// Tokens of one prefill step.
    pub chunk: usize,
    /// The graph of a decode step.
    decode: Graph,
}

impl DecoderSteps {
    /// Derives the graph of a decode step. With `prefetch`, it predicts the experts of the next
    /// layer where experts are paged.
    pub fn new(planned: &PlannedGraph, chunk: usize, prefetch: bool) -> Self {
        let pages_experts = planned
            .weights
            .values()
            .any(|w| w.is_paged() && matches!(w.kind, WeightKind::Experts { .. }));
        let few = fuse::few_rows(planned.graph.clone(), planned.fusions);
        Self {
            chunk,
            decode: if prefetch && pages_experts {
                add_prefetch_routers(few)
            } else {
                few
            },
        }
    }

    /// The programs that the first token needs. Paged weights divide decode steps, which a session
    /// must know from the beginning.
    pub fn first(&self, planned: &PlannedGraph, caps: &Caps) -> Vec<ProgramKey> {
        let mut keys = vec![ProgramKey::PREFILL, ProgramKey::GREEDY];
        // The largest tiles would be mostly empty.
        if self.chunk > MatrixTiling::TALL_TILE_ROWS && MatrixTiling::is_tall(caps) {
            keys.push(ProgramKey::PREFILL_MEDIUM);
        }
        if planned.is_paged() {
            keys.extend(decode_keys(planned, caps));
        }
        keys
    }

    /// The other programs that the first answer needs, in the order in which it does.
    fn later(planned: &PlannedGraph, caps: &Caps) -> &'static [ProgramKey] {
        match planned.is_paged() {
            true => &[],
            false => decode_keys(planned, caps),
        }
    }

    /// Plans the programs of a load.
    ///
    /// # Errors
    /// `Internal` when no kernel supports a node.
    pub fn load_plans(&self, planned: &PlannedGraph, caps: &Caps) -> Result<LoadPlans> {
        let plan = |key: &ProgramKey| Ok((*key, self.plan(planned, caps, *key)?));
        let plans = |keys: &[ProgramKey]| keys.iter().map(plan).collect::<Result<_>>();
        Ok(LoadPlans {
            first: plans(&self.first(planned, caps))?,
            later: plans(Self::later(planned, caps))?,
        })
    }

    /// Plans a step.
    ///
    /// # Errors
    /// `Internal` when no kernel supports a node.
    pub fn plan(&self, planned: &PlannedGraph, caps: &Caps, key: ProgramKey) -> Result<StepPlan> {
        let capacity = planned.capacity;
        let prefill =
            |rows: usize| planned.plan(caps, &planned.graph, StepKind::Prefill(rows), capacity);
        let decode =
            |positions: usize| planned.plan(caps, &self.decode, StepKind::Decode(1), positions);
        match key.step {
            ProgramStep::Decode(ContextClass::Full) => decode(capacity),
            ProgramStep::Decode(ContextClass::Short) => decode(SHORT_CONTEXT as usize),
            ProgramStep::Prefill(PromptClass::Full) => prefill(self.chunk),
            ProgramStep::Prefill(PromptClass::Medium) => prefill(MatrixTiling::TALL_TILE_ROWS),
            ProgramStep::Prefill(PromptClass::Short) => prefill(MatrixTiling::short_rows(caps)),
            ProgramStep::Verify => verify(planned, caps),
            ProgramStep::VerifyProposed => verify_rows(planned, caps),
            ProgramStep::AdvanceStates => advance_states(planned, caps),
            ProgramStep::DraftBegin { rows } => draft_begin(planned, caps, rows),
            ProgramStep::DecodeBatch { rows, context } => batch(planned, caps, rows, context),
            ProgramStep::GreedyRows { .. } => Ok(greedy_rows(planned)),
            ProgramStep::Greedy => greedy(planned, caps, None),
            ProgramStep::AppendHistory => greedy(planned, caps, Some(Slot::History)),
            ProgramStep::Rows { .. } => Err(Error::Internal("a decoder has no plain rows".into())),
        }
    }
}

/// The decode steps of a device, the one for short contexts first.
pub fn decode_keys(planned: &PlannedGraph, caps: &Caps) -> &'static [ProgramKey] {
    let fewer_dispatches = caps.dispatch_is_expensive() || DecodeTiling::fuses_reduce(caps);
    match fewer_dispatches && planned.capacity > SHORT_CONTEXT as usize {
        true => &[ProgramKey::DECODE_SHORT, ProgramKey::DECODE],
        false => &[ProgramKey::DECODE],
    }
}

fn greedy(planned: &PlannedGraph, caps: &Caps, history: Option<Slot>) -> Result<StepPlan> {
    let vocabulary = planned.output_cols() as u32;
    let plan = LogitsPipeline::greedy().plan(vocabulary, history, caps.dispatch_is_expensive())?;
    Ok(StepPlan::without_weights(plan))
}

/// Runs the next token of each of several sequences. Tiled matmuls take norms only if they quantize
/// their input, which the plan decides.
fn batch(
    planned: &PlannedGraph,
    caps: &Caps,
    rows: usize,
    context: ContextClass,
) -> Result<StepPlan> {
    let kind = StepKind::DecodeBatch(rows);
    let fusions = Fusions {
        norm: planned.fusions.norm && kind.uses_gemv(),
        ..planned.fusions
    };
    let graph = fuse::few_rows(planned.graph.clone(), fusions);
    let positions = match context {
        ContextClass::Full => planned.capacity,
        ContextClass::Short => planned.capacity.min(SHORT_BATCH_CONTEXT as usize),
    };
    planned.plan(caps, &graph, kind, positions)
}

fn greedy_rows(planned: &PlannedGraph) -> StepPlan {
    let vocabulary = planned.output_cols() as u32;
    let advance = AdvanceBuffers {
        candidates: Slot::ArgmaxPartials,
        slices: slices(vocabulary),
        stops: Slot::Stops,
        stop_count: MAX_STOP_TOKENS as u32,
        state: Slot::CURSOR,
        ids: Slot::Ids,
        tokens: Slot::Tokens,
        ring: ROW_RING_LEN,
        counts: None,
        history: None,
        vocabulary: None,
    };
    let argmax = argmax_rows(Slot::Output, Slot::ArgmaxPartials, vocabulary, Slot::CURSOR);
    StepPlan::without_weights(Plan::sampling(vec![argmax, advance_rows(advance, None)]))
}

/// Runs the last token with drafts.
fn verify_rows(planned: &PlannedGraph, caps: &Caps) -> Result<StepPlan> {
    let graph = fuse::few_rows(planned.graph.clone(), planned.fusions);
    let rows = StepKind::Decode(DRAFT_ROWS as usize);
    planned.plan(caps, &graph, rows, planned.capacity)
}

/// Updates the recurrent states with the accepted rows of [`verify_rows`].
fn advance_states(planned: &PlannedGraph, caps: &Caps) -> Result<StepPlan> {
    let mut step = verify_rows(planned, caps)?;
    step.plan.launches = std::mem::take(&mut step.plan.state_updates);
    Ok(step)
}

/// Runs the last tokens of a draft model, for the logits of the last.
fn draft_begin(planned: &PlannedGraph, caps: &Caps, rows: usize) -> Result<StepPlan> {
    let graph = fuse::few_rows_to_last(planned.graph.clone(), planned.fusions);
    let rows = StepKind::Decode(rows);
    planned.plan(caps, &graph, rows, planned.capacity)
}

/// Finds the largest logits of the rows of a step with drafts and accepts them; see [`accept`].
pub fn accept_greedily(
    vocabulary: u32,
    history: Option<Slot>,
    forced: Option<u32>,
) -> [Launch<Slot>; 2] {
    let buffers = AdvanceBuffers {
        candidates: Slot::ArgmaxPartials,
        slices: slices(vocabulary),
        stops: Slot::Stops,
        stop_count: MAX_STOP_TOKENS as u32,
        state: Slot::CURSOR,
        ids: Slot::Ids,
        tokens: Slot::Tokens,
        ring: TOKEN_RING_LEN,
        counts: None,
        history,
        vocabulary: None,
    };
    [
        argmax_rows(Slot::Output, Slot::ArgmaxPartials, vocabulary, Slot::CURSOR),
        accept(buffers, forced),
    ]
}

/// Runs the last token with drafts, which the GPU looks up before and accepts after. Then recurrent
/// states take the accepted rows.
fn verify(planned: &PlannedGraph, caps: &Caps) -> Result<StepPlan> {
    let mut step = verify_rows(planned, caps)?;
    let updates = std::mem::take(&mut step.plan.state_updates);
    let vocabulary = step.plan.output_cols as u32;
    let launches = &mut step.plan.launches;
    launches.insert(0, draft(Slot::History, Slot::CURSOR, Slot::Ids));
    launches.extend(accept_greedily(vocabulary, Some(Slot::History), None));
    launches.extend(updates);
    Ok(step)
}
