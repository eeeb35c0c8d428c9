//! Text processing: tokenizer, chat templates, streaming detokenizer and stop strings.
//!
//! Stages of a conversation:
//! - [`ChatTemplate::render`] turns messages into a [`Prompt`], which records where a message
//!   spells a special token.
//! - [`Tokenizer::encode_prompt`] encodes the special tokens of the template; those spelled in
//!   messages stay text.
//! - [`StreamDecoder`] turns sampled ids into text and never returns part of a character.
//! - [`StopStrings`] ends the text at the caller's stop strings.

mod alphabet;
mod chat;
mod components;
mod date;
mod decode;
mod file;
mod guard;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod library;
mod load;
mod model;
mod normalize;
mod pair;
mod pattern;
mod python;
mod scripts;
mod slow;
mod split;
mod spm;
mod stop;
mod stream;
mod tokenizer;

pub use chat::{ChatInput, ChatTemplate};
pub use date::Clock;
pub use guard::Prompt;
pub use slow::SlowTokenizerFiles;
pub use stop::StopStrings;
pub use stream::StreamDecoder;
pub use tokenizer::{EncodeOptions, SpecialTokens, Tokenizer, TokenizerFiles};

use crate::Error;

/// Creates a tokenizer error.
pub(crate) fn tokenizer_error(reason: impl Into<String>) -> Error {
    Error::Tokenizer { reason: reason.into() }
}
