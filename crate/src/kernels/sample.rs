//! Token selection on the GPU: argmax, or sampling bit-exact with `sample::Sampler`, and the state
//! update for one token or several drafted ones.

use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};
use crate::sample::fixed_point::{BANNED_SCORE, GAP_LIMIT, fraction, gap_scale, min_p_limit};
use crate::sample::{Penalties, SamplingParams, TokenLimits, no_allowed_token};
use crate::{Error, Result};

/// Returns the slices that the vocabulary is divided into.
pub fn slices(vocab: u32) -> u32 {
    vocab.div_ceil(1024).clamp(1, 128)
}

/// Finds the maximum of each slice; `out` holds two words for each.
pub fn argmax<B: Clone>(logits: B, out: B, vocab: u32) -> Launch<B> {
    let count = slices(vocab);
    Launch::new(
        "argmax",
        Variant::new(Kernel::Argmax),
        GridSpec::Fixed { units: count },
    )
    .bind("logits", logits)
    .bind("out", out)
    .set("vocab", vocab)
    .set("slice", vocab.div_ceil(count))
}

/// Finds the slice maxima for each row of a step, [`slices`] pairs per row.
pub fn argmax_rows<B: Clone>(logits: B, out: B, vocab: u32, state: B) -> Launch<B> {
    let mut launch = argmax(logits, out, vocab).bind("state", state);
    launch.variant = launch.variant.flag("ROWS");
    launch.grid = GridSpec::Tiled {
        x: slices(vocab),
        per: 1,
        z: 1,
    };
    launch
}

/// Buffers of the state update after a token.
#[derive(Debug, Clone)]
pub struct AdvanceBuffers<B> {
    /// Value and index pairs, `slices` of them.
    pub candidates: B,
    /// Candidate pairs.
    pub slices: u32,
    /// Token ids that end the generation.
    pub stops: B,
    /// Length of `stops`.
    pub stop_count: u32,
    /// Step state.
    pub state: B,
    /// Input ids; the first is set to the token.
    pub ids: B,
    /// Ring of sampled tokens.
    pub tokens: B,
    /// Ring length.
    pub ring: u32,
    /// Token counts for the penalties, unless sampling has updated them.
    pub counts: Option<B>,
    /// All tokens by position, if [`draft`] needs them.
    pub history: Option<B>,
    /// Vocabulary size if `candidates` holds all logits, which takes one dispatch. Not with drafts.
    pub vocabulary: Option<u32>,
}

/// Selects the token and advances the state.
pub fn advance<B: Clone>(a: AdvanceBuffers<B>) -> Launch<B> {
    let variant = Variant::new(Kernel::Advance)
        .flag_if("COUNT", a.counts.is_some())
        .flag_if("HISTORY", a.history.is_some())
        .flag_if("LOGITS", a.vocabulary.is_some());
    let candidates = if a.vocabulary.is_some() {
        "logits"
    } else {
        "candidates"
    };
    let launch = Launch::new("advance", variant, GridSpec::Fixed { units: 1 })
        .bind(candidates, a.candidates)
        .bind("stops", a.stops)
        .bind("state", a.state)
        .bind("ids", a.ids)
        .bind("tokens", a.tokens)
        .bind_opt("counts", a.counts)
        .bind_opt("history", a.history)
        .set("slices", a.slices)
        .set("stops", a.stop_count)
        .set("ring", a.ring);
    match a.vocabulary {
        Some(count) => launch.set("vocab", count),
        None => launch,
    }
}

/// Selects the token of each row of a batched step and advances the row table. `stops` and `tokens`
/// hold a part for each row: [`AdvanceBuffers::stop_count`] ids, and the ring with two words. With
/// `row`, it takes only that row, which has candidates and counts of its own; without, all rows that
/// have none.
pub fn advance_rows<B: Clone>(a: AdvanceBuffers<B>, row: Option<u32>) -> Launch<B> {
    let grid = match row {
        Some(_) => GridSpec::Fixed { units: 1 },
        None => GridSpec::Rows { units: 1, per: 1 },
    };
    let variant = Variant::new(Kernel::AdvanceRows)
        .flag("BATCH")
        .flag_if("COUNT", a.counts.is_some());
    Launch::new("advance", variant, grid)
        .bind_opt("counts", a.counts)
        .set("row0", row.unwrap_or(0))
        .set("apart", row.is_some().into())
        .bind("candidates", a.candidates)
        .bind("stops", a.stops)
        .bind("state", a.state)
        .bind("ids", a.ids)
        .bind("tokens", a.tokens)
        .set("slices", a.slices)
        .set("stops", a.stop_count)
        .set("ring", a.ring)
}

/// Selects the token of one row of a step with drafts, if the drafts before it were accepted; see
/// [`accept`]. Rows are selected in order.
pub fn advance_drafted<B: Clone>(a: AdvanceBuffers<B>, row: u32) -> Launch<B> {
    let mut launch = advance(a).set("row", row);
    launch.variant = launch.variant.flag("DRAFTS").flag("ACCEPTED");
    launch
}

/// Maximum rows of a step with drafts: the last token and seven draft tokens.
pub const DRAFT_ROWS: u32 = 8;
/// Rows of a draft model's first step, as in shaders/sample/draft_begin.wgsl.
pub const DRAFT_BEGIN_ROWS: usize = 2;
/// Maximum and minimum length of the token suffix that prompt lookup matches.
pub const SUFFIX_LENGTHS: (u32, u32) = (4, 2);

/// Drafts the rows after the last token by prompt lookup. `history` has the tokens from position 0
/// to the state's.
pub fn draft<B: Clone>(history: B, state: B, ids: B) -> Launch<B> {
    Launch::new(
        "draft",
        Variant::new(Kernel::Draft).flag("ACCEPTED"),
        GridSpec::Fixed { units: 1 },
    )
    .bind("history", history)
    .bind("state", state)
    .bind("ids", ids)
    .set("longest", SUFFIX_LENGTHS.0)
    .set("shortest", SUFFIX_LENGTHS.1)
    .set("most", DRAFT_ROWS - 1)
}

/// State and buffers of one side of a [`draft_begin`] or [`draft_rows`].
#[derive(Debug, Clone)]
pub struct DraftSide<B> {
    /// Step state.
    pub state: B,
    /// Ring of sampled tokens, as long as the other side's.
    pub tokens: B,
    /// Input ids.
    pub ids: B,
    /// Size of the vocabulary, as counted by the logits.
    pub vocabulary: u32,
}

/// Places a draft model behind the last token of its target, with that token and the one before
/// as input. An MTP head takes all tokens that the target has accepted since the last round.
pub fn draft_begin<B: Clone>(
    target: DraftSide<B>,
    draft: DraftSide<B>,
    ring: u32,
    is_head: bool,
) -> Launch<B> {
    let variant = Variant::new(Kernel::DraftBegin);
    Launch::new("draft begin", variant, GridSpec::Fixed { units: 1 })
        .bind("state", target.state)
        .bind("tokens", target.tokens)
        .bind("draft", draft.state)
        .bind("ids", draft.ids)
        .set("ring", ring)
        .set("vocab", draft.vocabulary)
        .set("is_head", is_head.into())
}

/// Takes what a draft model has sampled since [`draft_begin`] as the target's rows after its last
/// token.
pub fn draft_rows<B: Clone>(target: DraftSide<B>, draft: DraftSide<B>, ring: u32) -> Launch<B> {
    let variant = Variant::new(Kernel::DraftRows).flag("ACCEPTED");
    Launch::new("draft rows", variant, GridSpec::Fixed { units: 1 })
        .bind("draft", draft.state)
        .bind("proposed", draft.tokens)
        .bind("state", target.state)
        .bind("ids", target.ids)
        .set("ring", ring)
        .set("vocab", target.vocabulary)
        .set("most", DRAFT_ROWS - 1)
}

/// Accepts the tokens of a step with drafted rows and advances the state. `candidates` has the
/// slices of [`DRAFT_ROWS`] rows; `tokens` has four words after the ring. `forced` accepts drafts
/// at random with a chance in 2^32, whatever the logits say: for measurements.
pub fn accept<B: Clone>(a: AdvanceBuffers<B>, forced: Option<u32>) -> Launch<B> {
    let variant = Variant::new(Kernel::Accept)
        .flag("ACCEPTED")
        .flag_if("HISTORY", a.history.is_some())
        .flag_if("FORCED", forced.is_some());
    let launch = Launch::new("accept", variant, GridSpec::Fixed { units: 1 });
    let launch = match forced {
        Some(chance) => launch.set("chance", chance),
        None => launch,
    };
    launch
        .bind("candidates", a.candidates)
        .bind("stops", a.stops)
        .bind("state", a.state)
        .bind("ids", a.ids)
        .bind("tokens", a.tokens)
        .bind_opt("history", a.history)
        .set("slices", a.slices)
        .set("stops", a.stop_count)
        .set("ring", a.ring)
}

/// Maximum vocabulary: sampling divides it into 1024 blocks of 1024 tokens.
pub const MAX_VOCABULARY: usize = 1 << 20;

/// Bytes of the `sampling` buffer.
pub const SETTINGS_BYTES: u64 = 48;

/// Bytes of the `work` buffer before its list.
const WORK_HEAD: u64 = 32_800;

/// Status codes in `Sample::picked`, as in shaders/sample/fixed.wgsl.
const NOT_FINITE: u32 = 1;
const CONSTANT: u32 = 2;
const ALL_BANNED: u32 = 3;

/// Samples one token from a row of logits: [`Self::adjustment`], [`Self::filters`], [`Self::select`],
/// for up to [`MAX_VOCABULARY`] tokens.
#[derive(Debug, Clone)]
pub struct SampleKernels<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Number of logits.
    pub vocabulary: u32,
    /// Logits buffer.
    pub logits: B,
    /// First logit in the buffer.
    pub offset: u32,
    /// [`SETTINGS_BYTES`], filled with [`settings`].
    pub sampling: B,
    /// Scratch of [`work_bytes`].
    pub work: B,
    /// Step state: `step` counts the random numbers. Nothing is sampled once it is stopped.
    pub state: B,
    /// Three words: value and index as in [`AdvanceBuffers::candidates`] (one slice), then a status (see
    /// [`status`]).
    pub sampled: B,
    /// Buffers of bias and penalties; without them neither applies.
    pub adjust: Option<LogitBuffers<B>>,
    /// Tokens allowed next, as in [`crate::sample::TokenMask`], with a bit for each of the vocabulary.
    pub mask: Option<B>,
    /// The logits after bias, penalties and mask; written and read with `adjust` or `mask` only.
    pub adjusted: B,
    /// The row of the step that `logits` at `offset` belongs to.
    pub row: SampledRow,
    /// Takes the most likely tokens of each step, if the settings are those of [`list_candidates`].
    pub candidates: Option<CandidateSlots<B>>,
}

/// Which row of a step is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledRow {
    /// The only one.
    Single,
    /// One of a batched step, with the state of its sequence.
    Batched(u32),
    /// One of a step with drafts, if the drafts before it were accepted.
    Drafted(u32),
}

/// Slots for the most likely tokens of the last steps.
#[derive(Debug, Clone)]
pub struct CandidateSlots<B> {
    /// Filled with a slot for each step modulo their number.
    pub buffer: B,
    /// First word of the slots.
    pub first: u32,
    /// Number of slots.
    pub count: u32,
}

/// Maximum tokens in a slot of [`CandidateSlots`]; with more, the slot is empty.
pub const MAX_CANDIDATES: u32 = 160;
/// Maximum top-k with [`CandidateSlots`].
pub const MAX_CANDIDATE_TOP_K: u32 = 64;
/// Words of a slot: the number of tokens, then id and score of each.
pub const CANDIDATE_SLOT_WORDS: u32 = 1 + 2 * MAX_CANDIDATES;

/// Sets how many tokens are listed beyond top-k: half of a slot stays free for ties.
pub fn list_candidates(settings: &mut [u32]) {
    settings[11] = MAX_CANDIDATES / 2;
}

/// Logit bias and penalty buffers, one word per token each.
#[derive(Debug, Clone)]
pub struct LogitBuffers<B> {
    /// Initially [`crate::sample::Sampler::counts`]; sampling updates it.
    pub counts: B,
    /// Filled with [`bias`].
    pub bias: B,
}

impl<B: Clone> SampleKernels<B> {
    /// Returns the kernels that find the boundaries of top-k, top-p and min-p.
    pub fn filters(&self) -> [Launch<B>; 2] {
        let histogram = Kernel::SampleHistogram;
        let gather = Kernel::SampleGather;
        [
            self.after_adjustment("histogram", histogram, self.vocabulary.div_ceil(4096)),
            self.after_adjustment("gather", gather, self.vocabulary.div_ceil(1024)),
        ]
    }

    /// Returns the kernel that samples among the tokens that passed [`Self::filters`].
    pub fn select(&self) -> Launch<B> {
        let pick = self
            .after_adjustment("pick", Kernel::SampleSelect, 1)
            .bind("state", self.state.clone());
        let mut pick = pick.bind("picked", self.sampled.clone());
        if let SampledRow::Batched(row) | SampledRow::Drafted(row) = self.row {
            let is_batched = matches!(self.row, SampledRow::Batched(_));
            let flag = if is_batched { "BATCH" } else { "DRAFTS" };
            pick.variant = pick.variant.flag(flag);
            pick = pick.set("row", row);
        }
        if let Some(adjust) = &self.adjust {
            pick.variant = pick.variant.flag("ADJUST");
            pick = pick.bind("counts", adjust.counts.clone());
        }
        if let Some(slots) = &self.candidates {
            pick.variant = pick.variant.flag("CANDIDATES");
            pick = pick
                .bind("listed_tokens", slots.buffer.clone())
                .set("slot0", slots.first)
                .set("slots", slots.count)
                .set("slot_tokens", MAX_CANDIDATES);
        }
        pick
    }

    /// Returns the first kernel: bias, penalties, mask and extremes of the logits. Greedy decoding
    /// runs only this and takes the largest adjusted logit.
    pub fn adjustment(&self) -> Launch<B> {
        let variant = Variant::new(Kernel::SamplePenalty)
            .flag_if("ADJUST", self.adjust.is_some())
            .flag_if("MASK", self.mask.is_some());
        let adjust = self.adjust.as_ref();
        self.launch("penalty", variant, self.vocabulary.div_ceil(1024))
            .bind("logits", self.logits.clone())
            .set("offset", self.offset)
            .bind_opt("counts", adjust.map(|a| a.counts.clone()))
            .bind_opt("bias", adjust.map(|a| a.bias.clone()))
            .bind_opt("mask", self.mask.clone())
            .bind_opt("scores", self.is_adjusted().then(|| self.adjusted.clone()))
    }

    /// Whether the kernels after the first read the adjusted logits.
    fn is_adjusted(&self) -> bool {
        self.adjust.is_some() || self.mask.is_some()
    }

    fn after_adjustment(&self, name: &str, kernel: Kernel, groups: u32) -> Launch<B> {
        let launch = self.launch(name, Variant::new(kernel), groups);
        match self.is_adjusted() {
            true => launch
                .bind("scores", self.adjusted.clone())
                .set("offset", 0),
            false => launch
                .bind("scores", self.logits.clone())
                .set("offset", self.offset),
        }
    }

    fn launch(&self, name: &str, variant: Variant, groups: u32) -> Launch<B> {
        let grid = GridSpec::Exact([groups, 1, 1]);
        Launch::new(format!("{} {name}", self.label), variant, grid)
            .bind("sampling", self.sampling.clone())
            .bind("work", self.work.clone())
            .set("count", self.vocabulary)
    }
}

/// Words of the `mask` buffer for a vocabulary.
pub fn mask_words(vocabulary: u32) -> usize {
    vocabulary.div_ceil(32) as usize
}

/// Bytes of the `work` buffer for a vocabulary.
pub fn work_bytes(vocabulary: u32) -> u64 {
    WORK_HEAD + 8 * u64::from(vocabulary)
}

/// Whether the GPU supports these parameters with the CPU's results. Rare filters run on the CPU.
pub fn runs_on_gpu(params: &SamplingParams) -> bool {
    !params.has_rare_filters()
}

/// Whether sampling needs [`LogitBuffers`].
pub fn needs_adjust(params: &SamplingParams) -> bool {
    params.has_penalties() || !params.logit_bias.is_empty()
}

/// Returns the words of the `sampling` buffer.
pub fn settings(params: &SamplingParams, seed: u64, vocabulary: u32) -> [u32; 12] {
    let penalty = Penalties::from_params(params);
    let top_p = if params.top_p < 1.0 {
        fraction(params.top_p)
    } else {
        u32::MAX
    };
    let min_p = if params.min_p > 0.0 {
        min_p_limit(params.min_p)
    } else {
        GAP_LIMIT
    };
    // Temperature 0 is greedy, which the caller handles; the scale must still be finite.
    let scale = gap_scale(
        params
            .temperature
            .max(crate::sample::fixed_point::MIN_TEMPERATURE),
    );
    [
        scale.to_bits(),
        if params.top_k < vocabulary {
            params.top_k
        } else {
            0
        },
        top_p,
        min_p,
        seed as u32,
        (seed >> 32) as u32,
        penalty.repetition.to_bits(),
        penalty.repetition_inverse.to_bits(),
        penalty.frequency.to_bits(),
        penalty.presence.to_bits(),
        0,
        0,
    ]
}

/// Returns the contents of the `bias` buffer.
pub fn bias(params: &SamplingParams, vocabulary: u32) -> Vec<f32> {
    let mut row = vec![0.0; vocabulary as usize];
    for (&token, &bias) in &params.logit_bias {
        if let Some(value) = row.get_mut(token as usize) {
            *value = bias.max(f64::from(BANNED_SCORE)) as f32;
        }
    }
    row
}

/// Converts a status code to an error.
pub fn check_status(word: u32, step: u32) -> Result<()> {
    let broken = |hint: &str| {
        Err(Error::NotFinite {
            step: format!("token {step}"),
            hint: hint.into(),
        })
    };
    match word {
        0 => Ok(()),
        NOT_FINITE => broken(crate::sample::NOT_FINITE_HINT),
        CONSTANT => broken(crate::sample::CONSTANT_HINT),
        ALL_BANNED => Err(no_allowed_token(TokenLimits::ON_DEVICE)),
        _ => Err(Error::Internal(format!(
            "sampling returned the unknown status {word}"
        ))),
    }
}
