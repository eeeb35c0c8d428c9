//! The UnicodeScripts pre-tokenizer: a text is cut where the script changes, by a table of runs of characters in 3 KB, where the
//! tokenizers library has one of 18. Knows no names of scripts.

use super::model::Span;

/// Runs of characters of one script from U+0000 on: how many (7 bits a byte, the lowest first), then the script's number.
/// Number 0 goes with every script. Written by the test below from what the library does.
const RUNS: &[u8] = include_bytes!("scripts.bin");

/// Where each run begins, and its script.
pub(super) struct Scripts(Vec<(u32, u8)>);

impl Scripts {
    pub fn new() -> Self {
        let mut runs = Vec::new();
        let (mut start, mut length, mut shift) = (0, 0, 0);
        let mut bytes = RUNS.iter();
        while let Some(byte) = bytes.next() {
            length |= u32::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                runs.push((start, bytes.next().copied().unwrap_or(0)));
                start += length;
                (length, shift) = (0, 0);
            }
        }
        Scripts(runs)
    }

    fn of(&self, character: char) -> u8 {
        let next = self.0.partition_point(|(start, _)| *start <= character as u32);
        self.0[next - 1].1
    }

    /// Adds the stretches of `text`; what goes with every script belongs to the one before, and is left out where there is none.
    pub fn split(&self, text: &str, found: &mut Vec<Span>) {
        let mut current: Option<(usize, u8)> = None;
        for (at, character) in text.char_indices() {
            let script = self.of(character);
            if script == 0 || current.is_some_and(|(_, same)| same == script) {
                continue;
            }
            if let Some((start, _)) = current.replace((at, script)) {
                found.push((start, at));
            }
        }
        found.extend(current.map(|(start, _)| (start, text.len())));
    }
}

#[cfg(not(target_arch = "wasm32"))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::library::frame;
    use serde_json::json;
    use tokenizers::pipeline::{PipelineTokenizer, PreTokenizer as _, PreTokenizerScratch};

    struct Library(PipelineTokenizer, PreTokenizerScratch);

    impl Library {
        fn split(&mut self, text: &str) -> Vec<(u32, u32)> {
            let mut found = Vec::new();
            self.0.get_pre_tokenizer().pre_tokenize(text, &mut self.1, &mut found).expect("a split");
            found.iter().map(|span| (span.start, span.end)).collect()
        }

        fn parts(&mut self, a: char, b: char) -> bool {
            self.split(&format!("{a}{b}")).len() > 1
        }

        /// Its scripts as runs.
        fn runs(&mut self) -> Vec<u8> {
            // A character of each number that was met; 0 has none.
            let mut met: Vec<char> = Vec::new();
            let mut runs: Vec<(u32, u8)> = Vec::new();
            for code in 0..=u32::from(char::MAX) {
                let last = runs.last().map_or(0, |run| run.1);
                let script = match char::from_u32(code) {
                    None => last,
                    Some(c) if self.split(&c.to_string()).is_empty() => 0,
                    Some(c) if last > 0 && !self.parts(met[last as usize - 1], c) => last,
                    Some(c) => {
                        let known = met.iter().position(|other| !self.parts(*other, c));
                        let number = known.unwrap_or_else(|| {
                            met.push(c);
                            met.len() - 1
                        });
                        number as u8 + 1
                    }
                };
                match runs.last_mut() {
                    Some(run) if run.1 == script => run.0 += 1,
                    _ => runs.push((1, script)),
                }
            }
            let mut bytes = Vec::new();
            for (mut length, script) in runs {
                while length > 0x7f {
                    bytes.push(length as u8 & 0x7f | 0x80);
                    length >>= 7;
                }
                bytes.extend([length as u8, script]);
            }
            bytes
        }
    }

    /// `JERBOA_WRITE_SCRIPTS=1` writes the table anew.
    #[test]
    fn texts_are_cut_where_the_library_cuts_them() {
        let carrier = frame("pre_tokenizer", json!({ "type": "UnicodeScripts" })).expect("the library's");
        let mut library = Library(carrier, PreTokenizerScratch::default());
        let runs = library.runs();
        if std::env::var_os("JERBOA_WRITE_SCRIPTS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/text/scripts.bin");
            std::fs::write(path, &runs).expect("the table");
        }
        assert_eq!(runs, RUNS);
        let own = Scripts::new();
        for text in [
            "",
            " ",
            "どこで生れ。Yes",
            "  a Яб ー漢かカ1",
            "한국어 and עברית, e\u{301}\u{1F600}\u{1F1E9}",
            "\u{10ffff}a",
        ] {
            let mut found = Vec::new();
            own.split(text, &mut found);
            let found: Vec<(u32, u32)> = found.iter().map(|span| (span.0 as u32, span.1 as u32)).collect();
            assert_eq!(found, library.split(text), "{text}");
        }
    }
}
