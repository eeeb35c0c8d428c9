//! Fill-in-the-middle: the tokens that mark the text before a gap, after it, and the start of the
//! answer. Reference: llama.cpp `src/llama-vocab.cpp` and `/infill` of its server.

use super::Tokenizer;
use crate::text::tokenizer_error;
use crate::{Error, Result};

/// Spellings of the token before the prefix, as llama.cpp lists them.
pub(crate) const FIM_PREFIX_SPELLINGS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
    "<PRE>",
    "\u{2581}<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];

/// Spellings of the token before the suffix.
pub(crate) const FIM_SUFFIX_SPELLINGS: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
    "<SUF>",
    "\u{2581}<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];

/// Spellings of the token before the text to generate.
pub(crate) const FIM_MIDDLE_SPELLINGS: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
    "<MID>",
    "\u{2581}<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// The fill-in-the-middle tokens of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FimTokens {
    /// Stands before the text that precedes the gap.
    pub prefix: u32,
    /// Stands before the text that follows the gap.
    pub suffix: u32,
    /// Stands before the text to generate.
    pub middle: u32,
}

impl Tokenizer {
    /// The fill-in-the-middle tokens, by the names `prefix_token`, `suffix_token` and
    /// `middle_token` of the special tokens, otherwise by spelling; `None` unless all three exist.
    pub fn fim_tokens(&self) -> Option<FimTokens> {
        Some(FimTokens {
            prefix: self.fim_token("prefix_token", FIM_PREFIX_SPELLINGS)?,
            suffix: self.fim_token("suffix_token", FIM_SUFFIX_SPELLINGS)?,
            middle: self.fim_token("middle_token", FIM_MIDDLE_SPELLINGS)?,
        })
    }

    /// Encodes a prompt whose completion stands between `prefix` and `suffix`: prefix first, with
    /// what the tokenizer adds before a sequence. Special tokens in both are plain text.
    ///
    /// # Errors
    /// `Tokenizer` if the vocabulary has no fill-in-the-middle tokens.
    pub fn encode_fim(&self, prefix: &str, suffix: &str) -> Result<Vec<u32>> {
        let tokens = self.fim_tokens().ok_or_else(no_fim_tokens)?;
        let mut ids = self.sequence_template.prefix.clone();
        ids.push(tokens.prefix);
        ids.extend(self.encode(prefix, false)?);
        ids.push(tokens.suffix);
        ids.extend(self.encode(suffix, false)?);
        ids.push(tokens.middle);
        Ok(ids)
    }

    fn fim_token(&self, name: &str, spellings: &[&str]) -> Option<u32> {
        let named = self.special_tokens.get(name).into_iter();
        named
            .chain(spellings.iter().copied())
            .find_map(|token| self.token_to_id(token))
    }
}

fn no_fim_tokens() -> Error {
    tokenizer_error(
        "the vocabulary has no fill-in-the-middle tokens. Send the text before the gap alone, or \
         use a code model such as StarCoder2 or Qwen2.5-Coder",
    )
}
