//! Named special tokens.

use serde_json::Value;

/// The special tokens of every tokenizer, in the order in which they get ids.
pub(in super::super) const SPECIAL_TOKEN_NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Applies special_tokens_map.json to tokenizer_config.json as transformers does: it counts only
/// without `added_tokens_decoder`, and then its fields win.
pub(in super::super) fn apply_special_tokens_map(config: &mut Value, map: Value) {
    let Value::Object(mut map) = map else { return };
    if config["added_tokens_decoder"].is_object() {
        return;
    }
    map.remove("additional_special_tokens");
    match config {
        Value::Object(config) => config.extend(map),
        _ => *config = Value::Object(map),
    }
}

/// Replaces the named tokens of tokenizer_config.json by those of a converted slow tokenizer, which
/// already has them, with those of special_tokens_map.json and of its class.
pub(super) fn apply_converted_tokens(config: &mut Value, tokens: Value) {
    let Value::Object(tokens) = tokens else {
        return;
    };
    match config {
        Value::Object(config) => config.extend(tokens),
        _ => *config = Value::Object(tokens),
    }
}

/// The spelling of a token that is given as a string or as an object with its flags.
pub(in super::super) fn spelling(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The special tokens of tokenizer_config.json, in the order in which they get ids, and whether
/// each has a name.
pub(super) fn special_tokens(config: &Value) -> impl Iterator<Item = (&Value, bool)> {
    let named = SPECIAL_TOKEN_NAMES.iter().map(|name| &config[*name]);
    let of_model = config
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| {
            name.ends_with("_token") && !SPECIAL_TOKEN_NAMES.contains(&name.as_str())
        });
    let extra = &config["extra_special_tokens"];
    let is_given = extra.as_object().is_some_and(|all| !all.is_empty())
        || extra.as_array().is_some_and(|all| !all.is_empty());
    let extra = if is_given {
        extra
    } else {
        &config["additional_special_tokens"]
    };
    let named_extra = extra.as_object().into_iter().flatten();
    named
        .chain(of_model.chain(named_extra).map(|(_, token)| token))
        .map(|token| (token, true))
        .chain(
            extra
                .as_array()
                .into_iter()
                .flatten()
                .map(|token| (token, false)),
        )
}

/// Special tokens by name (`bos_token`, `eos_token`, …); variables of the chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpecialTokens {
    named: Vec<(String, String)>,
}

impl SpecialTokens {
    /// Returns the token with a name such as `eos_token`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, token)| token.as_str())
    }

    /// All names with their tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named
            .iter()
            .map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// Sets or replaces a token.
    pub fn set(&mut self, name: impl Into<String>, token: impl Into<String>) {
        let name = name.into();
        let token = token.into();

        match self.named.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = token,
            None => self.named.push((name, token)),
        }
    }

    /// Adds the `*_token` fields of tokenizer_config.json or special_tokens_map.json that are not
    /// set yet.
    pub(super) fn fill(&mut self, config: &Value) {
        for (name, value) in config
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| name.ends_with("_token"))
        {
            if let (Some(token), None) = (spelling(value), self.get(name)) {
                self.named.push((name.clone(), token.to_owned()));
            }
        }
    }
}
