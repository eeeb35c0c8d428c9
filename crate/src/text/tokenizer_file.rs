//! tokenizer.json as parsed by serde: its parts, and the type of its model.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;
use serde_json::value::RawValue;

use super::tokenizer_error;
use crate::Result;
use crate::util::limits::MAX_TOKENIZER_PART_BYTES;

/// tokenizer.json. The model stays raw text until its parts are read one by one.
#[derive(Deserialize)]
pub(super) struct TokenizerFile<'a> {
    #[serde(default)]
    pub added_tokens: Vec<AddedTokenEntry>,
    #[serde(default, deserialize_with = "limited")]
    pub normalizer: Value,
    #[serde(default, deserialize_with = "limited")]
    pub pre_tokenizer: Value,
    #[serde(default, deserialize_with = "limited")]
    pub post_processor: Value,
    #[serde(default, deserialize_with = "limited")]
    pub decoder: Value,
    #[serde(borrow)]
    pub model: &'a RawValue,
}

/// Deserializes a part of the file unless it is too long: parsed JSON takes several times its bytes.
fn limited<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    if raw.len() > MAX_TOKENIZER_PART_BYTES {
        return Err(D::Error::custom(format!(
            "a part has {} bytes, the limit is {MAX_TOKENIZER_PART_BYTES}",
            raw.len()
        )));
    }
    serde_json::from_str(raw).map_err(D::Error::custom)
}

/// Entry of `added_tokens`, or of tokenizer_config.json's `added_tokens_decoder` (whose key is the
/// id).
#[derive(Deserialize, Clone)]
pub(super) struct AddedTokenEntry {
    #[serde(default)]
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub special: bool,
}

/// Parses tokenizer.json. `text` must outlive the model, which is parsed later.
pub(super) fn parse(text: &[u8]) -> Result<TokenizerFile<'_>> {
    serde_json::from_slice(text)
        .map_err(|e| tokenizer_error(format!("tokenizer.json is not valid: {e}")))
}

/// Returns the model type; if an old file has none, derives it from the fields.
pub(super) fn model_kind(model: &RawValue) -> Result<String> {
    let shape: ModelKind = serde_json::from_str(model.get())
        .map_err(|e| tokenizer_error(format!("tokenizer.json, model: {e}")))?;
    Ok(match shape {
        ModelKind {
            kind: Some(kind), ..
        } => kind,
        ModelKind {
            merges: Some(_), ..
        } => "BPE".to_owned(),
        ModelKind {
            continuing_subword_prefix: Some(_),
            ..
        } => "WordPiece".to_owned(),
        ModelKind {
            vocab: Some(VocabShape { array: true }),
            ..
        } => "Unigram".to_owned(),
        _ => "WordLevel".to_owned(),
    })
}

#[derive(Deserialize)]
struct ModelKind {
    #[serde(rename = "type")]
    kind: Option<String>,
    merges: Option<serde::de::IgnoredAny>,
    continuing_subword_prefix: Option<serde::de::IgnoredAny>,
    vocab: Option<VocabShape>,
}

/// Whether `vocab` is an array, found without parsing it.
struct VocabShape {
    array: bool,
}

impl<'de> Deserialize<'de> for VocabShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(VocabShape {
            array: raw.get().starts_with('['),
        })
    }
}
