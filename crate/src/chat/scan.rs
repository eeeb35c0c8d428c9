//! Searches streamed text for markers. Knows nothing of their meaning.

/// Result of a search in text that may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A whole marker: its start and its index in the list.
    At {
        /// Byte offset of the marker.
        start: usize,
        /// Index in the list of markers.
        index: usize,
    },
    /// No whole marker. The first `safe` bytes cannot become part of one.
    Nothing {
        /// Number of bytes before a possible start of a marker.
        safe: usize,
    },
}

/// Finds the earliest marker in `text`; of those that start at the same byte, the longest.
pub(super) fn find(text: &str, markers: &[&str]) -> Found {
    let hit = markers
        .iter()
        .enumerate()
        .filter_map(|(index, marker)| Some((text.find(marker)?, usize::MAX - marker.len(), index)))
        .min();
    if let Some((start, _, index)) = hit {
        return Found::At { start, index };
    }
    let held = markers
        .iter()
        .map(|marker| overlap(text, marker))
        .max()
        .unwrap_or(0);
    Found::Nothing {
        safe: text.len() - held,
    }
}

/// Length of the longest suffix of `text` that is a proper prefix of `marker`.
pub(super) fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|n| {
            marker
                .as_bytes()
                .starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}

/// Whether `text` starts with `marker`; `None` while it may still turn out to.
pub(super) fn starts(text: &str, marker: &str) -> Option<bool> {
    if text.starts_with(marker) {
        return Some(true);
    }
    if marker.starts_with(text) {
        return None;
    }
    Some(false)
}

/// Number of bytes of leading whitespace.
pub(super) fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Appends `text` as the inside of a JSON string.
pub(super) fn escape_into(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                out.push_str("\\u00");
                out.push(char::from(b'0' + (c as u8 >> 4)));
                out.push(char::from(b"0123456789abcdef"[usize::from(c as u8 & 15)]));
            }
            c => out.push(c),
        }
    }
}

/// Returns `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    escape_into(text, &mut out);
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_and_their_beginnings_held() {
        assert_eq!(
            find("a<x>b<y>", &["<y>", "<x>"]),
            Found::At { start: 1, index: 1 }
        );
        assert_eq!(find("ab<", &["<x>"]), Found::Nothing { safe: 2 });
        assert_eq!(
            find("ab<x", &["<x>", "x"]),
            Found::At { start: 3, index: 1 }
        );
        assert_eq!(find("\u{e9}", &["<x>"]), Found::Nothing { safe: 2 });
        assert_eq!(
            find("<x>y", &["<x>", "<x>y"]),
            Found::At { start: 0, index: 1 }
        );
        assert_eq!(
            (starts("<", "<x>"), starts("<y", "<x>")),
            (None, Some(false))
        );
    }

    #[test]
    fn strings_are_escaped() {
        assert_eq!(
            quoted("a\"\\\n\u{1}\u{1f}\u{e9}"),
            r#""a\"\\\n\u0001\u001fé""#
        );
    }
}
