//! Reads `model` of tokenizer.json.
//!
//! Parses vocabulary and merges directly into the model's lists, to save memory and load time.
//! Limits the sizes that an untrusted file can claim.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::model::{Bpe, BpeOptions, Merges, ModelAlgorithm, TokenizerModel, Unigram, Vocab};
use super::tokenizer_error;
use crate::Result;
use crate::util::limits::MAX_AFFIX_BYTES;

/// Exclusive limit of ids. Real vocabularies end at about 262,000; tables are as long as the
/// largest id.
const MAX_ID: u32 = 1 << 21;
/// Longest accepted token in bytes.
const MAX_TOKEN_BYTES: usize = u16::MAX as usize;

#[derive(Deserialize)]
struct ModelFile<'a> {
    #[serde(default)]
    vocab: VocabFile,
    #[serde(borrow)]
    merges: Option<&'a RawValue>,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    max_input_chars_per_word: Option<usize>,
}

/// `vocab` as in the file: token to id, or for Unigram (token, score) in id order.
#[derive(Default)]
struct VocabFile {
    vocab: Vocab,
    /// `None` if the tokens have ids.
    scores: Option<Vec<f64>>,
}

/// Deserializes a string into a reused buffer.
struct StringSeed<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for StringSeed<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for StringSeed<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.clear();
        self.0.push_str(text);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for VocabFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = VocabFile;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of ids or an array of [token, score] pairs")
            }
            fn visit_unit<E>(self) -> Result<VocabFile, E> {
                Ok(VocabFile::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabFile, A::Error> {
                let mut vocab = Vocab::default();
                let mut token = String::new();
                while map.next_key_seed(StringSeed(&mut token))?.is_some() {
                    let id: u32 = map.next_value()?;
                    if id >= MAX_ID || token.len() > MAX_TOKEN_BYTES {
                        return Err(A::Error::custom(format!(
                            "token {token:.40?} with id {id} is out of range: ids must be below {MAX_ID}, tokens at most {MAX_TOKEN_BYTES} bytes"
                        )));
                    }
                    vocab.insert(&token, id);
                }
                Ok(VocabFile {
                    vocab,
                    scores: None,
                })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabFile, A::Error> {
                let mut vocab = Vocab::default();
                let mut scores = Vec::new();

                while let Some((token, score)) = seq.next_element::<(String, f64)>()? {
                    if scores.len() >= MAX_ID as usize
                        || token.len() > MAX_TOKEN_BYTES
                        || !score.is_finite()
                    {
                        return Err(A::Error::custom(format!(
                            "token {token:.40?} with score {score} is out of range: scores must be finite, ids below {MAX_ID}, tokens at most {MAX_TOKEN_BYTES} bytes"
                        )));
                    }
                    vocab.insert(&token, scores.len() as u32);
                    scores.push(score);
                }
                Ok(VocabFile {
                    vocab,
                    scores: Some(scores),
                })
            }
        }
        deserializer.deserialize_any(VocabVisitor)
    }
}

/// Deserializes `merges`: pairs, or `"a b"` in files from before 2024.
struct MergesFile<'a> {
    vocab: &'a Vocab,
    prefix: &'a str,
}

impl<'de> Visitor<'de> for MergesFile<'_> {
    type Value = Merges;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of merges")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
        let mut merges = Merges::default();
        let mut left = String::new();
        let mut right = String::new();

        while let Some(skip) = seq.next_element_seed(MergeFile(&mut left, &mut right))? {
            if !skip {
                self.add(&mut left, &right, &mut merges)
                    .map_err(A::Error::custom)?;
            }
        }
        Ok(merges)
    }
}

impl MergesFile<'_> {
    fn add(&self, left: &mut String, right: &str, merges: &mut Merges) -> Result<(), String> {
        let ids = self.vocab.get(left).zip(self.vocab.get(right));
        let length = left.len();
        left.push_str(right.get(self.prefix.len()..).unwrap_or_default());
        let found = ids
            .zip(self.vocab.get(left))
            .filter(|_| right.len() >= self.prefix.len());
        left.truncate(length);
        let ((l, r), merged) = found.ok_or_else(|| {
            format!(
                "the merge of {left:?} and {right:?} names a token that is not in the vocabulary"
            )
        })?;
        merges.push(l, r, merged);
        Ok(())
    }
}

/// Deserializes one merge into two buffers; returns true for a comment.
struct MergeFile<'a>(&'a mut String, &'a mut String);

impl<'de> DeserializeSeed<'de> for MergeFile<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergeFile<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a merge of two tokens")
    }
    fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<bool, E> {
        if line.starts_with("#version") {
            return Ok(true);
        }
        let parts = line
            .split_once(' ')
            .filter(|(_, right)| !right.contains(' '));
        let (left, right) =
            parts.ok_or_else(|| E::custom(format!("the merge {line:?} must be two tokens")))?;
        self.0.clear();
        self.0.push_str(left);
        self.1.clear();
        self.1.push_str(right);
        Ok(false)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        let both = seq
            .next_element_seed(StringSeed(self.0))?
            .and(seq.next_element_seed(StringSeed(self.1))?);
        match both {
            Some(()) => Ok(false),
            None => Err(A::Error::custom("a merge must be two tokens")),
        }
    }
}

/// Builds the model of type `kind`. `byte_level`: its input is plain text, its vocabulary is in
/// GPT-2's byte alphabet.
pub(super) fn load_model(raw: &RawValue, kind: &str, byte_level: bool) -> Result<TokenizerModel> {
    let wrong = |e: serde_json::Error| tokenizer_error(format!("tokenizer.json, model: {e}"));
    let file: ModelFile = serde_json::from_str(raw.get()).map_err(wrong)?;
    let VocabFile { vocab, scores } = file.vocab;
    for affix in [&file.continuing_subword_prefix, &file.end_of_word_suffix] {
        if affix
            .as_ref()
            .is_some_and(|affix| affix.len() > MAX_AFFIX_BYTES)
        {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the prefix or suffix of the model is longer than {MAX_AFFIX_BYTES} bytes"
            )));
        }
    }
    let unk = |default: &str| vocab.get(file.unk_token.as_deref().unwrap_or(default));
    let kind = match (kind, scores) {
        ("BPE", None) => {
            let prefix = file.continuing_subword_prefix.unwrap_or_default();
            let merges = match file.merges {
                Some(merges) => serde_json::Deserializer::from_str(merges.get())
                    .deserialize_seq(MergesFile {
                        vocab: &vocab,
                        prefix: &prefix,
                    })
                    .map_err(wrong)?,
                None => Merges::default(),
            };
            let options = BpeOptions {
                byte_level,
                unk_token: file.unk_token,
                continuing_subword_prefix: prefix,
                end_of_word_suffix: file.end_of_word_suffix.unwrap_or_default(),
                fuse_unk: file.fuse_unk.unwrap_or(false),
                byte_fallback: file.byte_fallback.unwrap_or(false),
                ignore_merges: file.ignore_merges.unwrap_or(false),
            };
            ModelAlgorithm::Bpe(Bpe::new(&vocab, merges, options)?)
        }
        ("Unigram", Some(scores)) => {
            let count = scores.len();
            if file.unk_id.is_some_and(|id| id >= count) {
                return Err(tokenizer_error(
                    "tokenizer.json: `unk_id` of the model is not in the vocabulary",
                ));
            }
            let unk = file.unk_id.map(|id| id as u32);
            ModelAlgorithm::Unigram(Unigram::new(
                &vocab,
                scores,
                unk,
                file.byte_fallback.unwrap_or(false),
            ))
        }
        ("WordPiece", None) => ModelAlgorithm::WordPiece {
            unk: unk("[UNK]"),
            prefix: file
                .continuing_subword_prefix
                .unwrap_or_else(|| "##".to_owned()),
            max_chars: file.max_input_chars_per_word.unwrap_or(100).min(1 << 16),
            longest: vocab.longest(),
        },
        ("WordLevel", None) => ModelAlgorithm::WordLevel { unk: unk("<unk>") },
        ("BPE" | "Unigram" | "WordPiece" | "WordLevel", _) => {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the {kind} model has no usable vocab"
            )));
        }
        (other, _) => {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the model type {other:?} is not supported; use BPE, Unigram, WordPiece or WordLevel"
            )));
        }
    };
    Ok(TokenizerModel { vocab, kind })
}
