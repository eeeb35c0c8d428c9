//! The pre-tokenizers of tokenizer.json: split text into words; some rewrite the text.
//!
//! Source: `pre_tokenizers` of the `tokenizers` library, version 0.23. The common regular
//! expressions run on bitcannon's splitters, others on [`Regex`].

mod load;

use std::borrow::Cow;

use super::alphabet::push_mapped;
use super::budget::EncodeBudget;
use super::model::WordSpan;
use super::regex::Regex;
use super::scripts::ScriptTable;
use super::tokenizer_error;
use crate::Result;

/// Treatment of the matches of a pattern and of the gaps between them.
#[derive(Clone, Copy)]
enum SplitBehavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// Segment of text, and whether the pattern matched it.
type MatchSegment = (WordSpan, bool);

/// When Metaspace prepends its character.
#[derive(Clone, Copy, PartialEq)]
enum PrependScheme {
    Always,
    First,
    Never,
}

/// One pre-tokenizer.
enum PreTokenizerStep {
    Native(NativeSplitter),
    Pattern {
        pattern: Regex,
        behavior: SplitBehavior,
        invert: bool,
    },
    Literal {
        text: String,
        behavior: SplitBehavior,
        invert: bool,
    },
    Chars {
        are: fn(char) -> bool,
        behavior: SplitBehavior,
    },
    Length(usize),
    Scripts(ScriptTable),
    Metaspace {
        replacement: char,
        scheme: PrependScheme,
        split: bool,
    },
    PrefixSpace,
    Alphabet,
}

/// Splitters that keep all of the text.
#[derive(Clone, Copy, PartialEq)]
enum NativeSplitter {
    Gpt2,
    Cl100k,
    Qwen,
    O200k,
    Tekken,
    Kimi,
    DeepSeek,
}

/// Pre-tokenizers in the order of application.
pub(super) struct PreTokenizers {
    steps: Vec<PreTokenizerStep>,
    /// Words are plain text; the vocabulary is in GPT-2's byte alphabet.
    pub byte_level: bool,
}

/// A text under rewriting.
struct SplitState<'a> {
    text: Cow<'a, str>,
    /// Whether the first word begins its sequence.
    first: bool,
}

impl PreTokenizers {
    /// Splits `text` into words. `first`: the text begins its sequence.
    pub fn split<'a>(
        &self,
        text: &'a str,
        first: bool,
        words: &mut Vec<WordSpan>,
        budget: &EncodeBudget,
    ) -> Result<Cow<'a, str>> {
        if u32::try_from(text.len()).is_err() {
            return Err(tokenizer_error("the text is longer than 4 GB"));
        }
        words.clear();
        words.push((0, text.len()));
        let mut state = SplitState {
            text: Cow::Borrowed(text),
            first,
        };
        for step in &self.steps {
            step.apply(&mut state, words, budget)?;
        }
        Ok(state.text)
    }
}

impl PreTokenizerStep {
    fn apply(
        &self,
        state: &mut SplitState,
        words: &mut Vec<WordSpan>,
        budget: &EncodeBudget,
    ) -> Result<()> {
        match self {
            PreTokenizerStep::Metaspace { .. }
            | PreTokenizerStep::PrefixSpace
            | PreTokenizerStep::Alphabet => {
                self.rewrite(state, words);
                if let PreTokenizerStep::Metaspace {
                    replacement,
                    split: true,
                    ..
                } = self
                {
                    let mark = replacement.to_string();
                    split_each(words, &state.text, |text, out| {
                        apply_behavior(
                            literal(text, &mark, false),
                            SplitBehavior::MergedWithNext,
                            out,
                        );
                        Ok(())
                    })?;
                }
                Ok(())
            }
            PreTokenizerStep::Native(native) => split_each(words, &state.text, |text, out| {
                native.split(text.as_bytes(), out);
                Ok(())
            }),
            PreTokenizerStep::Pattern {
                pattern,
                behavior,
                invert,
            } => split_each(words, &state.text, |text, out| {
                apply_behavior(pattern.segments(text, *invert, budget)?, *behavior, out);
                Ok(())
            }),
            PreTokenizerStep::Literal {
                text: pattern,
                behavior,
                invert,
            } => split_each(words, &state.text, |text, out| {
                apply_behavior(literal(text, pattern, *invert), *behavior, out);
                Ok(())
            }),
            PreTokenizerStep::Chars { are, behavior } => {
                split_each(words, &state.text, |text, out| {
                    apply_behavior(char_runs(text, *are), *behavior, out);
                    Ok(())
                })
            }
            PreTokenizerStep::Length(length) => split_each(words, &state.text, |text, out| {
                let starts: Vec<usize> = text
                    .char_indices()
                    .map(|(at, _)| at)
                    .step_by(*length)
                    .collect();
                let ends = starts.iter().copied().skip(1).chain([text.len()]);
                out.extend(starts.iter().copied().zip(ends));
                Ok(())
            }),
            PreTokenizerStep::Scripts(scripts) => split_each(words, &state.text, |text, out| {
                scripts.split(text, out);
                Ok(())
            }),
        }
    }

    /// Rewrites the text as the new words, one after the other.
    fn rewrite(&self, state: &mut SplitState, words: &mut [WordSpan]) {
        let mut text = String::with_capacity(state.text.len() + words.len() * 3);
        for (index, (from, to)) in words.iter_mut().enumerate() {
            let word = state.text.get(*from..*to).unwrap_or_default();
            let first = index == 0 && *from == 0 && state.first;
            *from = text.len();
            match self {
                PreTokenizerStep::Metaspace {
                    replacement,
                    scheme,
                    ..
                } => {
                    let wanted = *scheme == PrependScheme::Always
                        || *scheme == PrependScheme::First && first;
                    if wanted && !word.starts_with([' ', *replacement]) {
                        text.push(*replacement);
                    }
                    text.extend(
                        word.chars()
                            .map(|c| if c == ' ' { *replacement } else { c }),
                    );
                }
                PreTokenizerStep::PrefixSpace => {
                    if !word.starts_with(' ') {
                        text.push(' ');
                    }
                    text.push_str(word);
                }
                _ => push_mapped(word, &mut text),
            }
            *to = text.len();
            if index == 0 {
                state.first = first;
            }
        }
        state.text = Cow::Owned(text);
    }
}

/// Splits each word further.
fn split_each(
    words: &mut Vec<WordSpan>,
    text: &str,
    mut cut: impl FnMut(&str, &mut Vec<WordSpan>) -> Result<()>,
) -> Result<()> {
    let mut found = Vec::new();
    for (start, end) in std::mem::take(words) {
        found.clear();
        cut(text.get(start..end).unwrap_or_default(), &mut found)?;
        words.extend(
            found
                .iter()
                .filter(|word| word.0 < word.1)
                .map(|word| (start + word.0, start + word.1)),
        );
    }
    Ok(())
}

/// Finds a string and the gaps between its occurrences.
fn literal(text: &str, pattern: &str, invert: bool) -> Vec<MatchSegment> {
    let mut out = Vec::new();
    let mut last = 0;
    for (at, found) in text.match_indices(pattern) {
        out.push(((last, at), invert));
        out.push(((at, at + found.len()), !invert));
        last = at + found.len();
    }
    out.push(((last, text.len()), invert));
    out.retain(|((start, end), _)| start < end);
    out
}

/// Finds single characters of a kind, and runs of others.
fn char_runs(text: &str, are: fn(char) -> bool) -> Vec<MatchSegment> {
    let mut out: Vec<MatchSegment> = Vec::new();
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        match out.last_mut() {
            Some((run, false)) if !are(c) => run.1 = end,
            _ => out.push(((at, end), are(c))),
        }
    }
    out
}

/// Appends the kept segments of a text to an empty list.
fn apply_behavior(segments: Vec<MatchSegment>, behavior: SplitBehavior, out: &mut Vec<WordSpan>) {
    let mut previous = false;
    for (span, matched) in segments {
        let joins = match behavior {
            SplitBehavior::Removed if matched => continue,
            SplitBehavior::Removed | SplitBehavior::Isolated => false,
            SplitBehavior::Contiguous => matched == previous,
            SplitBehavior::MergedWithPrevious => matched && !previous,
            // A match joins the following segment, unless that is a match too.
            SplitBehavior::MergedWithNext => previous && !matched,
        };
        match out.last_mut() {
            Some(last) if joins => last.1 = span.1,
            _ => out.push(span),
        }
        previous = matched;
    }
}

impl NativeSplitter {
    fn split(self, text: &[u8], out: &mut Vec<WordSpan>) {
        let words = text.len().div_ceil(64) + 1;
        let mut tags = vec![0; text.len()];
        bitcannon::classify::classify(text, &mut tags);
        let mut bits = vec![0u64; words * 4];
        let (starts, rest) = bits.split_at_mut(words);
        let (flag, later) = rest.split_at_mut(words);
        let mut spans = vec![bitcannon::Span::default(); text.len() + 1];
        let count = match self {
            NativeSplitter::Gpt2 => {
                bitcannon::bitcannon_byte_level(text, &tags, starts, flag, &mut spans)
            }
            NativeSplitter::Cl100k => {
                bitcannon::bitcannon_cl100k(text, &tags, starts, flag, &mut spans)
            }
            NativeSplitter::Qwen => {
                bitcannon::bitcannon_qwen(text, &tags, starts, flag, &mut spans)
            }
            NativeSplitter::O200k => {
                bitcannon::bitcannon_o200k(text, &tags, starts, flag, later, &mut spans)
            }
            NativeSplitter::Tekken => {
                bitcannon::bitcannon_tekken(text, &tags, starts, flag, later, &mut spans)
            }
            NativeSplitter::Kimi => {
                bitcannon::bitcannon_kimi(text, &tags, starts, flag, later, &mut spans)
            }
            NativeSplitter::DeepSeek => {
                bitcannon::bitcannon_deepseek(text, &tags, starts, &mut spans)
            }
        };
        out.extend(
            spans
                .iter()
                .take(count)
                .map(|span| (span.start as usize, span.end as usize)),
        );
    }
}

#[cfg(not(target_arch = "wasm32"))]
#[cfg(test)]
mod tests {
    use super::super::reference_library::single_component;
    use super::*;
    use bitcannon::regexes;
    use serde_json::{Value, json};
    use tokenizers::pipeline::{PreTokenizer as _, PreTokenizerScratch};

    const TEXTS: [&str; 9] = [
        "a",
        "--",
        "-a--b c-",
        " Hey  man, it's 12345!? ",
        "caf\u{e9} e\u{301}\u{1F600} \u{4f60}\u{597d}\u{3002}\r\n\r\n  \u{661}\u{662}\u{bd}\u{2167} x_y",
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{939}\u{93f}\u{928}\u{94d} don't I'LL \t\u{a0}\u{3000}end",
        "\u{2581}a \u{2581}",
        "def f(x):\n    return x**2  # 10_000\n",
        "\u{1F1E9}\u{1F1EA}\u{200d}\u{fe0f}",
    ];

    fn words(own: &PreTokenizers, text: &str, first: bool) -> Vec<String> {
        let mut words = Vec::new();
        let budget = EncodeBudget::for_text(text.len());
        let text = own.split(text, first, &mut words, &budget).expect("splits");
        words
            .iter()
            .map(|(start, end)| text[*start..*end].to_owned())
            .collect()
    }

    #[test]
    fn pre_tokenizers_match_the_library() {
        let mut entries = vec![
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "Whitespace"}),
            json!({"type": "WhitespaceSplit"}),
            json!({"type": "Digits", "individual_digits": true}),
            json!({"type": "Digits", "individual_digits": false}),
            json!({"type": "CharDelimiterSplit", "delimiter": "-"}),
            json!({"type": "FixedLength", "length": 3}),
        ];
        for behavior in [
            "Removed",
            "Isolated",
            "MergedWithPrevious",
            "MergedWithNext",
            "Contiguous",
        ] {
            entries.push(json!({"type": "Punctuation", "behavior": behavior}));
            for invert in [false, true] {
                entries
                    .push(json!({"type": "Split", "pattern": {"String": "-"}, "behavior": behavior, "invert": invert}));
            }
        }
        for regex in [
            regexes::GPT2,
            regexes::CL100K,
            regexes::O200K,
            regexes::TEKKEN,
            regexes::KIMI_K2,
        ] {
            let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
            entries.push(split(regex));
        }
        let qwen = regexes::CL100K.replace("{1,3}", "");
        entries.push(json!({"type": "Split", "pattern": {"Regex": qwen}, "behavior": "Removed", "invert": true}));
        let mut scratch = PreTokenizerScratch::default();
        let mut compared = 0;

        for entry in entries {
            let Ok(library) = single_component("pre_tokenizer", entry.clone()) else {
                continue;
            };
            let own = PreTokenizers::load(&entry, true).expect("known");
            for text in TEXTS {
                let mut found = Vec::new();
                library
                    .get_pre_tokenizer()
                    .pre_tokenize(text, &mut scratch, &mut found)
                    .expect("splits");
                let expected: Vec<String> = found
                    .iter()
                    .map(|span| text[span.range()].to_owned())
                    .collect();
                assert_eq!(words(&own, text, true), expected, "{entry}: {text:?}");
                compared += 1;
            }
        }
        assert!(compared > 200, "{compared}");
    }

    #[test]
    fn rewriting_steps_may_come_anywhere() {
        let load = |members: Value| {
            PreTokenizers::load(&json!({"type": "Sequence", "pretokenizers": members}), true)
                .expect("known")
        };
        // Falcon's order: the later steps see the byte alphabet.
        let own = load(
            json!([{"type": "Punctuation", "behavior": "Contiguous"}, {"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits", "individual_digits": true}]),
        );
        assert!(!own.byte_level);
        assert_eq!(
            words(&own, "a, 12\u{e9}", true),
            ["a", ",", "\u{120}", "1", "2", "\u{c3}\u{a9}"]
        );
        let own = load(
            json!([{"type": "WhitespaceSplit"}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]),
        );
        assert!(own.byte_level);
        assert_eq!(words(&own, "a b", true), [" a", " b"]);
        let metaspace =
            |scheme| json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": scheme});
        let own = load(json!([{"type": "WhitespaceSplit"}, metaspace("first")]));
        assert_eq!(words(&own, "a b_c", true), ["_a", "b", "_c"]);
        assert_eq!(words(&own, "a b", false), ["a", "b"]);
        assert_eq!(
            words(&own, " a b", true),
            ["a", "b"],
            "no word begins at the start of the text"
        );
        assert_eq!(
            words(&load(json!([metaspace("always")])), "a  b ", false),
            ["_a", "_", "_b", "_"]
        );
        assert_eq!(
            words(
                &load(json!([metaspace("never"), {"type": "Digits"}])),
                " a1",
                true
            ),
            ["_a", "1"]
        );
        let three = [
            regexes::DEEPSEEK_NUM,
            "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
            regexes::DEEPSEEK_BIG,
        ];
        let split = |regex: String| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let native = load(
            three
                .iter()
                .map(|regex| split(regex.replace(r"\r\n", "\r\n")))
                .collect(),
        );
        let each = load(
            three
                .iter()
                .map(|regex| split((*regex).to_owned()))
                .collect(),
        );
        assert_eq!((native.steps.len(), each.steps.len()), (1, 3));
        for text in TEXTS {
            assert_eq!(
                words(&native, text, true),
                words(&each, text, true),
                "{text:?}"
            );
        }
    }

    #[test]
    fn unsupported_entries_are_rejected() {
        for wrong in [
            json!({"type": "Elephant"}),
            json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated"}),
            json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Sideways"}),
            json!({"type": "Split", "behavior": "Isolated"}),
            json!({"type": "Metaspace", "replacement": "__"}),
            json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "later"}),
            json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "add_prefix_space": false}),
            json!({"type": "FixedLength", "length": 0}),
            json!({"type": "CharDelimiterSplit"}),
        ] {
            assert!(PreTokenizers::load(&wrong, true).is_err(), "{wrong}");
        }
    }
}
