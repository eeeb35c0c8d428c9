//! Converts a GGUF file's special tokens, chat templates and sampling settings to the original's
//! tokenizer_config.json and generation_config.json.

use super::{Gguf, MetadataValue as Meta};
use crate::text::MARKS_SPECIAL_TOKENS;
use serde_json::{Map, Value, json};

/// Metadata key of the default chat template, and prefix of the others.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";

impl Gguf {
    /// Builds tokenizer_config.json: special tokens and chat templates.
    pub fn tokenizer_config(&self) -> Value {
        let mut out = Map::new();
        out.insert(MARKS_SPECIAL_TOKENS.into(), json!(true));
        for (key, id) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
            ("sep_token", "seperator_token_id"),
            ("cls_token", "cls_token_id"),
            ("mask_token", "mask_token_id"),
            // CodeLlama's names; `prefix_token_id` and its like are of older files.
            ("prefix_token", "fim_pre_token_id"),
            ("suffix_token", "fim_suf_token_id"),
            ("middle_token", "fim_mid_token_id"),
            ("prefix_token", "prefix_token_id"),
            ("suffix_token", "suffix_token_id"),
            ("middle_token", "middle_token_id"),
        ] {
            if let Some((_, token)) = self.special_token(id) {
                out.entry(key).or_insert_with(|| json!(token));
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

    /// The default template, or a list of named templates if there are others.
    fn chat_templates(&self) -> Option<Value> {
        let named = self.metadata.iter().filter_map(|(key, value)| match value {
            Meta::Text(source) => {
                Some((key.strip_prefix(TEMPLATE_KEY)?.strip_prefix('.')?, source))
            }
            _ => None,
        });
        let named: Vec<Value> = named
            .map(|(name, source)| json!({ "name": name, "template": source }))
            .collect();
        let default = self.text(TEMPLATE_KEY);
        if named.is_empty() {
            return default.map(|source| json!(source));
        }
        let default = default.map(|source| json!({ "name": "default", "template": source }));
        Some(Value::Array(default.into_iter().chain(named).collect()))
    }

    /// Builds generation_config.json: stop tokens, suppressed tokens and sampling settings.
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
            if let Some(value) = self
                .metadata
                .get(&format!("general.sampling.{key}"))
                .and_then(Meta::json)
            {
                out.insert(field.into(), value);
                out.insert("do_sample".into(), json!(true));
            }
        }
        Value::Object(out)
    }
}
