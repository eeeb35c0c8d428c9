//! tokenizer.json as parsed by serde.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::model_loader::ModelFile;
use super::tokenizer_error;
use crate::Result;
use crate::util::limits::MAX_TOKENIZER_PART_BYTES;

/// tokenizer.json. Serializes without the vocabulary and the merges.
#[derive(Deserialize, Serialize)]
pub(super) struct TokenizerFile {
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
    /// Named tokens. Only a converted slow tokenizer has them.
    #[serde(default, deserialize_with = "limited")]
    pub special_tokens: Value,
    #[serde(deserialize_with = "model_file")]
    pub model: ModelFile,
}

/// Deserializes the model; its errors name it.
fn model_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModelFile, D::Error> {
    ModelFile::deserialize(deserializer).map_err(|e| D::Error::custom(format!("model: {e}")))
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
#[derive(Deserialize, Serialize, Clone, Default)]
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

/// Parses tokenizer.json.
pub(super) fn parse(text: &[u8]) -> Result<TokenizerFile> {
    serde_json::from_slice(text)
        .map_err(|e| tokenizer_error(format!("tokenizer.json is not valid: {e}")))
}
