//! Speculative decoding with a draft model (Leviathan et al., 2023): a small model of the same
//! vocabulary proposes tokens, which the target runs in one step. All of it is queued on the device
//! without a readback. The target samples its own token of each row with the random number of its
//! position, and a proposal is accepted if it is that token: the tokens are those without a draft
//! model. The kernels are described in shaders/sample.
//!
//! The draft model may be the multi-token-prediction head of the target's checkpoint (DeepSeek-V3,
//! arXiv 2412.19437): one layer, which reads the target's hidden state of a token and the next
//! token. Row `i` of its KV cache therefore belongs to token `i + 1`.

use super::Session;
use crate::exec::decoder_steps::accept_greedily;
use crate::exec::draft_length::DraftLength;
use crate::exec::logits_pipeline::{LogitsPipeline, LogitsStage, MAX_STOP_TOKENS, TOKEN_RING_LEN};
use crate::exec::model::Model;
use crate::exec::program_key::ProgramKey;
use crate::exec::step::{Buffers, PlanBuffers, Step, state_words};
use crate::gpu::{Backend, Command};
use crate::kernels::elementwise::{CopiedRows, copy_rows};
use crate::kernels::matmul::View;
use crate::kernels::sample::{
    DRAFT_BEGIN_ROWS, DRAFT_ROWS, DraftSide, SampledRow, draft_begin, draft_rows,
};
use crate::plan::{Plan, Slot};
use crate::sample::Sampler;
use crate::{Error, Result};
use std::rc::Rc;

/// A draft model's sequence, which follows a session. It belongs to that session: its launches are
/// bound to the buffers of both.
pub struct DraftSession {
    session: Session,
    /// Places the draft model behind the target's last token.
    begin: Step,
    /// Takes the proposals as the target's rows.
    propose: Step,
    /// Moves the hidden state of a proposal to the position of the next one, for an MTP head.
    carry: Option<Step>,
    /// Samples the target's rows, by pipeline.
    acceptance: Vec<(LogitsPipeline, Vec<Step>)>,
    /// The pipeline of the request.
    pipeline: LogitsPipeline,
    /// How many tokens to propose.
    pub(in crate::exec) length: DraftLength,
    /// Propose tokens in every step, even at a loss: for tests and measurements.
    pub draft_always: bool,
    /// Accept proposals at random with this chance, whatever the logits say: for measurements.
    forced: Option<f64>,
    /// Position up to which the draft model has run the tokens of the current generation.
    reached: usize,
}

/// Checks that a model can take drafts, or with `proposes` that it can propose them for the target.
fn check_role(target: &Model, model: &Model, proposes: bool) -> Result<()> {
    // A target's recurrent states take the accepted tokens only; a draft model runs them all.
    let cause = if proposes && model.is_recurrent() {
        "has recurrent states, which cannot drop rejected tokens"
    } else if model.is_paged() {
        "pages weights in while it runs, one step at a time"
    } else if model.mrope_sections.is_some() && !model.reuses_prefix() {
        "has M-RoPE that depends on the sequence length"
    } else {
        return Ok(());
    };
    let subject = if proposes {
        "The draft model"
    } else {
        "The model"
    };
    let name = &model.graph().name;
    Err(Error::UnsupportedOption {
        architecture: target.graph().name.clone(),
        option: "draft".into(),
        hint: format!(
            "{subject} {name} {cause}. Load it without 'draft', or with another draft model."
        ),
    })
}

/// The first step of a draft model. An MTP head runs all tokens that the target may have accepted.
fn begin_key(model: &Model) -> ProgramKey {
    ProgramKey::draft_begin(match model.graph().is_mtp_head() {
        true => DRAFT_ROWS as usize,
        false => DRAFT_BEGIN_ROWS,
    })
}

impl DraftSession {
    /// Checks that a model can take drafts, before a draft model is loaded.
    ///
    /// # Errors
    /// `UnsupportedOption` with the cause.
    pub fn check_target(target: &Model) -> Result<()> {
        check_role(target, target, false)
    }

    /// Checks that a model can propose tokens for another.
    ///
    /// # Errors
    /// `UnsupportedOption` with the cause.
    pub fn check(target: &Model, draft: &Model) -> Result<()> {
        Self::check_target(target)?;
        check_role(target, draft, true)
    }

    /// Starts a sequence of a draft model for a session; both models must be on one device.
    ///
    /// # Errors
    /// `UnsupportedOption` as [`Self::check`]; device errors.
    pub async fn new(model: &Rc<Model>, target: &mut Session) -> Result<Self> {
        Self::check(&target.model, model)?;
        let advance = target
            .model
            .is_recurrent()
            .then_some(ProgramKey::ADVANCE_STATES);
        for key in [ProgramKey::VERIFY_PROPOSED].into_iter().chain(advance) {
            target
                .model
                .prepare(key.with_overlay(target.overlay))
                .await?;
            if !target.steps.contains_key(&key) {
                let before = target.model.gpu.resource_counts().bytes;
                let step = target.bind_step(key)?;
                target.steps.insert(key, step);
                let bytes = target.model.gpu.resource_counts().bytes - before;
                target.count_draft_bytes(bytes);
            }
        }
        let graph = model.graph();
        let is_head = graph.is_mtp_head();
        let hidden = graph.value(graph.hidden).cols as u32;
        let given = match is_head {
            true => Buffers::from([(Slot::Hidden, target.buffer(Slot::Hidden)?.clone())]),
            false => Buffers::new(),
        };
        let key = begin_key(model);
        model.prepare(key).await?;
        let mut session = Session::with_shared_buffers(model, given)?;
        let begin = session.bind_step(key)?;
        session.steps.insert(key, begin);
        let stops = [u32::MAX; MAX_STOP_TOKENS];
        let buffer = session.buffer(Slot::Stops)?;
        model.gpu.write(buffer, 0, bytemuck::cast_slice(&stops));
        let sides = || {
            let target = DraftSide {
                state: Slot::CURSOR,
                tokens: Slot::Tokens,
                ids: Slot::Ids,
                vocabulary: target.model.vocab() as u32,
            };
            let draft = DraftSide {
                state: Slot::DraftState,
                tokens: Slot::DraftTokens,
                ids: Slot::DraftIds,
                vocabulary: model.vocab() as u32,
            };
            (target, draft, TOKEN_RING_LEN)
        };
        let mut both = target.own.clone();
        for (slot, own) in [
            (Slot::DraftState, Slot::CURSOR),
            (Slot::DraftTokens, Slot::Tokens),
            (Slot::DraftIds, Slot::Ids),
        ] {
            both.insert(slot, session.buffer(own)?.clone());
        }
        let (of_target, of_draft, ring) = sides();
        let begin = draft_begin(of_target, of_draft, ring, is_head);
        let (of_target, of_draft, ring) = sides();
        let propose = draft_rows(of_target, of_draft, ring);
        let begin = bind(&target.model, &both, Plan::sampling(vec![begin])).await?;
        let propose = bind(&target.model, &both, Plan::sampling(vec![propose])).await?;
        let carry = match is_head {
            true => {
                let rows = |buffer, by_position| CopiedRows {
                    view: View {
                        buffer,
                        offset: 0,
                        stride: hidden,
                    },
                    by_position,
                };
                let [from, to] = [rows(Slot::LastHidden, false), rows(Slot::Hidden, true)];
                let launch = copy_rows("carry hidden", from, to, Slot::CURSOR, hidden);
                let plan = Plan::sampling(vec![launch]);
                Some(bind(model, &session.own, plan).await?)
            }
            false => None,
        };
        model.gpu.check().await?;
        Ok(Self {
            session,
            begin,
            propose,
            carry,
            acceptance: Vec::new(),
            pipeline: LogitsPipeline::greedy(),
            length: DraftLength::default(),
            draft_always: false,
            forced: None,
            reached: 0,
        })
    }

    /// The tokens of a sequence that the draft model runs: an MTP head has no row for the first.
    fn own_tokens<'a>(&self, all: &'a [u32]) -> &'a [u32] {
        &all[usize::from(self.carry.is_some()).min(all.len())..]
    }

    /// The draft model.
    pub fn model(&self) -> &Rc<Model> {
        &self.session.model
    }

    /// Returns the logits of an MTP head for `all` tokens of a sequence that the target has run, from
    /// the second on, then for a `proposal` from the head's own hidden state: `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// `Internal` for a draft model that is no head; device errors.
    pub async fn head_logits(&mut self, all: &[u32], proposal: u32) -> Result<Vec<f32>> {
        let mut own = self.own_tokens(all).to_vec();
        let mut logits = self.session.all_rows(&own, false).await?;
        let Some(carry) = &self.carry else {
            return Err(Error::Internal("a head has hidden states".into()));
        };
        self.session.set_state(own.len(), 1, 0)?;
        self.session.model.gpu.submit(&[carry.recorded()])?;
        own.push(proposal);
        let more = self.session.all_rows(&own, false).await?;
        logits.extend(&more[logits.len()..]);
        Ok(logits)
    }

    /// Accepts proposals of greedy generations at random with a chance from 0 to 1, whatever the
    /// logits say: for measurements with random weights. The tokens have no meaning.
    pub fn force_acceptance(&mut self, chance: f64) {
        self.forced = Some(chance.clamp(0.0, 1.0));
        self.acceptance.clear();
    }

    /// Proposes this many tokens in each step, whatever is accepted: for tests and measurements.
    pub fn fix_length(&mut self, tokens: usize) {
        self.length = DraftLength::fixed(tokens);
    }

    /// Prepares the kernels and buffers of a request whose pipeline the target has prepared;
    /// returns whether the draft model can sample like that.
    ///
    /// # Errors
    /// Device errors.
    pub async fn prepare(
        &mut self,
        target: &Session,
        pipeline: &LogitsPipeline,
        sampler: &Sampler,
    ) -> Result<bool> {
        let vocabulary = self.session.vocab();
        let Ok(same) = Sampler::new(sampler.params().clone(), vocabulary, sampler.seed()) else {
            // A logit bias of a token that the draft model does not have.
            return Ok(false);
        };
        let own = self.session.prepare_sampling(&same, false).await?;
        if own.as_ref() != Some(pipeline) {
            return Ok(false);
        }
        self.pipeline = pipeline.clone();
        if self.acceptance.iter().all(|(known, _)| known != pipeline) {
            let steps = self.acceptance_steps(target).await?;
            self.acceptance.push((pipeline.clone(), steps));
        }
        Ok(true)
    }

    /// Binds the launches that sample the target's rows.
    async fn acceptance_steps(&self, target: &Session) -> Result<Vec<Step>> {
        let model = &target.model;
        let mut buffers = target.own.clone();
        let verify = target.bound_step(ProgramKey::VERIFY_PROPOSED)?;
        buffers.insert(Slot::Output, verify.output.clone());
        let vocabulary = model.vocab() as u32;
        if self.pipeline == LogitsPipeline::greedy() {
            let chance = self
                .forced
                .map(|chance| (chance * f64::from(u32::MAX)) as u32);
            let launches = accept_greedily(vocabulary, None, chance);
            let plan = Plan::sampling(launches.into());
            return Ok(vec![bind(model, &buffers, plan).await?]);
        }
        let mut steps = Vec::new();
        for row in 0..DRAFT_ROWS {
            let plan = self
                .pipeline
                .plan_row(vocabulary, SampledRow::Drafted(row))?;
            steps.push(bind(model, &buffers, plan).await?);
        }
        Ok(steps)
    }

    /// Whether the draft model can follow a sequence of these tokens. It has no image tokens.
    pub(in crate::exec) fn supports(&self, tokens: &[u32]) -> bool {
        let vocabulary = self.session.vocab() as u32;
        tokens.iter().all(|id| *id < vocabulary)
    }

    /// Runs the tokens that the draft model lacks of all but the last. `sampled` counts the sampled
    /// ones among them. No step may be in flight.
    ///
    /// # Errors
    /// As [`Session::prefill_reusing_prefix`].
    pub(in crate::exec) async fn catch_up(
        &mut self,
        target: &Session,
        all: &[u32],
        sampled: usize,
    ) -> Result<()> {
        self.settle(all);
        let [run @ .., _] = self.own_tokens(all) else {
            return Err(Error::Internal("a draft follows a token".into()));
        };
        let gpu = self.session.model.gpu.clone();
        if let [.., token] = run {
            self.session.prefill_rest(run, &|| Ok(())).await?;
            // The ring has the last token; the one before may be the prompt's.
            let before = (sampled + TOKEN_RING_LEN as usize - 2) % TOKEN_RING_LEN as usize;
            let ring = target.buffer(Slot::Tokens)?;
            gpu.write(ring, before as u64 * 4, bytemuck::bytes_of(token));
        }
        self.reached = run.len();
        if self.carry.is_some() {
            // The head runs only the last token.
            let state = state_words(0, 0, sampled - 1, u32::MAX as usize);
            let cursor = self.session.buffer(Slot::CURSOR)?;
            gpu.write(cursor, 0, bytemuck::cast_slice(&state));
        }
        gpu.wait_idle().await
    }

    /// Grows the states for steps up to a position; returns whether the sequence may be that long.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub(in crate::exec) async fn reserve(&mut self, end: usize) -> Result<bool> {
        if end > self.session.capacity() {
            return Ok(false);
        }
        self.session.reserve(end).await?;
        Ok(true)
    }

    /// Queues steps: the draft model proposes tokens, and the target verifies them. The sequence
    /// ends at `end` at the latest.
    pub(in crate::exec) fn submit(&self, target: &Session, steps: usize, end: usize) -> Result<()> {
        let own = &self.session;
        let gpu = &own.model.gpu;
        let found = self.acceptance.iter().find(|(p, _)| *p == self.pipeline);
        let Some((_, acceptance)) = found else {
            return Err(Error::Internal(format!(
                "{:?} was not prepared for drafts",
                self.pipeline
            )));
        };
        let length = self.length.get();
        let mut commands = Vec::new();
        if self.pipeline.has(LogitsStage::Penalties) {
            let [from, to] = [target.buffer(Slot::Counts)?, own.buffer(Slot::Counts)?];
            commands.push(Command::Copy {
                from: (from, 0),
                to: (to, 0),
                size: from.size().min(to.size()),
            });
        }
        commands.push(self.begin.recorded());
        let first = own.bound_step(begin_key(&own.model))?;
        commands.push(first.limit_keys(gpu, end).recorded());
        let sampling = own.sampling_step(&self.pipeline)?.recorded();
        commands.push(sampling);
        let next = own.decode_step(end)?.recorded();
        for _ in 1..length {
            commands.extend(self.carry.as_ref().map(Step::recorded));
            commands.extend([next, sampling]);
        }
        commands.push(self.propose.recorded());
        let verify = target.bound_step(ProgramKey::VERIFY_PROPOSED)?;
        commands.push(verify.limit_keys(gpu, end).recorded());
        commands.extend(acceptance.iter().take(length + 1).map(Step::recorded));
        let advance = target.steps.get(&ProgramKey::ADVANCE_STATES);
        commands.extend(advance.map(Step::recorded));
        gpu.submit(&commands.repeat(steps))
    }

    /// Notes that the target's sequence has reached a length in steps with proposals.
    pub(in crate::exec) fn follow(&mut self, tokens: usize) {
        // Of the last two tokens, the draft model may have run neither. An MTP head may have run those
        // of the last round without the target's hidden states.
        let open = match self.carry {
            Some(_) => 1 + DRAFT_ROWS as usize,
            None => 2,
        };
        self.reached = self.reached.max(tokens.saturating_sub(open));
    }

    /// Takes over the tokens that the draft model has run of a generation.
    pub(in crate::exec) fn settle(&mut self, all: &[u32]) {
        let own = self.own_tokens(all);
        let run = &own[..self.reached.min(own.len())];
        let known = self.session.tokens.len();
        if let Some(more) = run.get(known..).filter(|more| !more.is_empty()) {
            // Rejected proposals were written behind them.
            let written = self.session.capacity().min(run.len() + DRAFT_ROWS as usize);
            let written = written.max(self.session.written_until);
            self.session.tokens.extend_from_slice(more);
            self.session.written_until = written;
        }
        self.reached = self.session.tokens.len();
    }
}

/// Binds launches to the buffers of both models.
async fn bind(model: &Model, buffers: &Buffers, plan: Plan) -> Result<Step> {
    model.runner.compile(&model.gpu, &plan).await?;
    let program = PlanBuffers::new(&model.gpu, "draft", plan, false)?;
    model
        .runner
        .bind(&model.gpu, buffers, "draft", &program, DRAFT_ROWS as usize)
}
