//! CPU sampler: the reference for the GPU sampler, and used where the CPU needs the logits
//! (grammars, log-probabilities, typical-p).
//!
//! Order, as in transformers: logit and sequence bias, the prompt's repetition penalty, repetition,
//! frequency and presence penalty, token rules, token mask. Then, unless greedy: temperature,
//! top-h, top-k, top-p, min-p, typical-p, epsilon and eta cutoff, and sampling.

use super::fixed_point::{BANNED_SCORE, fraction, gap_scale, min_p_limit};
use super::philox::random;
use super::rules::RuleContext;
use super::{Distribution, LogProbs, SamplingParams, log_probabilities};
use crate::{Error, Result};

/// Bit of a token's count that marks prompt tokens; the other bits count occurrences in the answer.
pub const IN_PROMPT: u32 = 1 << 31;

/// Allowed next tokens, one bit each: token `i` is bit `i % 32` of word `i / 32`. Tokens beyond the
/// last word are not allowed.
#[derive(Debug, Clone, Copy)]
pub struct TokenMask<'a>(pub &'a [u32]);

impl TokenMask<'_> {
    /// Whether a token is allowed.
    pub fn allows(&self, token: usize) -> bool {
        self.0
            .get(token / 32)
            .is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

/// Samples tokens from logits. The same parameters, seed and logits give the same tokens on every
/// machine.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    /// Number of generated tokens; the counter of the random generator.
    step: u32,
    /// Occurrences of each vocabulary token, see [`IN_PROMPT`].
    counts: Vec<u32>,
    /// Tokens with a nonzero count, each once.
    counted_tokens: Vec<u32>,
    /// Prompt and answer, if rules need them.
    tokens: Vec<u32>,
    /// Number of prompt tokens in `tokens`.
    prompt: usize,
    /// Maximum number of answer tokens.
    max_tokens: Option<usize>,
    /// Whether the caller's own code changes the logits.
    is_processed: bool,
    scores: Vec<f32>,
    distribution: Distribution,
}

impl Sampler {
    /// Creates a sampler for a vocabulary of this size. `fallback_seed` is used if the parameters
    /// have no seed.
    pub fn new(params: SamplingParams, vocabulary: usize, fallback_seed: u64) -> Result<Self> {
        params.validate()?;
        if let Some((&token, _)) = params
            .logit_bias
            .iter()
            .find(|&(&token, _)| token as usize >= vocabulary)
        {
            let reason = format!("token {token} is outside the vocabulary of {vocabulary} tokens");
            return Err(Error::Request {
                parameter: "logit_bias".into(),
                reason,
            });
        }
        Ok(Sampler {
            seed: params.seed.unwrap_or(fallback_seed),
            params,
            step: 0,
            counts: vec![0; vocabulary],
            counted_tokens: Vec::new(),
            tokens: Vec::new(),
            prompt: 0,
            max_tokens: None,
            is_processed: false,
            scores: Vec::new(),
            distribution: Distribution::default(),
        })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of tokens accepted since the prompt.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Starts a generation after this prompt. Ids beyond the logits (of a larger embedding) are
    /// ignored.
    pub fn start(&mut self, prompt: &[u32]) {
        for token in self.counted_tokens.drain(..) {
            self.counts[token as usize] = 0;
        }
        self.step = 0;
        for &token in prompt {
            self.record(token, |count| count | IN_PROMPT);
        }
        self.tokens.clear();
        if !self.params.rules.is_empty() {
            self.tokens.extend_from_slice(prompt);
        }
        self.prompt = self.tokens.len();
    }

    /// Sets the maximum number of answer tokens, for rules about the end of an answer.
    pub fn set_max_tokens(&mut self, max_tokens: Option<usize>) {
        self.max_tokens = max_tokens;
    }

    /// Tells that the caller's own code changes the logits, so they may be equal on purpose.
    pub fn set_processed(&mut self, is_processed: bool) {
        self.is_processed = is_processed;
    }

    /// Records a generated token: one from [`Self::pick`], or one decided elsewhere.
    pub fn accept(&mut self, token: u32) {
        self.record(token, |count| count + 1);
        if !self.params.rules.is_empty() {
            self.tokens.push(token);
        }
        self.step += 1;
    }

    /// Occurrences of each token, see [`IN_PROMPT`]; the initial state of the GPU sampler.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Selects a token and accepts it.
    pub fn sample(&mut self, logits: &[f32], mask: Option<TokenMask>) -> Result<u32> {
        let token = self.select(logits, mask)?;
        self.accept(token);
        Ok(token)
    }

    /// Selects a token without accepting it. `mask` has the tokens that a grammar allows.
    pub fn select(&mut self, logits: &[f32], mask: Option<TokenMask>) -> Result<u32> {
        if self.params.is_greedy() {
            self.check_logits(logits)?;
            let scores = self.process(logits, mask);
            let token = argmax(scores.as_deref().unwrap_or(logits));
            self.recycle(scores);
            return token.ok_or_else(|| no_allowed_token(self.limits(mask.is_some())));
        }
        self.prepare(logits, mask)?;
        let token = self.distribution.sample(random(self.seed, self.step));
        token.ok_or_else(|| Error::Internal("no token was left to sample".into()))
    }

    /// Returns the distribution of the next token, for diagnostics and tests.
    pub fn distribution(
        &mut self,
        logits: &[f32],
        mask: Option<TokenMask>,
    ) -> Result<&Distribution> {
        self.prepare(logits, mask)?;
        Ok(&self.distribution)
    }

    /// Returns the scores after bias, penalties and mask, before temperature, for diagnostics and
    /// tests.
    pub fn scores(&mut self, logits: &[f32], mask: Option<TokenMask>) -> Result<Vec<f32>> {
        self.check_logits(logits)?;
        Ok(self
            .process(logits, mask)
            .unwrap_or_else(|| logits.to_vec()))
    }

    /// Returns log-probabilities of the model's raw distribution: of token `picked` and of the
    /// `top` most likely.
    pub fn log_probabilities(
        &mut self,
        logits: &[f32],
        picked: u32,
        top: usize,
    ) -> Result<LogProbs> {
        log_probabilities(logits, picked, top, &mut self.distribution)
    }

    fn record(&mut self, token: u32, change: impl Fn(u32) -> u32) {
        if let Some(count) = self.counts.get_mut(token as usize) {
            if *count == 0 {
                self.counted_tokens.push(token);
            }
            *count = change(*count);
        }
    }

    fn check_logits(&self, logits: &[f32]) -> Result<f32> {
        if logits.len() != self.counts.len() {
            let found = logits.len();
            let expected = self.counts.len();

            return Err(Error::Internal(format!(
                "the sampler expected {expected} logits and got {found}"
            )));
        }
        let step = format!("token {}", self.step);
        if self.is_processed {
            max_finite_logit(logits, &step)
        } else {
            max_logit(logits, &step)
        }
    }

    /// What may ban tokens in this request.
    fn limits(&self, has_mask: bool) -> TokenLimits {
        TokenLimits {
            processor: self.is_processed,
            grammar: has_mask,
            bias: !self.params.logit_bias.is_empty(),
            rules: !self.params.rules.is_empty(),
        }
    }

    /// Computes the distribution after all filters.
    fn prepare(&mut self, logits: &[f32], mask: Option<TokenMask>) -> Result<()> {
        let largest = self.check_logits(logits)?;
        let scores = self.process(logits, mask);
        let max = scores.as_ref().map_or(largest, |scores| {
            scores.iter().copied().fold(f32::MIN, f32::max)
        });
        let scale = gap_scale(self.params.temperature);
        self.distribution
            .set(scores.as_deref().unwrap_or(logits), max, scale);
        self.recycle(scores);
        if max <= ALL_BANNED {
            return Err(no_allowed_token(self.limits(mask.is_some())));
        }
        let SamplingParams {
            top_k,
            top_p,
            min_p,
            typical_p,
            epsilon_cutoff,
            eta_cutoff,
            top_h,
            ..
        } = self.params;
        if top_h > 0.0 {
            self.distribution.top_h(top_h);
        }
        if top_k > 0 {
            self.distribution.top_k(top_k);
        }
        if top_p < 1.0 {
            self.distribution.top_p(fraction(top_p));
        }
        if min_p > 0.0 {
            self.distribution.min_p(min_p_limit(min_p));
        }
        if typical_p < 1.0 {
            self.distribution.typical_p(fraction(typical_p));
        }
        if epsilon_cutoff > 0.0 {
            self.distribution.cutoff(epsilon_cutoff);
        }
        if eta_cutoff > 0.0 {
            let flat = eta_cutoff.sqrt() * (-self.distribution.entropy()).exp();
            self.distribution.cutoff(eta_cutoff.min(flat));
        }
        Ok(())
    }

    /// Applies bias, penalties, rules and mask; `None` if the logits stay unchanged. `recycle`
    /// takes the buffer back.
    fn process(&mut self, logits: &[f32], mask: Option<TokenMask>) -> Option<Vec<f32>> {
        let penalties = self.params.has_penalties() && !self.counted_tokens.is_empty();
        let rules = Some(&self.params.rules).filter(|rules| !rules.is_empty());
        if self.params.logit_bias.is_empty() && !penalties && rules.is_none() && mask.is_none() {
            return None;
        }
        let mut scores = std::mem::take(&mut self.scores);
        scores.clear();
        scores.extend_from_slice(logits);
        for (&token, &bias) in &self.params.logit_bias {
            if let Some(score) = scores.get_mut(token as usize) {
                *score += bias.max(f64::from(BANNED_SCORE)) as f32;
            }
        }
        if let Some(rules) = rules {
            rules.add_sequence_bias(&mut scores, &self.tokens);
            for &token in self
                .counted_tokens
                .iter()
                .filter(|&&token| self.counts[token as usize] & IN_PROMPT != 0)
            {
                scores[token as usize] = rules.apply_prompt_penalty(scores[token as usize]);
            }
        }
        if penalties {
            let penalty = Penalties::from_params(&self.params);
            for &token in &self.counted_tokens {
                let score = &mut scores[token as usize];
                let count = self.counts[token as usize];

                *score = penalty.apply(*score, count);
            }
        }
        if let Some(rules) = rules {
            let at = RuleContext {
                tokens: &self.tokens,
                prompt: self.prompt,
                max_tokens: self.max_tokens,
            };
            rules.apply_after_penalties(&mut scores, at);
        }
        if let Some(mask) = mask {
            for (token, score) in scores.iter_mut().enumerate() {
                if !mask.allows(token) {
                    *score = BANNED_SCORE;
                }
            }
        }
        Some(scores)
    }

    fn recycle(&mut self, scores: Option<Vec<f32>>) {
        if let Some(scores) = scores {
            self.scores = scores;
        }
    }
}

pub(crate) const NOT_FINITE_HINT: &str = "Some are NaN or infinite: the weights are damaged or f16 overflowed; load the model again, or with f32 weights.";
pub(crate) const CONSTANT_HINT: &str = "All are equal: the weights are damaged or the GPU driver dropped a kernel; load the model again.";

/// Upper bound of banned scores, also after a penalty divides them; allowed scores are larger.
pub(crate) const ALL_BANNED: f32 = BANNED_SCORE / 1000.0;

/// What may ban tokens in a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenLimits {
    /// The caller's logits processor.
    pub processor: bool,
    /// A token mask.
    pub grammar: bool,
    /// The logit bias.
    pub bias: bool,
    /// The token rules of generation_config.json.
    pub rules: bool,
}

impl TokenLimits {
    /// What the kernels apply.
    pub const ON_DEVICE: Self = Self {
        processor: false,
        grammar: true,
        bias: true,
        rules: false,
    };
}

/// Returns the error for a step whose tokens are all banned.
pub(crate) fn no_allowed_token(limits: TokenLimits) -> Error {
    let names = [
        ("logitsProcessor", limits.processor),
        ("grammar", limits.grammar),
        ("logit_bias", limits.bias),
        ("generation_config.json", limits.rules),
    ];
    let active: Vec<&str> = names
        .iter()
        .filter_map(|(name, is_active)| is_active.then_some(*name))
        .collect();
    let who = if active.len() > 1 {
        "together they"
    } else {
        "its rules"
    };
    Error::Request {
        parameter: active.join(", "),
        reason: format!("{who} leave no token; allow at least one"),
    }
}

/// Penalties in the shader's arithmetic: only additions, subtractions and multiplications, in this
/// order.
#[derive(Debug, Clone, Copy)]
pub struct Penalties {
    /// The repetition penalty, for negative scores.
    pub repetition: f32,
    /// Its reciprocal, for other scores. transformers divides, so the last bit of a score may
    /// differ.
    pub repetition_inverse: f32,
    /// Penalty per occurrence in the answer.
    pub frequency: f32,
    /// Penalty applied once if the token is in the answer.
    pub presence: f32,
}

impl Penalties {
    /// Reads the penalties from the parameters.
    pub fn from_params(params: &SamplingParams) -> Self {
        Penalties {
            repetition: params.repetition_penalty as f32,
            repetition_inverse: (1.0 / params.repetition_penalty) as f32,
            frequency: params.frequency_penalty as f32,
            presence: params.presence_penalty as f32,
        }
    }

    /// Returns the penalized score of a token with a nonzero `count`, see [`Sampler::counts`].
    pub fn apply(&self, score: f32, count: u32) -> f32 {
        let factor = if score < 0.0 {
            self.repetition
        } else {
            self.repetition_inverse
        };
        let score = score * factor;
        let generated = count & !IN_PROMPT;
        if generated == 0 {
            return score;
        }
        let frequency = self.frequency * generated as f32;
        score - frequency - self.presence
    }
}

/// Returns the largest logit, after checking that all are finite and not all are equal.
fn max_logit(logits: &[f32], step: &str) -> Result<f32> {
    let max = max_finite_logit(logits, step)?;
    if logits.len() > 1 && logits.iter().all(|logit| *logit == max) {
        return Err(Error::NotFinite {
            step: step.into(),
            hint: CONSTANT_HINT.into(),
        });
    }
    Ok(max)
}

/// Returns the largest logit, after checking that all are finite.
pub(super) fn max_finite_logit(logits: &[f32], step: &str) -> Result<f32> {
    let first = logits
        .first()
        .copied()
        .ok_or_else(|| Error::Internal("a row of logits is empty".into()))?;
    let mut max = first;
    let mut finite = true;

    for &logit in logits {
        finite &= logit.is_finite();
        max = max.max(logit);
    }
    if !finite {
        return Err(Error::NotFinite {
            step: step.into(),
            hint: NOT_FINITE_HINT.into(),
        });
    }
    Ok(max)
}

/// Returns the id of the largest score, the lowest one of ties; `None` if all are banned.
fn argmax(scores: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (id, &score) in scores.iter().enumerate() {
        if best.is_none_or(|(_, largest)| score > largest) {
            best = Some((id, score));
        }
    }
    best.filter(|&(_, score)| score > ALL_BANNED)
        .map(|(id, _)| id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 37 + 11) % 101) as f32 * 0.1)
            .collect()
    }

    fn sampling() -> SamplingParams {
        SamplingParams {
            greedy: false,
            top_k: 0,
            seed: Some(7),
            ..SamplingParams::default()
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let row = logits(300);
        let run = |seed| {
            let mut sampler = Sampler::new(
                SamplingParams {
                    seed: Some(seed),
                    ..sampling()
                },
                300,
                0,
            )
            .unwrap();
            (0..40)
                .map(|_| sampler.sample(&row, None).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn penalties_are_applied_once_per_token() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: [(3, -1.0), (4, f64::NEG_INFINITY)].into(),
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(params, 6, 0).unwrap();
        sampler.start(&[0, 0, 1, 900]);
        sampler.accept(1);
        sampler.accept(1);
        sampler.accept(2);
        let row = [4.0, -4.0, 3.0, 0.5, 9.0, 1.0];
        let expected = [
            2.0,
            -8.0 - 0.5 - 0.5,
            1.5 - 0.25 - 0.5,
            -0.5,
            BANNED_SCORE,
            1.0,
        ];
        assert_eq!(sampler.scores(&row, None).unwrap(), expected);
        assert_eq!(sampler.select(&row, None).unwrap(), 0);
        assert_eq!(
            sampler.select(&row, Some(TokenMask(&[0b10_1010]))).unwrap(),
            5
        );
        sampler.start(&[]);
        assert_eq!(
            sampler.scores(&row, None).unwrap(),
            [4.0, -4.0, 3.0, -0.5, BANNED_SCORE, 1.0]
        );
    }

    #[test]
    fn masks_limit_sampling() {
        let row = logits(100);
        let mask = [0, 1 << 5 | 1 << 9, 0];
        let mut sampler = Sampler::new(sampling(), 100, 0).unwrap();
        for _ in 0..50 {
            let token = sampler.sample(&row, Some(TokenMask(&mask))).unwrap();
            assert!(token == 37 || token == 41, "{token}");
        }
        let nothing = sampler.select(&row, Some(TokenMask(&[0; 4])));
        assert!(matches!(nothing, Err(Error::Request { .. })));
        let mut greedy = Sampler::new(SamplingParams::default(), 100, 0).unwrap();
        assert!(matches!(
            greedy.select(&row, Some(TokenMask(&[]))),
            Err(Error::Request { .. })
        ));
    }

    #[test]
    fn non_finite_logits_are_refused() {
        let mut sampler = Sampler::new(sampling(), 3, 0).unwrap();
        for row in [
            [0.0, f32::NAN, 1.0],
            [0.0, f32::INFINITY, 1.0],
            [f32::NEG_INFINITY, 0.0, 1.0],
            [2.5; 3],
        ] {
            assert!(
                matches!(sampler.select(&row, None), Err(Error::NotFinite { .. })),
                "{row:?}"
            );
        }
        assert!(sampler.select(&[1.0, 2.0], None).is_err());
        let beyond = SamplingParams {
            logit_bias: [(3, 1.0)].into(),
            ..SamplingParams::default()
        };
        assert!(matches!(
            Sampler::new(beyond, 3, 0),
            Err(Error::Request { .. })
        ));
    }

    #[test]
    fn temperature_zero_is_greedy() {
        let params = SamplingParams {
            greedy: false,
            temperature: 0.0,
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(params, 4, 0).unwrap();
        assert_eq!(sampler.select(&[1.0, 3.0, 3.0, 2.0], None).unwrap(), 1);
    }
}
