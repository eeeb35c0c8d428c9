//! What the `tokenizers` library does with one component, for the tests that compare ours with it.

use serde_json::{Map, Value, json};
use tokenizers::pipeline::PipelineTokenizer;

/// A tokenizer of the library that has no vocabulary: the carrier of one component.
pub(super) fn frame(slot: &str, value: Value) -> tokenizers::Result<PipelineTokenizer> {
    let mut doc = Map::new();
    doc.insert("version".to_owned(), json!("1.0"));
    doc.insert("model".to_owned(), json!({ "type": "BPE", "vocab": {"a": 0}, "merges": [] }));
    doc.insert(slot.to_owned(), value);
    let mut doc = Value::Object(doc);
    tokenizers::canonicalize_value(&mut doc)?;
    tokenizers::from_json(&doc.to_string())
}
