//! Named special tokens.

use serde_json::Value;

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
            let token = value
                .as_str()
                .or_else(|| value.get("content").and_then(Value::as_str));
            if let (Some(token), None) = (token, self.get(name)) {
                self.named.push((name.clone(), token.to_owned()));
            }
        }
    }
}
