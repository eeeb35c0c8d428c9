//! Stop strings across token borders. It sees text in pieces and knows neither tokens nor models.

/// Watches a stream of text for strings that end it, and holds back only what may yet become one of them.
///
/// The text that was emitted never contains any part of a stop string that was then found.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopStrings {
    /// Empty strings stop nothing and are left out of the search, but keep their place in the numbering.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> StopStrings {
        StopStrings { stops: stops.into_iter().map(Into::into).collect(), held: String::new(), stopped: None }
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
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, kept)
    }

    /// The end of the stream: what was held back, since it can no longer become a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
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
