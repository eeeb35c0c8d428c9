//! What a GGUF file says of text beside its vocabulary, as the tokenizer_config.json and generation_config.json of the original
//! would: special tokens, chat templates, sampling.

use super::{Gguf, Value as Meta};
use serde_json::{Map, Value, json};

/// Templates beside the default one are keys that begin so.
const TEMPLATE: &str = "tokenizer.chat_template";

impl Gguf {
    /// What tokenizer_config.json would say: special tokens and the chat templates.
    pub fn tokenizer_config(&self) -> Value {
        let mut out = Map::new();
        for (key, id) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
            ("sep_token", "seperator_token_id"),
            ("cls_token", "cls_token_id"),
            ("mask_token", "mask_token_id"),
        ] {
            if let Some((_, token)) = self.token(id) {
                out.insert(key.into(), json!(token));
            }
        }
        for key in ["add_bos_token", "add_eos_token"] {
            if let Some(add) = self.bool(&format!("tokenizer.ggml.{key}")) {
                out.insert(key.into(), json!(add));
            }
        }
        if let Some(templates) = self.chat_templates() {
            out.insert("chat_template".into(), templates);
        }
        Value::Object(out)
    }

    /// The default template, or all by name where there are others.
    fn chat_templates(&self) -> Option<Value> {
        let named = self.metadata.iter().filter_map(|(key, value)| match value {
            Meta::Text(source) => Some((key.strip_prefix(TEMPLATE)?.strip_prefix('.')?, source)),
            _ => None,
        });
        let named: Vec<Value> = named.map(|(name, source)| json!({ "name": name, "template": source })).collect();
        let default = self.text(TEMPLATE);
        if named.is_empty() {
            return default.map(|source| json!(source));
        }
        let default = default.map(|source| json!({ "name": "default", "template": source }));
        Some(Value::Array(default.into_iter().chain(named).collect()))
    }

    /// What generation_config.json would say: the tokens that end a generation, those that it never takes, and how tokens
    /// are sampled.
    pub fn generation_config(&self) -> Value {
        let mut out = Map::new();
        out.insert("eos_token_id".into(), json!(self.stop_ids()));
        if let Some(Meta::Ints(ids)) = self.metadata.get("tokenizer.ggml.suppress_tokens") {
            out.insert("suppress_tokens".into(), json!(ids));
        }
        for (key, field) in [
            ("temp", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        ] {
            if let Some(value) = self.metadata.get(&format!("general.sampling.{key}")).and_then(Meta::json) {
                out.insert(field.into(), value);
                out.insert("do_sample".into(), json!(true));
            }
        }
        Value::Object(out)
    }
}
