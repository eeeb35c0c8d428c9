//! tokenizer.json as serde reads it: its parts, and of which type its model is. Knows not what the parts are for.

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::Value;
use serde_json::value::RawValue;

use super::tokenizer_error;
use crate::Result;

/// tokenizer.json, with the model left as text until its parts are read one by one.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    pub added_tokens: Vec<AddedEntry>,
    #[serde(default)]
    pub normalizer: Value,
    #[serde(default)]
    pub pre_tokenizer: Value,
    #[serde(default)]
    pub post_processor: Value,
    #[serde(default)]
    pub decoder: Value,
    #[serde(borrow)]
    pub model: &'a RawValue,
}

/// One entry of `added_tokens`, also of tokenizer_config.json's `added_tokens_decoder` (which has the id as its key).
#[derive(Deserialize, Clone)]
pub(super) struct AddedEntry {
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

/// Parses the file. `text` must outlive the model, which is read from it later.
pub(super) fn parse(text: &[u8]) -> Result<File<'_>> {
    serde_json::from_slice(text).map_err(|e| tokenizer_error(format!("tokenizer.json is not readable: {e}")))
}

/// The type of the model, which old files leave to be guessed from its fields.
pub(super) fn model_kind(model: &RawValue) -> Result<String> {
    let shape: ModelKind =
        serde_json::from_str(model.get()).map_err(|e| tokenizer_error(format!("tokenizer.json, model: {e}")))?;
    Ok(match shape {
        ModelKind { kind: Some(kind), .. } => kind,
        ModelKind { merges: Some(_), .. } => "BPE".to_owned(),
        ModelKind { continuing_subword_prefix: Some(_), .. } => "WordPiece".to_owned(),
        ModelKind { vocab: Some(VocabShape { array: true }), .. } => "Unigram".to_owned(),
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

/// Whether `vocab` is an array, without reading it.
struct VocabShape {
    array: bool,
}

impl<'de> Deserialize<'de> for VocabShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(VocabShape { array: raw.get().starts_with('[') })
    }
}
