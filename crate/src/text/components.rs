//! The normalizers of tokenizer.json, applied in order.

use std::borrow::Cow;

use serde_json::Value;

use super::alphabet::push_mapped;
use super::budget::EncodeBudget;
use super::normalize::UnicodeNormalizer;
use super::regex::Regex;
use super::tokenizer_error;
use crate::Result;
use crate::util::limits::MAX_TOKENIZER_STAGES;

/// Maximum nesting of `Sequence` entries.
const MAX_SEQUENCE_DEPTH: usize = 16;

/// One step of normalization.
enum NormalizerStep {
    Own(UnicodeNormalizer),
    Replace { pattern: Regex, content: String },
    ReplaceText { from: String, to: String },
    Prepend(String),
    Strip { left: bool, right: bool },
    Lowercase,
    ByteLevel,
}

/// Normalizers in the order of application.
#[derive(Default)]
pub(super) struct Normalizers(Vec<NormalizerStep>);

/// Flattens nested `Sequence` entries; `children` is the name of their list.
pub(super) fn flatten<'a>(
    node: &'a Value,
    children: &str,
    depth: usize,
    out: &mut Vec<&'a Value>,
) -> Result<()> {
    if node.is_null() {
        return Ok(());
    }
    if node.get("type").and_then(Value::as_str) != Some("Sequence") {
        if out.len() >= MAX_TOKENIZER_STAGES {
            return Err(tokenizer_error(format!(
                "tokenizer.json: more than {MAX_TOKENIZER_STAGES} `{children}`"
            )));
        }
        out.push(node);
        return Ok(());
    }
    let members = node
        .get(children)
        .and_then(Value::as_array)
        .filter(|_| depth < MAX_SEQUENCE_DEPTH);
    let members = members.ok_or_else(|| {
        tokenizer_error(format!("tokenizer.json: a Sequence has no `{children}`"))
    })?;
    members
        .iter()
        .try_for_each(|member| flatten(member, children, depth + 1, out))
}

/// Reads the string at JSON pointer `at`.
pub(super) fn field<'a>(entry: &'a Value, at: &str) -> Result<&'a str> {
    entry.pointer(at).and_then(Value::as_str).ok_or_else(|| {
        tokenizer_error(format!(
            "tokenizer.json: {:.80} has no string at {at}",
            entry.to_string()
        ))
    })
}

/// Reads a boolean field; `default` if it is absent.
pub(super) fn switch(entry: &Value, name: &str, default: bool) -> bool {
    entry.get(name).and_then(Value::as_bool).unwrap_or(default)
}

impl Normalizers {
    /// Reads `normalizer` of tokenizer.json.
    pub fn load(node: &Value) -> Result<Normalizers> {
        let mut members = Vec::new();
        flatten(node, "normalizers", 0, &mut members)?;
        members
            .into_iter()
            .map(NormalizerStep::load)
            .collect::<Result<_>>()
            .map(Normalizers)
    }

    /// Normalizes the input; borrows it if nothing changes.
    ///
    /// # Errors
    /// `Tokenizer` if this takes more steps or bytes than are left.
    pub fn normalize<'a>(&self, input: &'a str, budget: &EncodeBudget) -> Result<Cow<'a, str>> {
        let mut text = Cow::Borrowed(input);
        for step in &self.0 {
            if let Some(next) = step.apply(&text, budget)? {
                text = Cow::Owned(next);
            }
        }
        Ok(text)
    }
}

impl NormalizerStep {
    fn load(entry: &Value) -> Result<NormalizerStep> {
        Ok(
            match entry
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default()
            {
                "Replace" => {
                    let content = field(entry, "/content")?.to_owned();
                    match entry.pointer("/pattern/Regex").and_then(Value::as_str) {
                        Some(regex) => NormalizerStep::Replace {
                            pattern: Regex::new(regex)?,
                            content,
                        },
                        None => NormalizerStep::ReplaceText {
                            from: field(entry, "/pattern/String")?.to_owned(),
                            to: content,
                        },
                    }
                }
                "Prepend" => NormalizerStep::Prepend(field(entry, "/prepend")?.to_owned()),
                "Strip" => NormalizerStep::Strip {
                    left: switch(entry, "strip_left", true),
                    right: switch(entry, "strip_right", true),
                },
                "Lowercase" => NormalizerStep::Lowercase,
                "ByteLevel" => NormalizerStep::ByteLevel,
                other => match UnicodeNormalizer::load(entry)? {
                    Some(own) => NormalizerStep::Own(own),
                    None => {
                        return Err(tokenizer_error(format!(
                            "tokenizer.json: the normalizer {other:?} is not supported"
                        )));
                    }
                },
            },
        )
    }

    /// Applies the step; `None` means that the text is unchanged.
    fn apply(&self, text: &str, budget: &EncodeBudget) -> Result<Option<String>> {
        Ok(match self {
            NormalizerStep::Own(own) => {
                let next = own.apply(text);
                budget.grow(text.len(), next.as_ref().map_or(0, String::len))?;
                next
            }
            NormalizerStep::Replace { pattern, content } => {
                pattern.replace(text, content, budget)?
            }
            NormalizerStep::ReplaceText { from, .. } if from.is_empty() => None,
            NormalizerStep::ReplaceText { from, to } => {
                let found = text.matches(from.as_str()).count();
                budget.grow(found * from.len(), found.saturating_mul(to.len()))?;
                (found > 0).then(|| text.replace(from.as_str(), to))
            }
            NormalizerStep::Prepend(_) if text.is_empty() => None,
            NormalizerStep::Prepend(what) => {
                budget.grow(0, what.len())?;
                Some(format!("{what}{text}"))
            }
            NormalizerStep::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                Some(if *right { text.trim_end() } else { text }.to_owned())
            }
            NormalizerStep::Lowercase => Some(text.chars().flat_map(char::to_lowercase).collect()),
            NormalizerStep::ByteLevel => {
                budget.grow(text.len(), 2 * text.len())?;
                let mut out = String::new();
                push_mapped(text, &mut out);
                Some(out)
            }
        })
    }
}

#[cfg(not(target_arch = "wasm32"))]
#[cfg(test)]
mod tests {
    use super::super::reference_library::single_component;
    use super::*;
    use serde_json::json;
    use tokenizers::pipeline;

    #[test]
    fn normalizers_match_the_library() {
        let entries = [
            json!({"type": "Replace", "pattern": {"String": "b"}, "content": "__"}),
            json!({"type": "Prepend", "prepend": "▁"}),
            json!({"type": "Strip", "strip_left": true, "strip_right": false}),
            json!({"type": "Strip", "strip_left": false, "strip_right": true}),
            json!({"type": "Lowercase"}),
            json!({"type": "ByteLevel"}),
        ];
        for entry in &entries {
            let own = Normalizers::load(entry).expect("known");
            let library = single_component("normalizer", entry.clone()).expect("known");
            for text in ["", " ", "abba B ", "\u{a0} ΑΣ İé\u{301}字\u{1F600}\t"] {
                let expected = pipeline::normalize_all(library.get_normalizers(), text, 0)
                    .expect("normalizes");
                assert_eq!(
                    own.normalize(text, &EncodeBudget::for_text(text.len()))
                        .expect("normalizes"),
                    expected,
                    "{entry}: {text:?}"
                );
            }
        }
        let nested = json!({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": entries}]});
        assert_eq!(
            Normalizers::load(&nested)
                .expect("known")
                .normalize(" B ", &EncodeBudget::for_text(3))
                .expect("normalizes"),
            "âĸģĠb"
        );
        assert!(Normalizers::load(&json!({"type": "Sequence"})).is_err());
        assert!(Normalizers::load(&json!({"type": "Elephant"})).is_err());
    }
}
