//! Reads the vocabulary of tokenizer.json into the library's models. It knows the model's part of the file, not what is done with the text.
//!
//! The vocabulary and the merges are read straight into the library's maps, because its own reader holds them three
//! times over and a page has little memory. Here too is what the library leaves to the honesty of the file.

use crate::util::lists::sort_by;
use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokenizers::models::bpe::{BpeConfig, Merges, PipelineBPE, Vocab};
use tokenizers::models::{unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece};
use tokenizers::pipeline::PipelineModel;
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

use super::components::{Components, Normalizers};
use super::file::AddedEntry;
use super::tokenizer_error;
use crate::Result;

/// The largest id that is believed. Real vocabularies end at about 262,000; tables are as long as the largest id.
const MAX_ID: u32 = 1 << 21;
/// The longest token that the library's tables hold.
const MAX_TOKEN_BYTES: usize = u16::MAX as usize;

/// The model's own tables and what encoding and decoding need to know of them.
pub(super) struct Model {
    pub model: PipelineModel,
    /// Tokens of the model, without the added ones.
    pub len: usize,
    pub added: AddedVocabulary,
    /// One more than the largest id of the model.
    pub id_bound: u32,
    /// What stands for characters that the vocabulary lacks.
    pub unk: Option<u32>,
}

#[derive(Deserialize)]
struct ModelFile {
    #[serde(default)]
    vocab: VocabFile,
    merges: Option<MergesFile>,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    max_input_chars_per_word: Option<usize>,
}

/// `vocab` as it stands: token to id, or, for Unigram, token and score in the order of the ids.
#[derive(Default)]
enum VocabFile {
    #[default]
    Missing,
    Ids(Vocab),
    Scores(Vec<(String, f64)>),
}

impl<'de> Deserialize<'de> for VocabFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = VocabFile;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of ids or an array of [token, score] pairs")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabFile, A::Error> {
                let mut vocab = Vocab::default();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    if id >= MAX_ID || token.len() > MAX_TOKEN_BYTES {
                        return Err(A::Error::custom(format!("token {token:.40?} with id {id} is out of range")));
                    }
                    vocab.insert(token, id);
                }
                Ok(VocabFile::Ids(vocab))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabFile, A::Error> {
                let mut scores = Vec::new();
                while let Some((token, score)) = seq.next_element::<(String, f64)>()? {
                    if scores.len() >= MAX_ID as usize || token.len() > MAX_TOKEN_BYTES || !score.is_finite() {
                        return Err(A::Error::custom(format!("token {token:.40?} with score {score} is out of range")));
                    }
                    scores.push((token, score));
                }
                Ok(VocabFile::Scores(scores))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// `merges` as pairs; files from before 2024 have them as `"a b"`.
struct MergesFile(Merges);

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeEntry<'a> {
    Joined(#[serde(borrow)] Cow<'a, str>),
    Pair((String, String)),
}

impl<'de> Deserialize<'de> for MergesFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = MergesFile;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergesFile, A::Error> {
                let mut merges = Merges::new();
                while let Some(entry) = seq.next_element::<MergeEntry>()? {
                    match entry {
                        MergeEntry::Pair(pair) => merges.push(pair),
                        MergeEntry::Joined(line) if line.starts_with("#version") => {}
                        MergeEntry::Joined(line) => match line.split_once(' ') {
                            Some((a, b)) if !b.contains(' ') => merges.push((a.to_owned(), b.to_owned())),
                            _ => return Err(A::Error::custom(format!("the merge {line:?} is not two tokens"))),
                        },
                    }
                }
                Ok(MergesFile(merges))
            }
        }
        deserializer.deserialize_seq(V)
    }
}

/// Builds the model and, against its vocabulary, the added tokens.
pub(super) fn model(
    raw: &RawValue,
    components: &Components,
    added: &[AddedEntry],
    normalizers: &Normalizers,
) -> Result<Model> {
    let file: ModelFile =
        serde_json::from_str(raw.get()).map_err(|e| tokenizer_error(format!("tokenizer.json, model: {e}")))?;
    let wrap = |e: tokenizers::Error| tokenizer_error(format!("tokenizer.json, {} model: {e}", components.kind));
    let missing = || tokenizer_error(format!("tokenizer.json: the {} model has no usable vocab", components.kind));
    let unk_of = |vocab: &Vocab, default: &str| vocab.get(file.unk_token.as_deref().unwrap_or(default)).copied();
    match (components.kind.as_str(), file.vocab) {
        ("BPE", VocabFile::Ids(vocab)) => {
            let merges = file.merges.map(|m| m.0).unwrap_or_default();
            let prefix = file.continuing_subword_prefix.filter(|p| !p.is_empty());
            let unk = unk_of(&vocab, "");
            check_merges(&vocab, &merges, prefix.as_deref())?;
            let (len, id_bound) = (vocab.len(), id_bound(&vocab));
            let added = added_vocabulary(added, len, normalizers, |t| vocab.get(t).copied())?;
            let config = BpeConfig {
                vocab,
                merges,
                byte_level: components.byte_level,
                unk_token: file.unk_token,
                continuing_subword_prefix: prefix,
                end_of_word_suffix: file.end_of_word_suffix.filter(|s| !s.is_empty()),
                fuse_unk: file.fuse_unk.unwrap_or(false),
                byte_fallback: file.byte_fallback.unwrap_or(false),
                ignore_merges: file.ignore_merges.unwrap_or(false),
                ..BpeConfig::default()
            };
            Ok(Model {
                model: PipelineModel::BPE(PipelineBPE::from_config(config).map_err(wrap)?),
                len,
                added,
                id_bound,
                unk,
            })
        }
        ("Unigram", VocabFile::Scores(scores)) => {
            let unigram = Unigram::from(scores, file.unk_id, file.byte_fallback.unwrap_or(false)).map_err(wrap)?;
            let (len, unk) = (unigram.get_vocab_size(), file.unk_id.and_then(|id| u32::try_from(id).ok()));
            let added = added_vocabulary(added, len, normalizers, |t| unigram.token_to_id(t))?;
            Ok(Model { model: PipelineModel::Unigram(unigram), len, added, id_bound: len as u32, unk })
        }
        ("WordPiece", VocabFile::Ids(vocab)) => {
            let unk = unk_of(&vocab, "[UNK]");
            let (len, id_bound) = (vocab.len(), id_bound(&vocab));
            let added = added_vocabulary(added, len, normalizers, |t| vocab.get(t).copied())?;
            let model = WordPiece::builder()
                .vocab(vocab)
                .unk_token(file.unk_token.unwrap_or_else(|| "[UNK]".to_owned()))
                .continuing_subword_prefix(file.continuing_subword_prefix.unwrap_or_else(|| "##".to_owned()))
                .max_input_chars_per_word(file.max_input_chars_per_word.unwrap_or(100).min(1 << 16))
                .build()
                .and_then(TryInto::try_into)
                .map_err(wrap)?;
            Ok(Model { model: PipelineModel::WordPiece(model), len, added, id_bound, unk })
        }
        ("WordLevel", VocabFile::Ids(vocab)) => {
            let unk = unk_of(&vocab, "<unk>");
            let (len, id_bound) = (vocab.len(), id_bound(&vocab));
            let added = added_vocabulary(added, len, normalizers, |t| vocab.get(t).copied())?;
            let spelling = file.unk_token.unwrap_or_else(|| "<unk>".to_owned());
            let model = WordLevel::builder().vocab(vocab).unk_token(spelling).build().map_err(wrap)?;
            Ok(Model { model: PipelineModel::WordLevel(model), len, added, id_bound, unk })
        }
        ("BPE" | "Unigram" | "WordPiece" | "WordLevel", _) => Err(missing()),
        (other, _) => Err(tokenizer_error(format!(
            "tokenizer.json: the model type {other:?} is not supported (BPE, Unigram, WordPiece and WordLevel are)"
        ))),
    }
}

fn id_bound(vocab: &Vocab) -> u32 {
    vocab.values().max().map_or(0, |id| id + 1)
}

/// The library trusts that a merge's result is a token no longer than the longest one; a damaged file may break that.
fn check_merges(vocab: &Vocab, merges: &Merges, prefix: Option<&str>) -> Result<()> {
    let cut = prefix.map_or(0, str::len);
    let mut joined = String::new();
    for (left, right) in merges {
        joined.clear();
        joined.push_str(left);
        let fits = right.get(cut..).is_some_and(|rest| {
            joined.push_str(rest);
            [left, right, &joined].iter().all(|token| vocab.contains_key(token.as_str()))
        });
        if !fits {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the merge of {left:?} and {right:?} names a token that is not in the vocabulary"
            )));
        }
    }
    Ok(())
}

/// Adds the tokens in the order of their ids: the library gives new ones the next free id, as it did when they were made.
fn added_vocabulary(
    added: &[AddedEntry],
    vocab_size: usize,
    normalizers: &Normalizers,
    token_to_id: impl Fn(&str) -> Option<u32>,
) -> Result<AddedVocabulary> {
    let mut order: Vec<&AddedEntry> = added.iter().collect();
    sort_by(&mut order, |a, b| a.id.cmp(&b.id));
    if let Some(bad) = order.iter().find(|e| e.content.len() > MAX_TOKEN_BYTES) {
        return Err(tokenizer_error(format!("tokenizer.json: the added token {} is too long", bad.id)));
    }
    let mut vocabulary = AddedVocabulary::new();
    vocabulary
        .add_tokens(order.iter().map(|e| e.token()), vocab_size, token_to_id, Some(normalizers))
        .map_err(|e| tokenizer_error(format!("tokenizer.json, added_tokens: {e}")))?;
    Ok(vocabulary)
}
