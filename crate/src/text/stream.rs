//! Ids to text as they are sampled. Knows the tokenizer, not where ids come from.

use super::decode::{Decoder, REPLACEMENT};
use super::tokenizer::Tokenizer;

/// Ids to text as they come, never half a character.
///
/// The pieces joined are what [`Tokenizer::decode`] gives, with one exception that only a model that writes broken
/// UTF-8 through byte-fallback tokens can bring about: `decode` then replaces a whole run of bytes, of which the stream
/// may have shown a valid beginning already.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    decoder: Decoder,
    skip_special: bool,
    pending: String,
}

impl StreamDecoder {
    /// Takes the next id of the stream of `tokenizer`, the one that made this decoder, and returns the text to show.
    ///
    /// Empty while a character is incomplete, for special tokens that are skipped and for ids that do not exist.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if let Some(piece) = tokenizer.piece(id, self.skip_special) {
            self.decoder.push(piece, &mut self.pending);
        }
        let incomplete = self.decoder.settle(&mut self.pending);
        if incomplete || self.pending.ends_with(REPLACEMENT) {
            return String::new();
        }
        std::mem::take(&mut self.pending)
    }

    /// The end of the stream: whatever was held back.
    pub fn finish(&mut self) -> String {
        self.decoder.finish(&mut self.pending);
        std::mem::take(&mut self.pending)
    }
}

impl Tokenizer {
    /// A decoder for ids that come one by one.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder {
        StreamDecoder { decoder: self.decoder(), skip_special, pending: String::new() }
    }
}
