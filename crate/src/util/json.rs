//! JSON as written by Python's `json` module, which allows bare `NaN` and `Infinity`.

use std::borrow::Cow;

/// Replacement for each bare word: null for `NaN`, the largest f64 for an infinity (after its
/// sign).
const BARE_WORDS: [(&[u8], &[u8]); 2] =
    [(b"NaN", b"null"), (b"Infinity", b"1.7976931348623157e308")];

/// Parses JSON text that the source spells, which takes less code than `json!`.
pub(crate) fn literal(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Converts to standard JSON; borrows the text if it has no bare words outside strings.
pub(crate) fn to_standard_json(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut copied = 0;
    let mut at = 0;

    let mut quoted = false;
    while let Some(byte) = text.get(at) {
        match (byte, quoted) {
            (b'"', _) => quoted = !quoted,
            (b'\\', true) => at += 1,
            (b'N' | b'I', false) => {
                if let Some((word, value)) = BARE_WORDS
                    .iter()
                    .find(|(word, _)| text[at..].starts_with(word))
                {
                    out.extend_from_slice(&text[copied..at]);
                    out.extend_from_slice(value);
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// Converts owned bytes, without a copy if they are standard JSON already.
pub(crate) fn to_standard_json_owned(text: Vec<u8>) -> Vec<u8> {
    if let Cow::Owned(changed) = to_standard_json(&text) {
        return changed;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::to_standard_json;
    use serde_json::{Value, json};
    use std::borrow::Cow;

    fn read(text: &str) -> Value {
        serde_json::from_slice(&to_standard_json(text.as_bytes()))
            .unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn bare_words_are_replaced() {
        let big = f64::MAX;
        assert_eq!(
            read(r#"{"limits": [0.0, Infinity, -Infinity], "nan":NaN}"#),
            json!({"limits": [0.0, big, -big], "nan": null})
        );
        assert_eq!(read("[NaN,NaN]"), json!([null, null]));
        assert_eq!(read("Infinity"), json!(big));
    }

    #[test]
    fn strings_and_everything_else_stay() {
        for text in [
            r#"{"Infinity": "NaN", "a\"NaN": "\\", "b": ["-Infinity", "x\\\"Infinity"]}"#,
            r#"[1, 2.5e-3, true, null, "ÄNaN😀"]"#,
            "",
            "\"never ends, NaN",
        ] {
            assert!(
                matches!(to_standard_json(text.as_bytes()), Cow::Borrowed(same) if same == text.as_bytes()),
                "{text}"
            );
        }
        assert_eq!(
            read(r#"{"NaN": NaN, "\\": "Infinity", "x": Infinity}"#)["\\"],
            "Infinity"
        );
    }

    #[test]
    fn invalid_json_is_still_refused() {
        for text in [
            "{\"a\": Nan}",
            "{\"a\": Infinit",
            "{\"a\": NaNs}",
            "[Infinity Infinity]",
        ] {
            assert!(
                serde_json::from_slice::<Value>(&to_standard_json(text.as_bytes())).is_err(),
                "{text}"
            );
        }
    }
}
