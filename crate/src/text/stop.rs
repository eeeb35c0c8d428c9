//! Stop strings across token borders. It sees text in pieces and knows neither tokens nor models.

use std::ops::Range;

/// Watches a stream of text for strings that end it, and holds back only what may yet become one of them.
///
/// The text that was emitted never contains any part of a stop string that was then found.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// Places in `held` of what is looked at and never shown, ascending.
    hidden: Vec<Range<usize>>,
    stopped: Option<usize>,
}

impl StopStrings {
    /// Empty strings stop nothing and are left out of the search, but keep their place in the numbering.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> StopStrings {
        StopStrings { stops: stops.into_iter().map(Into::into).collect(), ..StopStrings::default() }
    }

    /// Takes the next piece where it is not to be shown, as special tokens are not: stop strings may spell it. Returns what came before
    /// and may be shown.
    pub fn push_hidden(&mut self, piece: &str) -> String {
        let start = self.held.len();
        self.hidden.push(start..start + piece.len());
        self.push(piece)
    }

    /// Takes the next piece and returns what may be shown. After a stop string was found, nothing more is.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.held.push_str(piece);
        // The earliest start wins; of two that start together, the shorter one was complete first.
        let hit = self
            .stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .filter_map(|(i, stop)| self.held.find(stop.as_str()).map(|at| (at, stop.len(), i)))
            .min();
        if let Some((at, _, which)) = hit {
            self.stopped = Some(which);
            return self.release(at, false);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        self.release(self.held.len() - keep, true)
    }

    /// Gives out what is held up to a place, without what is hidden, and drops the rest unless it is kept.
    fn release(&mut self, end: usize, keep: bool) -> String {
        let rest = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, if keep { rest } else { String::new() });
        let hidden = std::mem::take(&mut self.hidden);
        let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
        for range in &hidden {
            shown.push_str(&text[from..range.start.clamp(from, end)]);
            from = range.end.min(end).max(from);
            if keep && range.end > end {
                self.hidden.push(range.start.max(end) - end..range.end - end);
            }
        }
        shown.push_str(&text[from..]);
        shown
    }

    /// The end of the stream: what was held back, since it can no longer become a stop string.
    pub fn finish(&mut self) -> String {
        self.release(self.held.len(), false)
    }

    /// Which stop string was found, if one was.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.and_then(|i| self.stops.get(i)).map(String::as_str)
    }
}

/// The length of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|n| {
            text.is_char_boundary(text.len() - n) && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
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
    fn across_pieces() {
        let (out, rest, stop) = run(&["</s>", "\n\n"], &["ab<", "/", "s", "x", "</", "s>tail", "more"]);
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
        assert_eq!(run(&["\u{1f600}\u{1f601}"], &["x\u{1f600}", "y"]).0, ["x", "\u{1f600}y"]);
        assert_eq!(run(&["", "q"], &["no"]).0, ["no"]);
    }

    #[test]
    fn what_is_hidden_stops_and_is_not_shown() {
        let mut watch = StopStrings::new(["<e>\n", "x<f>y"]);
        let out = ["a", "b"].map(|piece| watch.push(piece));
        assert_eq!((out, watch.push_hidden("<e>")), (["a".into(), "b".into()], String::new()));
        assert_eq!(
            (watch.push("c x"), watch.push_hidden("<f>"), watch.push("z")),
            ("c ".into(), String::new(), "xz".into())
        );
        assert_eq!((watch.push_hidden("<f>"), watch.push("x")), (String::new(), String::new()));
        assert_eq!(
            (watch.push_hidden("<f>"), watch.push("yes"), watch.finish()),
            (String::new(), String::new(), String::new())
        );
        assert_eq!(watch.stopped(), Some("x<f>y"));
        let mut watch = StopStrings::new(["<e><f>"]);
        assert_eq!((watch.push_hidden("<e>"), watch.finish()), (String::new(), String::new()));
    }

    #[test]
    fn any_cut_gives_the_same_text() {
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
