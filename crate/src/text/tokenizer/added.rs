//! Added tokens: those of tokenizer.json and tokenizer_config.json together, by the ids that they got.

use super::super::components::{self, Normalizers};
use super::super::file::AddedEntry;
use crate::Result;
use crate::util::map::SortedMap;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

/// An added token by its id.
pub(super) struct Added {
    /// As it is written in a text.
    pub content: String,
    /// As it is decoded: normalized, if it is matched so.
    pub form: String,
    pub special: bool,
    pub normalized: bool,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: serde_json::Map<String, Value>,
}

/// Adds the tokens of tokenizer_config.json that tokenizer.json lacks; where both have one, the former's flags count.
pub(super) fn merge_added_tokens(added: &mut Vec<AddedEntry>, config: &Value) -> Result<()> {
    let bad =
        |e| crate::Error::Config { file: "tokenizer_config.json".to_owned(), reason: format!("added tokens: {e}") };
    if config.get("added_tokens_decoder").is_none_or(Value::is_null) {
        return Ok(());
    }
    let config = TokenizerConfig::deserialize(config).map_err(|e| bad(e.to_string()))?;
    for (id, token) in config.added_tokens_decoder {
        let id: u32 = id.parse().map_err(|_| bad(format!("{id:?} is not an id")))?;
        let entry = AddedEntry { id, ..AddedEntry::deserialize(token).map_err(|e| bad(e.to_string()))? };
        match added.iter_mut().find(|old| old.content == entry.content) {
            Some(old) => *old = AddedEntry { id: old.id, ..entry },
            None => added.push(entry),
        }
    }
    Ok(())
}

/// The added tokens by the ids that they got.
pub(super) fn added_by_id(
    vocabulary: &AddedVocabulary,
    entries: &[AddedEntry],
    normalizers: &Normalizers,
) -> Result<SortedMap<u32, Added>> {
    let mut by_id = SortedMap::new();
    for entry in entries {
        let form = if entry.normalized {
            components::normalize(normalizers, &entry.content, 1)?.into_owned()
        } else {
            entry.content.clone()
        };
        if let Some(id) = vocabulary.token_to_id(&form) {
            let content = entry.content.clone();
            by_id.insert(id, Added { content, form, special: entry.special, normalized: entry.normalized });
        }
    }
    Ok(by_id)
}
