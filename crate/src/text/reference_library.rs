//! Runs one component in the `tokenizers` library, for tests that compare with it.

use serde_json::{Map, Value, json};
use tokenizers::pipeline::PipelineTokenizer;

/// Creates a library tokenizer with one component and no vocabulary.
pub(super) fn single_component(slot: &str, value: Value) -> tokenizers::Result<PipelineTokenizer> {
    let mut doc = Map::new();
    doc.insert("version".to_owned(), json!("1.0"));
    doc.insert(
        "model".to_owned(),
        json!({ "type": "BPE", "vocab": {"a": 0}, "merges": [] }),
    );
    doc.insert(slot.to_owned(), value);
    let mut doc = Value::Object(doc);
    tokenizers::canonicalize_value(&mut doc)?;
    tokenizers::from_json(&doc.to_string())
}
