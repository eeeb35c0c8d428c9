//! Streaming detokenizer: converts sampled ids to text.

use super::Tokenizer;
use crate::text::decode::{REPLACEMENT, TokenDecoder};

/// Decodes ids as they arrive and never returns part of a character.
///
/// The joined pieces equal [`Tokenizer::decode`], with one exception: byte-fallback tokens that
/// form broken UTF-8. There `decode` replaces a whole run of bytes, while the stream may have
/// returned a valid beginning.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    decoder: TokenDecoder,
    skip_special: bool,
    pending: String,
}

impl StreamDecoder {
    /// Decodes the next id with `tokenizer`, which made this decoder, and returns the text to show.
    ///
    /// Empty while a character is incomplete, for skipped special tokens and for ids that do not
    /// exist.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if let Some(piece) = tokenizer.piece(id, self.skip_special) {
            self.decoder.push(piece, &mut self.pending);
        }
        let incomplete = self.decoder.flush_complete(&mut self.pending);
        if incomplete || self.pending.ends_with(REPLACEMENT) {
            return String::new();
        }
        std::mem::take(&mut self.pending)
    }

    /// Ends the stream and returns the text held back.
    pub fn finish(&mut self) -> String {
        self.decoder.finish(&mut self.pending);
        std::mem::take(&mut self.pending)
    }
}

impl Tokenizer {
    /// Creates a decoder for ids that arrive one by one.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder {
        StreamDecoder {
            decoder: self.decoder(),
            skip_special,
            pending: String::new(),
        }
    }
}
