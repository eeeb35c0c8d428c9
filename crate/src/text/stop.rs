//! Stop strings that may span tokens.

use std::ops::Range;

/// Ends a stream of text at the first stop string; holds back only text that may become one.
///
/// Emitted text never contains part of a stop string that is found later.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    pending: String,
    /// Ranges of `held` that are searched but never shown, ascending.
    hidden: Vec<Range<usize>>,
    stopped: Option<usize>,
}

impl StopStrings {
    /// Creates a matcher. Empty strings never match but keep their index.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> StopStrings {
        StopStrings {
            stops: stops.into_iter().map(Into::into).collect(),
            ..StopStrings::default()
        }
    }

    /// Adds text that is searched but not shown, such as special tokens. Returns preceding text
    /// that may be shown.
    pub fn push_hidden(&mut self, piece: &str) -> String {
        let start = self.pending.len();
        self.hidden.push(start..start + piece.len());
        self.push(piece)
    }

    /// Adds text and returns what may be shown; nothing after a stop string was found.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.pending.push_str(piece);
        // The earliest start wins; of two with the same start, the shorter one completed first.
        let hit = self
            .stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .filter_map(|(i, stop)| {
                self.pending
                    .find(stop.as_str())
                    .map(|at| (at, stop.len(), i))
            })
            .min();
        if let Some((at, _, which)) = hit {
            self.stopped = Some(which);
            return self.release(at, false);
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| suffix_prefix_overlap(&self.pending, stop))
            .max()
            .unwrap_or(0);
        self.release(self.pending.len() - keep, true)
    }

    /// Releases the held text before `end`, without hidden ranges. Drops the rest unless `keep`.
    fn release(&mut self, end: usize, keep: bool) -> String {
        let rest = self.pending.split_off(end);
        let text = std::mem::replace(&mut self.pending, if keep { rest } else { String::new() });
        let hidden = std::mem::take(&mut self.hidden);
        let mut shown = String::with_capacity(text.len());
        let mut from = 0;

        for range in &hidden {
            shown.push_str(&text[from..range.start.clamp(from, end)]);
            from = range.end.min(end).max(from);
            if keep && range.end > end {
                self.hidden
                    .push(range.start.max(end) - end..range.end - end);
            }
        }
        shown.push_str(&text[from..]);
        shown
    }

    /// Ends the stream and returns the text held back, which can no longer become a stop string.
    pub fn finish(&mut self) -> String {
        self.release(self.pending.len(), false)
    }

    /// Returns the stop string that was found.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped
            .and_then(|i| self.stops.get(i))
            .map(String::as_str)
    }
}

/// Length of the longest suffix of `text` that is a proper prefix of `stop`.
fn suffix_prefix_overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|n| {
            text.is_char_boundary(text.len() - n)
                && stop
                    .as_bytes()
                    .starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, Option<String>) {
        let mut watch = StopStrings::new(stops.iter().copied());
        let out = pieces.iter().map(|piece| watch.push(piece)).collect();
        (out, watch.finish(), watch.stopped().map(str::to_owned))
    }

    #[test]
    fn stops_span_pieces() {
        let (out, rest, stop) = run(
            &["</s>", "\n\n"],
            &["ab<", "/", "s", "x", "</", "s>tail", "more"],
        );
        assert_eq!(out, ["ab", "", "", "</sx", "", "", ""]);
        assert_eq!((rest.as_str(), stop.as_deref()), ("", Some("</s>")));
    }

    #[test]
    fn holds_the_longest_beginning_only() {
        let (out, rest, stop) = run(&["aab"], &["aaa", "a", "c", "aa"]);
        assert_eq!(out, ["a", "a", "aac", ""]);
        assert_eq!((rest.as_str(), stop), ("aa", None));
    }

    #[test]
    fn earliest_wins_and_characters_stay_whole() {
        assert_eq!(run(&["c", "bc"], &["abc"]).0, ["a"]);
        assert_eq!(
            run(&["\u{1f600}\u{1f601}"], &["x\u{1f600}", "y"]).0,
            ["x", "\u{1f600}y"]
        );
        assert_eq!(run(&["", "q"], &["no"]).0, ["no"]);
    }

    #[test]
    fn hidden_text_stops_but_is_not_shown() {
        let mut watch = StopStrings::new(["<e>\n", "x<f>y"]);
        let out = ["a", "b"].map(|piece| watch.push(piece));
        assert_eq!(
            (out, watch.push_hidden("<e>")),
            (["a".into(), "b".into()], String::new())
        );
        assert_eq!(
            (watch.push("c x"), watch.push_hidden("<f>"), watch.push("z")),
            ("c ".into(), String::new(), "xz".into())
        );
        assert_eq!(
            (watch.push_hidden("<f>"), watch.push("x")),
            (String::new(), String::new())
        );
        assert_eq!(
            (watch.push_hidden("<f>"), watch.push("yes"), watch.finish()),
            (String::new(), String::new(), String::new())
        );
        assert_eq!(watch.stopped(), Some("x<f>y"));
        let mut watch = StopStrings::new(["<e><f>"]);
        assert_eq!(
            (watch.push_hidden("<e>"), watch.finish()),
            (String::new(), String::new())
        );
    }

    #[test]
    fn any_split_gives_the_same_text() {
        let text = "one STOst two STOP three";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut watch = StopStrings::new(["STOP"]);
                let mut out = String::new();
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    out += &watch.push(piece);
                }
                out += &watch.finish();
                assert_eq!(out, "one STOst two ");
            }
        }
    }
}
