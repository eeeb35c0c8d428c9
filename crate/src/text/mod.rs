//! Text processing: tokenizer, chat templates, streaming detokenizer and stop strings.
//!
//! Stages of a conversation:
//! - [`ChatTemplate::render`] turns messages into a [`RenderedPrompt`], which records where a message
//!   spells a special token.
//! - [`Tokenizer::encode_prompt`] encodes the special tokens of the template; those spelled in
//!   messages stay text.
//! - [`StreamDecoder`] turns sampled ids into text and never returns part of a character.
//! - [`StopStrings`] ends the text at the caller's stop strings.

mod alphabet;
mod budget;
mod chat;
mod class_settings;
mod compact;
mod components;
mod decode;
mod jinja;
mod local_time;
mod model;
mod model_loader;
mod normalize;
mod post_processor;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod reference_library;
mod regex;
mod scripts;
mod sentencepiece;
mod slow_tokenizer;
mod special_token_guard;
mod split;
mod stop;
mod tokenizer;
mod tokenizer_file;

pub use chat::{ChatInput, ChatTemplate};
pub(crate) use compact::{COMPACT_VERSION, is_compact};
pub use local_time::LocalTime;
pub use slow_tokenizer::SlowTokenizerFiles;
pub use special_token_guard::RenderedPrompt;
pub use stop::StopStrings;
pub(crate) use tokenizer::fim;
pub use tokenizer::{
    EncodeOptions, FimTokens, SpecialTokens, StreamDecoder, Tokenizer, TokenizerFiles,
};
pub(crate) use tokenizer::{MARKS_SPECIAL_TOKENS, eos_token_ids};

use crate::{Error, Result};
use budget::EncodeBudget;
use regex::Regex;

/// Whether a regular expression matches at the start of a text, as Python's `re.match`.
///
/// # Errors
/// `Tokenizer` for an expression that is not supported or takes too long.
pub(crate) fn regex_matches_start(regex: &str, text: &str) -> Result<bool> {
    Regex::new(regex)?.matches_start(text, &EncodeBudget::for_text(text.len()))
}

/// Creates a tokenizer error.
pub(crate) fn tokenizer_error(reason: impl Into<String>) -> Error {
    Error::Tokenizer {
        reason: reason.into(),
    }
}
