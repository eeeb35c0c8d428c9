//! Text in, token ids out, and back: tokenizer, chat template, streaming detokenizer, stop strings. It knows no model
//! and no GPU; it sees the bytes of tokenizer.json and its neighbours and the strings of a conversation.
//!
//! The way of a conversation: [`ChatTemplate::render`] turns the messages into a [`Prompt`], that is, text in which the
//! places are marked where a message contains the spelling of a special token; [`Tokenizer::encode_prompt`] honours
//! the special tokens of the template and none that a message tries to smuggle in; [`StreamDecoder`] turns sampled ids
//! into text without ever showing half a character; [`StopStrings`] cuts the text at the caller's stop strings.

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

/// An error of the tokenizer.
pub(crate) fn tokenizer_error(reason: impl Into<String>) -> Error {
    Error::Tokenizer { reason: reason.into() }
}
