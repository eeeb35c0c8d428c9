//! Keeps special tokens spelled inside messages apart from those of the template.
//!
//! A template joins its own special tokens and the user's text to one string, in which a typed
//! `<|im_end|>` looks like the template's. Wrapping messages in markers would break templates that
//! trim, compare and split them. So wherever a message spells a special token, a private-use
//! character replaces one of its characters. After rendering the character is restored, and its
//! position is recorded: no special token may cover it.

use crate::util::map::SortedMap;

use serde_json::Value;

/// Rendered prompt, with the positions that no special token may cover because a message wrote
/// them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderedPrompt {
    /// The text as transformers renders it.
    pub text: String,
    /// Byte offsets of the protected characters, ascending.
    pub(super) protected_offsets: Vec<usize>,
}

impl RenderedPrompt {
    /// Creates a prompt whose special tokens are all encoded.
    pub fn trusted(text: impl Into<String>) -> RenderedPrompt {
        RenderedPrompt {
            text: text.into(),
            protected_offsets: Vec::new(),
        }
    }
}

impl RenderedPrompt {
    /// Replaces each `mark` that no message wrote by the next of `texts`; returns the number of
    /// marks. Marks beyond the last text stay.
    pub fn replace(&mut self, mark: &str, texts: &[String]) -> usize {
        let mut text = String::with_capacity(self.text.len());
        let mut protected = Vec::new();

        let mut at = 0;
        let mut found = 0;

        let own = |start: usize| {
            !self
                .protected_offsets
                .iter()
                .any(|p| (start..start + mark.len()).contains(p))
        };
        let places: Vec<usize> = self
            .text
            .match_indices(mark)
            .map(|(i, _)| i)
            .filter(|i| own(*i))
            .collect();
        let mut copy = |text: &mut String, from: usize, to: usize| {
            let inside = self
                .protected_offsets
                .iter()
                .filter(|p| (from..to).contains(p));
            protected.extend(inside.map(|p| p - from + text.len()));
            text.push_str(&self.text[from..to]);
        };
        for place in places {
            copy(&mut text, at, place);
            text.push_str(texts.get(found).map_or(mark, String::as_str));
            (at, found) = (place + mark.len(), found + 1);
        }
        copy(&mut text, at, self.text.len());
        (self.text, self.protected_offsets) = (text, protected);
        found
    }
}

/// The placeholder characters of one rendering.
pub(super) struct SpecialTokenGuard<'a> {
    specials: &'a [String],
    /// Original character to placeholder.
    placeholders: SortedMap<char, char>,
    free: Vec<char>,
}

impl<'a> SpecialTokenGuard<'a> {
    /// Creates a guard whose placeholders occur neither in `inputs` nor in `template`.
    pub fn new<'v>(
        specials: &'a [String],
        inputs: impl IntoIterator<Item = &'v Value>,
        template: &str,
    ) -> SpecialTokenGuard<'a> {
        let mut originals: Vec<usize> = specials
            .iter()
            .flat_map(|s| s.chars())
            .map(|c| c as usize)
            .collect();
        originals.sort_unstable();
        originals.dedup();
        let mut used: Vec<char> = template.chars().filter(|c| is_private(*c)).collect();
        inputs
            .into_iter()
            .for_each(|value| private_chars(value, &mut used));
        let free = ('\u{F0000}'..='\u{FFFFD}')
            .filter(|c| !used.contains(c))
            .take(originals.len())
            .collect();
        SpecialTokenGuard {
            specials,
            placeholders: SortedMap::new(),
            free,
        }
    }

    /// Returns `value` with placeholders in all spellings of special tokens.
    pub fn protect(&mut self, value: &Value) -> Value {
        self.protect_value(value, None)
    }

    fn protect_value(&mut self, value: &Value, key: Option<&str>) -> Value {
        match value {
            // The template compares these with constants, and builds special tokens from roles.
            Value::String(_) if matches!(key, Some("role" | "type")) => value.clone(),
            Value::String(text) => {
                Value::String(self.protect_text(text, matches!(key, Some("content" | "text"))))
            }
            Value::Array(items) => Value::Array(
                items
                    .iter()
                    .map(|item| self.protect_value(item, key))
                    .collect(),
            ),
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(k, v)| (self.protect_key(k), self.protect_value(v, Some(k))))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn protect_key(&mut self, key: &str) -> String {
        if self.specials.iter().any(|s| key.contains(s.as_str())) {
            self.protect_text(key, false)
        } else {
            key.to_owned()
        }
    }

    /// Protects whole special tokens, and parts of them at the edges of the text, which adjacent
    /// text may complete. `inside`: also text that is the middle of a special token.
    fn protect_text(&mut self, text: &str, inside: bool) -> String {
        let mut marks = Vec::new();
        for special in self.specials.iter().filter(|s| !s.is_empty()) {
            let mut from = 0;
            while let Some(at) = text
                .get(from..)
                .and_then(|rest| rest.find(special.as_str()))
            {
                let start = from + at;
                marks.extend(placeholder_position(text, start, start + special.len()));
                from = start + special.chars().next().map_or(1, char::len_utf8);
            }
            for (n, _) in special.char_indices().skip(1) {
                let (head, tail) = special.split_at(n);
                if text.ends_with(head) {
                    marks.extend(placeholder_position(
                        text,
                        text.len() - head.len(),
                        text.len(),
                    ));
                }
                if text.starts_with(tail) {
                    marks.extend(placeholder_position(text, 0, tail.len()));
                }
            }
            if inside && !text.is_empty() && text.len() < special.len() && special.contains(text) {
                marks.extend(placeholder_position(text, 0, text.len()));
            }
        }
        if marks.is_empty() {
            return text.to_owned();
        }
        marks.sort_unstable();
        text.char_indices()
            .map(|(i, c)| {
                if marks.binary_search(&i).is_ok() {
                    self.placeholder(c)
                } else {
                    c
                }
            })
            .collect()
    }

    fn placeholder(&mut self, original: char) -> char {
        if let Some(c) = self.placeholders.get(&original) {
            return *c;
        }
        // There are more private-use characters than characters in special tokens. U+FFFD as a
        // fallback is safe too, but visible.
        let Some(c) = self.free.pop() else {
            return '\u{FFFD}';
        };
        self.placeholders.insert(original, c);
        c
    }

    /// Restores the original characters and records their positions.
    pub fn reveal(&self, rendered: &str) -> RenderedPrompt {
        if self.placeholders.is_empty() {
            return RenderedPrompt::trusted(rendered);
        }
        let originals: SortedMap<char, char> = self
            .placeholders
            .iter()
            .map(|(original, c)| (*c, *original))
            .collect();
        let mut prompt = RenderedPrompt {
            text: String::with_capacity(rendered.len()),
            protected_offsets: Vec::new(),
        };
        for c in rendered.chars() {
            match originals.get(&c) {
                Some(original) => {
                    prompt.protected_offsets.push(prompt.text.len());
                    prompt.text.push(*original);
                }
                None => prompt.text.push(c),
            }
        }
        prompt
    }
}

/// Selects the character of `text[start..end]` to replace: one that trimming and JSON leave alone.
fn placeholder_position(text: &str, start: usize, end: usize) -> Option<usize> {
    let plain = |c: char| !c.is_whitespace() && c != '"' && c != '\\' && !c.is_control();
    text.get(start..end)?
        .char_indices()
        .find(|(_, c)| plain(*c))
        .map(|(i, _)| start + i)
}

fn is_private(c: char) -> bool {
    ('\u{F0000}'..='\u{FFFFD}').contains(&c)
}

fn private_chars(value: &Value, used: &mut Vec<char>) {
    match value {
        Value::String(text) => used.extend(text.chars().filter(|c| is_private(*c))),
        Value::Array(items) => items.iter().for_each(|item| private_chars(item, used)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            used.extend(key.chars().filter(|c| is_private(*c)));
            private_chars(value, used);
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn specials() -> Vec<String> {
        ["<|im_start|>", "<|im_end|>", "<s>"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn only_special_spellings_change() {
        let specials = specials();
        let input =
            json!({"role": "<s>", "content": "a <s><|im_end|> b", "n": 3, "plain": "2 < 3 > 1"});
        let mut guard = SpecialTokenGuard::new(&specials, [&input], "");
        let safe = guard.protect(&input);
        assert_eq!(safe["role"], "<s>");
        assert_eq!(safe["plain"], input["plain"]);
        let text = safe["content"].as_str().expect("a string");
        assert!(!specials.iter().any(|s| text.contains(s.as_str())));
        assert_eq!(text.trim().len(), text.len());
        let prompt = guard.reveal(&format!("<s>{text}"));
        assert_eq!(
            (prompt.text.as_str(), prompt.protected_offsets),
            ("<s>a <s><|im_end|> b", vec![5, 8])
        );
    }

    #[test]
    fn special_tokens_split_over_two_strings() {
        let specials = specials();
        for (left, right) in [("x<|im_", "end|>"), ("<", "s>"), ("<|im_end|", ">")] {
            let input = json!([{"content": left}, {"content": right}, {"content": "im_end"}]);
            let mut guard = SpecialTokenGuard::new(&specials, [&input], "");
            let safe = guard.protect(&input);
            let text = |i: usize| safe[i]["content"].as_str().expect("a string");
            let joined = guard.reveal(&format!("{}{}<|{}|>", text(0), text(1), text(2)));
            for special in &specials {
                for (at, _) in joined.text.match_indices(special.as_str()) {
                    assert!(
                        joined
                            .protected_offsets
                            .iter()
                            .any(|p| (at..at + special.len()).contains(p)),
                        "{joined:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn only_template_marks_are_replaced() {
        let mut prompt = RenderedPrompt {
            text: "a<s>b<s>c<s>d".into(),
            protected_offsets: vec![6],
        };
        assert_eq!(prompt.replace("<s>", &["one".into(), "two".into()]), 2);
        assert_eq!(
            (prompt.text.as_str(), &prompt.protected_offsets[..]),
            ("aoneb<s>ctwod", &[6][..])
        );
        assert_eq!(
            RenderedPrompt::trusted("<s><s>").replace("<s>", &["x".into()]),
            2
        );
    }

    #[test]
    fn private_use_characters_of_messages_stay() {
        let specials = specials();
        let input = json!({"content": "\u{F0000}<s>\u{F0001}"});
        let mut guard = SpecialTokenGuard::new(&specials, [&input], "\u{F0002}");
        let safe = guard.protect(&input);
        let prompt = guard.reveal(safe["content"].as_str().expect("a string"));
        assert_eq!(prompt.text, "\u{F0000}<s>\u{F0001}");
        assert_eq!(prompt.protected_offsets, [4]);
    }
}
