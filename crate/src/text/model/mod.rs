//! The models of tokenizer.json: words to ids.

mod bpe;
mod unigram;
mod vocab;

use super::budget::EncodeBudget;
use super::tokenizer_error;
use crate::Result;

pub(super) use bpe::{Bpe, BpeOptions, BpeScratch, Merges};
pub(super) use unigram::Unigram;
pub(super) use vocab::Vocab;
pub(super) use vocab::VocabHash;

/// Start and end of a word in its text, in bytes.
pub(super) type WordSpan = (usize, usize);

/// A model with its vocabulary.
pub(super) struct TokenizerModel {
    pub vocab: Vocab,
    pub kind: ModelAlgorithm,
}

/// Algorithm of a model.
pub(super) enum ModelAlgorithm {
    Bpe(Bpe),
    Unigram(Unigram),
    /// Longest match first; `prefix` marks the continuation of a word.
    WordPiece {
        unk: Option<u32>,
        prefix: String,
        max_chars: usize,
        /// Length of the longest token in bytes.
        longest: usize,
    },
    /// Whole words.
    WordLevel {
        unk: Option<u32>,
    },
}

impl TokenizerModel {
    /// Id of the unknown token.
    pub fn unk(&self) -> Option<u32> {
        match &self.kind {
            ModelAlgorithm::Bpe(bpe) => bpe.unk(),
            ModelAlgorithm::Unigram(unigram) => unigram.unk(),
            ModelAlgorithm::WordPiece { unk, .. } | ModelAlgorithm::WordLevel { unk } => *unk,
        }
    }

    /// Appends the ids of the words of `text`.
    pub fn encode(
        &self,
        text: &str,
        words: &[WordSpan],
        budget: &EncodeBudget,
        scratch: &mut BpeScratch,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        for (start, end) in words {
            let word = text.get(*start..*end).filter(|word| !word.is_empty());
            let Some(word) = word else { continue };
            match &self.kind {
                ModelAlgorithm::Bpe(bpe) => bpe.encode(&self.vocab, word, scratch, out),
                ModelAlgorithm::Unigram(unigram) => {
                    unigram.encode(&self.vocab, word, budget, out)?;
                }
                ModelAlgorithm::WordPiece {
                    unk,
                    prefix,
                    max_chars,
                    longest,
                } => {
                    let before = out.len();
                    let fits = word.chars().count() <= *max_chars;
                    if !fits || !self.pieces(word, prefix, *longest, budget, out)? {
                        out.truncate(before);
                        out.push(require_unk(*unk)?);
                    }
                }
                ModelAlgorithm::WordLevel { unk } => {
                    out.push(self.vocab.get(word).map_or_else(|| require_unk(*unk), Ok)?);
                }
            }
        }
        Ok(())
    }

    /// Appends the pieces of a word, each the longest one; false if a part of the word has none.
    fn pieces(
        &self,
        word: &str,
        prefix: &str,
        longest: usize,
        budget: &EncodeBudget,
        out: &mut Vec<u32>,
    ) -> Result<bool> {
        let mut rest = word;
        let mut piece = String::new();
        while !rest.is_empty() {
            piece.clear();
            if rest.len() < word.len() {
                piece.push_str(prefix);
            }
            let mark = piece.len();
            piece.push_str(&rest[..rest.floor_char_boundary(longest)]);
            let mut hash = VocabHash::new().add(&piece.as_bytes()[..mark]);
            let mut found = None;
            for (at, c) in piece[mark..].char_indices() {
                budget.step(1)?;
                let start = mark + at;
                let end = start + c.len_utf8();
                hash = hash.add(&piece.as_bytes()[start..end]);
                if let Some(id) = self.vocab.get_hashed(&piece[..end], hash) {
                    found = Some((id, end - mark));
                }
            }
            let Some((id, length)) = found else {
                return Ok(false);
            };
            out.push(id);
            rest = &rest[length..];
        }
        Ok(true)
    }
}

fn require_unk(unk: Option<u32>) -> Result<u32> {
    unk.ok_or_else(|| {
        tokenizer_error("a word is not in the vocabulary, and tokenizer.json has no unk_token")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_words() {
        let mut vocab = Vocab::default();
        (0..)
            .zip(["[UNK]", "play", "##ing", "##s", "p"])
            .for_each(|(id, token)| vocab.insert(token, id));
        let encode = |model: &TokenizerModel, text: &str| {
            let mut out = Vec::new();
            model
                .encode(
                    text,
                    &[(0, text.len())],
                    &EncodeBudget::for_text(text.len()),
                    &mut BpeScratch::default(),
                    &mut out,
                )
                .ok()
                .map(|()| out)
        };
        let kind = ModelAlgorithm::WordPiece {
            unk: Some(0),
            prefix: "##".into(),
            max_chars: 8,
            longest: vocab.longest(),
        };
        let mut model = TokenizerModel { vocab, kind };
        assert_eq!(encode(&model, "playing"), Some(vec![1, 2]));
        assert_eq!(encode(&model, "playings"), Some(vec![1, 2, 3]));
        assert_eq!(encode(&model, "playé"), Some(vec![0]));
        assert_eq!(
            encode(&model, "playplays"),
            Some(vec![0]),
            "more than 8 characters"
        );
        model.kind = ModelAlgorithm::WordLevel { unk: None };
        assert_eq!(encode(&model, "play"), Some(vec![1]));
        assert!(encode(&model, "playing").is_none());
        model.kind = ModelAlgorithm::WordLevel { unk: Some(0) };
        assert_eq!(encode(&model, "playing"), Some(vec![0]));
    }
}
