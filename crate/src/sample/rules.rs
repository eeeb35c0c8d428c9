//! Bans and biases that depend on earlier tokens, as transformers' logits processors apply them.
//! Only the CPU sampler supports them.

use super::fixed_point::BANNED_SCORE;

/// Rules that depend on earlier tokens; without any, the GPU may sample.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRules {
    /// Biases of sequences of at least two tokens: the bias is added to the score of the last token
    /// after the others. Negative infinity bans it. (`sequence_bias`, `bad_words_ids`)
    pub sequences: Vec<(Vec<u32>, f64)>,
    /// Multiplies positive scores of prompt tokens and divides negative ones; 1 has no effect.
    /// (`encoder_repetition_penalty`)
    pub prompt_repetition_penalty: f64,
    /// Length of the n-grams that must not repeat; 0 allows all. (`no_repeat_ngram_size`)
    pub no_repeat_ngram: usize,
    /// Length of the n-grams of the prompt that must not repeat; 0 allows all.
    /// (`encoder_no_repeat_ngram_size`)
    pub no_repeat_prompt_ngram: usize,
    /// Minimum number of prompt and answer tokens before an end token. (`min_length`)
    pub min_length: usize,
    /// Minimum number of answer tokens before an end token. (`min_new_tokens`)
    pub min_new_tokens: usize,
    /// The token after a prompt of one token. (`forced_bos_token_id`)
    pub forced_first: Option<u32>,
    /// Tokens of which one ends an answer of `max_tokens` tokens. (`forced_eos_token_id`)
    pub forced_last: Vec<u32>,
    /// (start, factor, end tokens): after `start` answer tokens, the end tokens grow likelier by
    /// powers of `factor`. (`exponential_decay_length_penalty`)
    pub end_growth: Option<(usize, f64, Vec<u32>)>,
    /// Tokens that are never sampled. (`suppress_tokens`)
    pub suppress: Vec<u32>,
    /// Tokens that are never sampled first. (`begin_suppress_tokens`)
    pub begin_suppress: Vec<u32>,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
}

impl Default for TokenRules {
    fn default() -> Self {
        TokenRules {
            sequences: Vec::new(),
            prompt_repetition_penalty: 1.0,
            no_repeat_ngram: 0,
            no_repeat_prompt_ngram: 0,
            min_length: 0,
            min_new_tokens: 0,
            forced_first: None,
            forced_last: Vec::new(),
            end_growth: None,
            suppress: Vec::new(),
            begin_suppress: Vec::new(),
            end_tokens: Vec::new(),
        }
    }
}

/// Position in a generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleContext<'a> {
    /// Prompt and answer so far.
    pub tokens: &'a [u32],
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Maximum number of answer tokens, if limited.
    pub max_tokens: Option<usize>,
}

impl TokenRules {
    /// Whether no rule is set. `suppress` does not count, because it is also a logit bias.
    pub fn is_empty(&self) -> bool {
        let counts = [
            self.no_repeat_ngram,
            self.no_repeat_prompt_ngram,
            self.min_length,
            self.min_new_tokens,
        ];
        self.sequences.is_empty()
            && self.prompt_repetition_penalty == 1.0
            && counts == [0; 4]
            && self.forced_first.is_none()
            && self.forced_last.is_empty()
            && self.end_growth.is_none()
            && self.begin_suppress.is_empty()
    }

    /// Drops the rules without effect after a prompt of `prompt` tokens, for an answer of at most
    /// `max_tokens`.
    pub fn drop_unused(&mut self, prompt: usize, max_tokens: Option<usize>) {
        if prompt != 1 {
            self.forced_first = None;
        }
        if max_tokens.is_none() {
            self.forced_last.clear();
        }
        if prompt >= self.min_length {
            self.min_length = 0;
        }
    }

    /// Applies the biases that come before the repetition penalty.
    pub(super) fn add_sequence_bias(&self, scores: &mut [f32], tokens: &[u32]) {
        for (sequence, bias) in &self.sequences {
            let Some((last, before)) = sequence.split_last() else {
                continue;
            };
            if let Some(score) = scores
                .get_mut(*last as usize)
                .filter(|_| tokens.ends_with(before))
            {
                *score += bias.max(f64::from(BANNED_SCORE)) as f32;
            }
        }
    }

    /// Applies the prompt's repetition penalty to the score of a prompt token.
    pub(super) fn apply_prompt_penalty(&self, score: f32) -> f32 {
        let factor = self.prompt_repetition_penalty as f32;
        if score < 0.0 {
            score / factor
        } else {
            score * factor
        }
    }

    /// Applies the rules that come after the repetition penalty.
    pub(super) fn apply_after_penalties(&self, scores: &mut [f32], at: RuleContext) {
        let length = at.tokens.len();
        let new = at.tokens.len() - at.prompt;

        ban_ngrams(scores, self.no_repeat_ngram, at.tokens, at.tokens);
        ban_ngrams(
            scores,
            self.no_repeat_prompt_ngram,
            at.tokens,
            &at.tokens[..at.prompt],
        );
        if length < self.min_length || new < self.min_new_tokens {
            ban(scores, &self.end_tokens);
        }
        if let Some(first) = self.forced_first.filter(|_| length == 1) {
            force(scores, &[first]);
        }
        if !self.forced_last.is_empty() && at.max_tokens == Some(new + 1) {
            force(scores, &self.forced_last);
        }
        if let Some((from, factor, ends)) =
            self.end_growth.as_ref().filter(|(from, ..)| new > *from)
        {
            let growth = (factor.powi((new - from) as i32) - 1.0) as f32;
            for end in ends {
                if let Some(score) = scores
                    .get_mut(*end as usize)
                    .filter(|score| **score > BANNED_SCORE / 2.0)
                {
                    *score += score.abs() * growth;
                }
            }
        }
        ban(scores, &self.suppress);
        // After a forced first token, the answer begins one token later.
        if new == usize::from(at.prompt == 1 && self.forced_first.is_some()) {
            ban(scores, &self.begin_suppress);
        }
    }
}

/// Bans the last token of every `size`-gram in `text` whose other tokens end `tokens`.
fn ban_ngrams(scores: &mut [f32], size: usize, tokens: &[u32], text: &[u32]) {
    if size == 0 || tokens.len() + 1 < size {
        return;
    }
    let end = &tokens[tokens.len() + 1 - size..];
    for ngram in text.windows(size).filter(|ngram| ngram.starts_with(end)) {
        ban(scores, &ngram[size - 1..]);
    }
}

fn ban(scores: &mut [f32], tokens: &[u32]) {
    for token in tokens {
        if let Some(score) = scores.get_mut(*token as usize) {
            *score = BANNED_SCORE;
        }
    }
}

fn force(scores: &mut [f32], tokens: &[u32]) {
    scores.fill(BANNED_SCORE);
    for token in tokens {
        if let Some(score) = scores.get_mut(*token as usize) {
            *score = 0.0;
        }
    }
}
