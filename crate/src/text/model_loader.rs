//! Reads `model` of tokenizer.json.
//!
//! Parses vocabulary and merges directly into the model's lists, to save memory and load time.
//! Limits the sizes that an untrusted file can claim.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::model::{
    Bpe, BpeOptions, Merges, ModelAlgorithm, TokenizerModel, Unigram, Vocab, VocabHash,
};
use super::tokenizer_error;
use crate::Result;
use crate::util::limits::MAX_AFFIX_BYTES;

/// Exclusive limit of ids. Real vocabularies end at about 262,000; tables are as long as the
/// largest id.
pub(super) const MAX_ID: u32 = 1 << 21;
/// Longest accepted token in bytes.
const MAX_TOKEN_BYTES: usize = u16::MAX as usize;

/// `model` of tokenizer.json. Its vocabulary and merges take most of a load's time, so they are read
/// once, where they stand. Serializes everything but these two.
#[derive(Default, Serialize)]
pub(super) struct ModelFile {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(skip)]
    pub vocab: VocabFile,
    #[serde(skip)]
    pub merges: Option<Merges>,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    max_input_chars_per_word: Option<usize>,
}

impl ModelFile {
    /// The model type; of an old file without one, derived from its fields.
    pub fn kind(&self) -> &str {
        match &self.kind {
            Some(kind) => kind,
            None if self.merges.is_some() => "BPE",
            None if self.continuing_subword_prefix.is_some() => "WordPiece",
            None if self.vocab.scores.is_some() => "Unigram",
            None => "WordLevel",
        }
    }

    /// Writes down the model type that is derived from the vocabulary and the merges.
    pub fn name_kind(&mut self) {
        self.kind = Some(self.kind().to_owned());
    }

    fn merges_seed(&self) -> MergesFile<'_> {
        MergesFile {
            vocab: &self.vocab.vocab,
            prefix: self
                .continuing_subword_prefix
                .as_deref()
                .unwrap_or_default(),
        }
    }
}

impl<'de> Deserialize<'de> for ModelFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelVisitor;
        impl<'de> Visitor<'de> for ModelVisitor {
            type Value = ModelFile;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelFile, A::Error> {
                let mut file = ModelFile::default();
                let mut has_prefix = false;
                // Merges that stand before the vocabulary or the prefix.
                let mut unread: Option<&RawValue> = None;
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match &*key {
                        "type" => file.kind = map.next_value()?,
                        "vocab" => file.vocab = map.next_value()?,
                        "merges" => {
                            let can_read = has_prefix
                                && file.vocab.scores.is_none()
                                && file.vocab.vocab.len() > 0;
                            if can_read && file.kind() == "BPE" {
                                file.merges = map.next_value_seed(file.merges_seed())?;
                            } else {
                                unread = map.next_value()?;
                                file.merges = unread.map(|_| Merges::default());
                            }
                        }
                        "unk_token" => file.unk_token = map.next_value()?,
                        "unk_id" => file.unk_id = map.next_value()?,
                        "continuing_subword_prefix" => {
                            file.continuing_subword_prefix = map.next_value()?;
                            has_prefix = true;
                        }
                        "end_of_word_suffix" => file.end_of_word_suffix = map.next_value()?,
                        "fuse_unk" => file.fuse_unk = map.next_value()?,
                        "byte_fallback" => file.byte_fallback = map.next_value()?,
                        "ignore_merges" => file.ignore_merges = map.next_value()?,
                        "max_input_chars_per_word" => {
                            file.max_input_chars_per_word = map.next_value()?;
                        }
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                if let Some(merges) = unread
                    && file.vocab.scores.is_none()
                    && file.kind() == "BPE"
                {
                    let mut text = serde_json::Deserializer::from_str(merges.get());
                    let read = file.merges_seed().deserialize(&mut text);
                    file.merges = read.map_err(A::Error::custom)?;
                }
                Ok(file)
            }
        }
        deserializer.deserialize_map(ModelVisitor)
    }
}

/// `vocab` as in the file: token to id, or for Unigram (token, score) in id order.
#[derive(Default)]
pub(super) struct VocabFile {
    pub vocab: Vocab,
    /// `None` if the tokens have ids.
    pub scores: Option<Vec<f64>>,
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

/// Deserializes `merges`: pairs, or `"a b"` in files from before 2024; `None` for null.
struct MergesFile<'a> {
    vocab: &'a Vocab,
    prefix: &'a str,
}

impl<'de> DeserializeSeed<'de> for MergesFile<'_> {
    type Value = Option<Merges>;
    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Option<Merges>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergesFile<'_> {
    type Value = Option<Merges>;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of merges")
    }
    fn visit_unit<E>(self) -> Result<Option<Merges>, E> {
        Ok(None)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<Merges>, A::Error> {
        let mut merges = Merges::default();
        let mut left = String::new();
        let mut right = String::new();

        while let Some(skip) = seq.next_element_seed(MergeFile(&mut left, &mut right))? {
            if !skip {
                self.add(&mut left, &right, &mut merges)
                    .map_err(A::Error::custom)?;
            }
        }
        Ok(Some(merges))
    }
}

impl MergesFile<'_> {
    fn add(&self, left: &mut String, right: &str, merges: &mut Merges) -> Result<(), String> {
        let hash = VocabHash::new().add(left.as_bytes());
        let ids = self.vocab.get_hashed(left, hash).zip(self.vocab.get(right));
        let length = left.len();
        let rest = right.get(self.prefix.len()..).unwrap_or_default();
        left.push_str(rest);
        let found = ids
            .zip(self.vocab.get_hashed(left, hash.add(rest.as_bytes())))
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

/// Builds the model. `byte_level`: its input is plain text, its vocabulary is in GPT-2's byte
/// alphabet.
pub(super) fn load_model(file: ModelFile, byte_level: bool) -> Result<TokenizerModel> {
    let kind = file.kind().to_owned();
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
    let kind = match (kind.as_str(), scores) {
        ("BPE", None) => {
            let options = BpeOptions {
                byte_level,
                unk_token: file.unk_token,
                continuing_subword_prefix: file.continuing_subword_prefix.unwrap_or_default(),
                end_of_word_suffix: file.end_of_word_suffix.unwrap_or_default(),
                fuse_unk: file.fuse_unk.unwrap_or(false),
                byte_fallback: file.byte_fallback.unwrap_or(false),
                ignore_merges: file.ignore_merges.unwrap_or(false),
            };
            ModelAlgorithm::Bpe(Bpe::new(&vocab, file.merges.unwrap_or_default(), options)?)
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

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;

    /// The ids of "low lower" with the model's fields in this order.
    fn ids(fields: &[&str]) -> Vec<u32> {
        let text = format!(r#"{{"model":{{{}}}}}"#, fields.join(","));
        let tokenizer = Tokenizer::from_json(text.as_bytes());
        let tokenizer = tokenizer.unwrap_or_else(|e| panic!("{text}: {e}"));
        tokenizer.encode("lower", false).expect("ids")
    }

    #[test]
    fn fields_may_stand_in_any_order() {
        let vocab = r#""vocab":{"l":0,"o":1,"w":2,"e":3,"r":4,"lo":5,"low":6,"#;
        let vocab = format!(r#"{vocab}"er":7}}"#);
        for merges in [
            r#""merges":["l o","lo w","e r"]"#,
            r#""merges":[["l","o"],["lo","w"],["e","r"]]"#,
        ] {
            for kind in [r#""type":"BPE""#, r#""dropout":null"#] {
                let prefix = r#""continuing_subword_prefix":null"#;
                let fields = [kind, prefix, &vocab, merges];
                for order in [
                    [0, 1, 2, 3],
                    [0, 1, 3, 2],
                    [3, 2, 1, 0],
                    [2, 3, 0, 1],
                    [1, 2, 3, 0],
                ] {
                    assert_eq!(ids(&order.map(|at| fields[at])), [6, 7], "{order:?}");
                }
            }
        }
    }

    #[test]
    fn a_prefix_behind_the_merges_counts() {
        let vocab = r###""vocab":{"l":0,"##o":1,"lo":2}"###;
        let merges = r###""merges":["l ##o"]"###;
        let prefix = r###""continuing_subword_prefix":"##""###;
        for fields in [[prefix, vocab, merges], [vocab, merges, prefix]] {
            let text = format!(r#"{{"model":{{"type":"BPE",{}}}}}"#, fields.join(","));
            let tokenizer = Tokenizer::from_json(text.as_bytes()).expect("a tokenizer");
            assert_eq!(tokenizer.encode("lo", false).expect("ids"), [2]);
        }
    }

    #[test]
    fn merges_of_unknown_tokens_are_refused() {
        let text = r#"{"model":{"type":"BPE","continuing_subword_prefix":"","vocab":{"a":0},"merges":["a b"]}}"#;
        let error = Tokenizer::from_json(text.as_bytes()).expect_err("a fault");
        assert!(error.to_string().contains("\"b\""), "{error}");
    }
}
