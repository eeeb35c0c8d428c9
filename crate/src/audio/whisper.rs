//! Whisper's decoding rules of generation_config.json: prompt, allowed tokens, timestamp tokens and
//! words.

use super::beam::log_softmax;
use super::languages::{code_of, nearest};
use crate::util::map::SortedMap;
use crate::util::sort;
use crate::{Error, Result};
use serde_json::Value;
use std::ops::Range;

/// Seconds per timestamp token and per encoder row.
pub const TIME_STEP: f64 = 0.02;
/// Maximum language codes that an error lists.
const MAX_LISTED: usize = 8;
/// Feature frames per timestamp token.
pub const FRAMES_PER_STEP: usize = 2;

/// Special tokens and decoding rules of generation_config.json.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WhisperRules {
    /// The decoder's first token.
    pub start: u32,
    /// The end token.
    pub end: u32,
    /// Turns timestamps off; higher ids are timestamp tokens.
    pub no_timestamps: Option<u32>,
    /// Tokens of languages by their codes, such as "en".
    pub languages: SortedMap<String, u32>,
    /// The token of the task "translate".
    pub translate: Option<u32>,
    /// The token of the task "transcribe".
    pub transcribe: Option<u32>,
    /// Comes before the previous text in a prompt.
    pub previous_text: Option<u32>,
    /// Tokens that are never sampled.
    pub suppress: Vec<u32>,
    /// Tokens that are not sampled first.
    pub begin_suppress: Vec<u32>,
    /// Whether the model supports English only.
    pub english_only: bool,
    /// Maximum first timestamp token, counted from 0.
    pub max_initial_timestamp: Option<u32>,
    /// (layer, head) pairs whose cross-attention aligns tokens with the audio.
    pub alignment_heads: Vec<(usize, usize)>,
}

/// Language, task and timestamps of a transcription.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TranscribeTask {
    /// Language code or English name; None detects it.
    pub language: Option<String>,
    /// Translates into English.
    pub translate: bool,
    /// Whether to decode timestamp tokens.
    pub timestamps: bool,
}

/// A time span of decoded tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedSpan {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Token indices, including timestamp tokens.
    pub tokens: Range<usize>,
}

impl WhisperRules {
    /// Reads generation_config.json; config.json provides missing fields.
    ///
    /// # Errors
    /// `Config` if there is no start or end token.
    pub fn read(generation: &Value, config: &Value) -> Result<Self> {
        let field = |name: &str| {
            [generation, config]
                .into_iter()
                .find_map(|c| c.get(name).filter(|v| !v.is_null()))
        };
        let number = |v: &Value| v.as_u64().map(|n| n as u32);
        let one = |name: &str| field(name).and_then(|v| number(v.get(0).unwrap_or(v)));
        let list = |name: &str| -> Vec<u32> {
            field(name)
                .and_then(Value::as_array)
                .map_or(Vec::new(), |a| a.iter().filter_map(number).collect())
        };
        let need = |name: &str| {
            let file = "generation_config.json".into();
            one(name).ok_or_else(|| Error::Config {
                file,
                reason: format!("'{name}' is missing"),
            })
        };
        let tasks = |name: &str| {
            generation
                .get("task_to_id")
                .and_then(|t| t.get(name))
                .and_then(number)
        };
        let code = |name: &str| {
            name.trim_start_matches("<|")
                .trim_end_matches("|>")
                .to_string()
        };
        let languages = generation.get("lang_to_id").and_then(Value::as_object);
        let suppress = list("suppress_tokens");
        let pair = |v: &Value| Some((v.get(0)?.as_u64()? as usize, v.get(1)?.as_u64()? as usize));
        Ok(Self {
            start: need("decoder_start_token_id")?,
            end: need("eos_token_id")?,
            no_timestamps: one("no_timestamps_token_id"),
            languages: languages.map_or_else(SortedMap::new, |all| {
                all.iter()
                    .filter_map(|(n, v)| Some((code(n), number(v)?)))
                    .collect()
            }),
            translate: tasks("translate"),
            transcribe: tasks("transcribe"),
            // Older files name it only as the second-to-last suppressed token.
            previous_text: one("prev_sot_token_id")
                .or_else(|| suppress.iter().rev().nth(1).copied()),
            suppress,
            begin_suppress: list("begin_suppress_tokens"),
            english_only: languages.is_none_or(serde_json::Map::is_empty)
                && (generation.get("is_multilingual") == Some(&Value::Bool(false))
                    || config.get("model_type").and_then(Value::as_str) == Some("whisper")),
            max_initial_timestamp: one("max_initial_timestamp_index"),
            alignment_heads: field("alignment_heads")
                .and_then(Value::as_array)
                .map_or(Vec::new(), |a| a.iter().filter_map(pair).collect()),
        })
    }

    /// Returns the first timestamp token.
    pub fn first_timestamp(&self) -> u32 {
        self.no_timestamps.map_or(u32::MAX, |id| id + 1)
    }

    /// Returns the decoder's prompt. `language` is a token of [`WhisperRules::language`] or of language
    /// detection.
    pub fn prompt(&self, language: Option<u32>, ask: &TranscribeTask) -> Result<Vec<u32>> {
        let mut ids = vec![self.start];
        if self.languages.is_empty() {
            if ask.translate {
                return Err(request_error(
                    "translate",
                    "this checkpoint supports English only and cannot translate. Load a multilingual one.",
                ));
            }
        } else {
            ids.extend(language);
            ids.extend(if ask.translate {
                self.translate
            } else {
                self.transcribe
            });
        }
        match (ask.timestamps, self.no_timestamps) {
            (false, Some(id)) => ids.push(id),
            (true, None) => {
                return Err(request_error(
                    "timestamps",
                    "this checkpoint has no timestamp tokens. Use 'none'.",
                ));
            }
            _ => {}
        }
        Ok(ids)
    }

    /// Returns the token of the requested language, by code or English name; None if none is
    /// requested.
    ///
    /// # Errors
    /// `Request` for a language that the checkpoint does not support.
    pub fn language(&self, ask: &TranscribeTask) -> Result<Option<u32>> {
        let Some(wanted) = &ask.language else {
            return Ok(None);
        };
        let code = code_of(wanted).map_or_else(|| wanted.trim().to_lowercase(), str::to_string);
        if self.languages.is_empty() {
            return match code.as_str() {
                "en" => Ok(None),
                _ => Err(request_error(
                    "language",
                    &format!("'{wanted}' is not available: this checkpoint supports English only."),
                )),
            };
        }
        if let Some(found) = self.languages.get(&code) {
            return Ok(Some(*found));
        }
        let advice = nearest(wanted, |code| self.languages.contains_key(code)).map_or_else(
            || "Leave it out to detect the language.".into(),
            |likely| format!("Did you mean '{likely}'?"),
        );
        let known: Vec<&str> = self
            .languages
            .keys()
            .take(MAX_LISTED)
            .map(String::as_str)
            .collect();
        let more = self.languages.len() - known.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let known = known.join(", ");
        let reason =
            format!("'{wanted}' is not supported. {advice} This checkpoint has {known}{more}.");
        Err(request_error("language", &reason))
    }

    /// Returns (language code, probability) pairs, highest first, from the logits after the start
    /// token.
    pub fn language_probabilities(&self, logits: &[f32]) -> Vec<(String, f32)> {
        let ids = || {
            self.languages
                .iter()
                .filter(|(_, id)| (**id as usize) < logits.len())
        };
        let mut row: Vec<f32> = ids().map(|(_, id)| logits[*id as usize]).collect();
        log_softmax(&mut row);
        let mut found: Vec<(String, f32)> = ids()
            .zip(row)
            .map(|((code, _), p)| (code.clone(), p.exp()))
            .collect();
        sort::sort_by(&mut found, |a, b| b.1.total_cmp(&a.1));
        found
    }

    /// Returns the no-speech probability from the logits after the start token.
    pub fn no_speech(&self, logits: &[f32]) -> Option<f32> {
        let id = self.no_timestamps? as usize - 1;
        let mut row = logits.to_vec();
        log_softmax(&mut row);
        row.get(id).map(|p| p.exp())
    }

    /// Sets the logits of disallowed tokens to -inf. `generated` does not include the prompt.
    pub fn mask_logits(&self, logits: &mut [f32], generated: &[u32], timestamps: bool) {
        let mut ban = |ids: &[u32]| {
            for id in ids {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        };
        ban(&self.suppress);
        if generated.is_empty() {
            ban(&self.begin_suppress);
        }
        if timestamps {
            self.mask_timestamps(logits, generated);
        }
    }

    /// Applies the rules of timestamps: they come in pairs, never decrease, and are forced if more
    /// likely in total than any text token.
    fn mask_timestamps(&self, logits: &mut [f32], generated: &[u32]) {
        let begin = (self.first_timestamp() as usize).min(logits.len());
        let is_time = |id: &u32| *id >= self.first_timestamp();
        if begin > 0 {
            logits[begin - 1] = f32::NEG_INFINITY;
        }
        let last = generated.last().is_some_and(is_time);
        let before = generated.len() < 2 || is_time(&generated[generated.len() - 2]);
        if last && before {
            logits[begin..].fill(f32::NEG_INFINITY);
        } else if last {
            logits[..self.end as usize].fill(f32::NEG_INFINITY);
        }
        if let Some(time) = generated.iter().rev().find(|id| is_time(id)) {
            // A segment may start at the end time of the previous one.
            let least = *time as usize + usize::from(!last || before);
            let end = least.clamp(begin, logits.len());
            logits[begin..end].fill(f32::NEG_INFINITY);
        }
        if generated.is_empty() {
            logits[..begin].fill(f32::NEG_INFINITY);
            if let Some(most) = self.max_initial_timestamp {
                let end = (begin + most as usize + 1).min(logits.len());
                logits[end..].fill(f32::NEG_INFINITY);
            }
        }
        let max = logits[begin..]
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits[begin..].iter().map(|v| (v - max).exp()).sum();
        let word = logits[..begin]
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        if max.is_finite() && max + sum.ln() > word {
            logits[..begin].fill(f32::NEG_INFINITY);
        }
    }

    /// Splits the tokens of a window of `frames` feature frames into spans by their timestamps.
    /// Returns the spans and the number of frames to advance. The next window decodes the audio
    /// after the last closed span again.
    pub fn timed_spans(&self, ids: &[u32], offset: f64, frames: usize) -> (Vec<TimedSpan>, usize) {
        let time = |at: usize| f64::from(ids[at] - self.first_timestamp()) * TIME_STEP;
        let is_time = |at: usize| ids[at] >= self.first_timestamp();
        let single = ids.len() >= 2 && is_time(ids.len() - 1) && !is_time(ids.len() - 2);
        let mut cuts: Vec<usize> = (1..ids.len())
            .filter(|i| is_time(i - 1) && is_time(*i))
            .collect();
        if cuts.is_empty() {
            let last = (0..ids.len())
                .rev()
                .find(|i| is_time(*i))
                .map(time)
                .filter(|t| *t > 0.0);
            let end = last.unwrap_or((frames / FRAMES_PER_STEP) as f64 * TIME_STEP);
            return (
                vec![TimedSpan {
                    start: offset,
                    end: offset + end,
                    tokens: 0..ids.len(),
                }],
                frames,
            );
        }
        let pairs = cuts.len();
        if single {
            cuts.push(ids.len());
        }
        let mut first = 0;
        let mut made = Vec::new();
        for cut in &cuts {
            let start = if is_time(first) { time(first) } else { 0.0 };
            made.push(TimedSpan {
                start: offset + start,
                end: offset + time(cut - 1),
                tokens: first..*cut,
            });
            first = *cut;
        }
        // As in transformers, the last span keeps the timestamp that opens the next window.
        if let (false, Some(last)) = (single, made.last_mut()) {
            last.tokens.end += 1;
        }
        let go_on = if single {
            frames
        } else {
            (ids[cuts[pairs - 1] - 1] - self.first_timestamp()) as usize * FRAMES_PER_STEP
        };
        (made, go_on)
    }

    /// Returns the frame of the last timestamp if it only closes a span: the model decoded nothing
    /// after it.
    pub fn closing_frame(&self, ids: &[u32]) -> Option<usize> {
        let [.., before, last] = ids else { return None };
        let closes = *last >= self.first_timestamp() && *before < self.first_timestamp();
        closes.then(|| (last - self.first_timestamp()) as usize * FRAMES_PER_STEP)
    }
}

fn request_error(parameter: &str, reason: &str) -> Error {
    Error::Request {
        parameter: parameter.into(),
        reason: reason.into(),
    }
}

/// Groups tokens into words: a word starts with a space or punctuation, and some punctuation joins
/// its neighbor. `decode` turns tokens into text. Without `spaces`, each character is a word.
/// Source: transformers' `_combine_tokens_into_words`.
pub fn group_words(
    ids: &[u32],
    spaces: bool,
    decode: &dyn Fn(&[u32]) -> String,
) -> Vec<(String, Range<usize>)> {
    let mut units: Vec<(String, Range<usize>)> = Vec::new();
    let mut first = 0;
    let mut at = 0;

    let whole: Vec<char> = decode(ids).chars().collect();
    for end in 1..=ids.len() {
        let text = decode(&ids[first..end]);
        // Wait for complete characters, unless the whole text has U+FFFD here too.
        let broken = text
            .chars()
            .position(|c| c == '\u{fffd}')
            .and_then(|place| whole.get(at + place));
        if broken.is_none_or(|c| *c == '\u{fffd}') {
            at += text.chars().count();
            units.push((text, first..end));
            first = end;
        }
    }
    let mut words: Vec<(String, Range<usize>)> = Vec::new();
    for (text, range) in units {
        let begins = text.starts_with(' ') || WORD_PUNCTUATION.contains(text.trim());
        match words.last_mut() {
            Some(word) if spaces && !begins => {
                word.0.push_str(&text);
                word.1.end = range.end;
            }
            _ => words.push((text, range)),
        }
    }
    merge_punctuation(words)
}

/// Punctuation that starts a word.
const WORD_PUNCTUATION: &str = r##"!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"##;
/// Punctuation that joins the word after it, and the word before it.
const OPENING_PUNCTUATION: &str = "\"'“¡¿([{-";
const CLOSING_PUNCTUATION: &str = "\"'.。,，!！?？:：”)]}、";

fn merge_punctuation(words: Vec<(String, Range<usize>)>) -> Vec<(String, Range<usize>)> {
    let mut back: Vec<(String, Range<usize>)> = Vec::new();
    for (text, range) in words.into_iter().rev() {
        match back.last_mut() {
            Some(next) if text.starts_with(' ') && OPENING_PUNCTUATION.contains(text.trim()) => {
                next.0.insert_str(0, &text);
                next.1.start = range.start;
            }
            _ => back.push((text, range)),
        }
    }
    let mut out: Vec<(String, Range<usize>)> = Vec::new();
    for (text, range) in back.into_iter().rev() {
        match out.last_mut() {
            Some(word) if !word.0.ends_with(' ') && CLOSING_PUNCTUATION.contains(&text) => {
                word.0.push_str(&text);
                word.1.end = range.end;
            }
            _ => out.push((text, range)),
        }
    }
    out
}

/// Whether a language separates words by spaces.
pub fn has_spaces(code: &str) -> bool {
    !matches!(code, "zh" | "ja" | "th" | "lo" | "my" | "yue")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Ids: 0 to 9 words, 10 end, 11 start, 12 and 13 languages, 14 and 15 tasks, 16 no speech, 17
    /// no timestamps, 18… timestamps.
    fn rules() -> WhisperRules {
        let generation = json!({
            "decoder_start_token_id": 11, "eos_token_id": [10], "no_timestamps_token_id": 17, "is_multilingual": true,
            "lang_to_id": {"<|en|>": 12, "<|de|>": 13}, "task_to_id": {"translate": 14, "transcribe": 15},
            "suppress_tokens": [3], "begin_suppress_tokens": [4, 10], "max_initial_timestamp_index": 2,
            "alignment_heads": [[1, 0], [2, 3]],
        });
        WhisperRules::read(&generation, &json!({})).unwrap()
    }

    fn allowed(generated: &[u32], logit: impl Fn(usize) -> f32) -> Vec<usize> {
        let mut logits: Vec<f32> = (0..26).map(logit).collect();
        rules().mask_logits(&mut logits, generated, true);
        (0..26).filter(|i| logits[*i].is_finite()).collect()
    }

    #[test]
    fn prompts_name_language_and_task() {
        let rules = rules();
        let mut ask = TranscribeTask {
            language: Some("German".into()),
            ..TranscribeTask::default()
        };

        let language = rules.language(&ask).unwrap();
        assert_eq!(rules.prompt(language, &ask).unwrap(), [11, 13, 15, 17]);
        (ask.translate, ask.timestamps) = (true, true);
        assert_eq!(rules.prompt(language, &ask).unwrap(), [11, 13, 14]);
        assert_eq!(rules.alignment_heads, [(1, 0), (2, 3)]);
        let unknown = rules.language(&TranscribeTask {
            language: Some("xx".into()),
            ..TranscribeTask::default()
        });
        assert!(unknown.unwrap_err().to_string().contains("de, en"));
        let misspelled = rules.language(&TranscribeTask {
            language: Some("Germn".into()),
            ..TranscribeTask::default()
        });
        assert!(
            misspelled
                .unwrap_err()
                .to_string()
                .contains("Did you mean 'german'?")
        );
        for wanted in ["auto", "", "xx"] {
            let refused = rules.language(&TranscribeTask {
                language: Some(wanted.into()),
                ..TranscribeTask::default()
            });
            let message = refused.unwrap_err().to_string();
            assert!(
                message.contains("Leave it out to detect the language")
                    && !message.contains("Did you mean"),
                "{message}"
            );
        }
        let english = WhisperRules {
            languages: SortedMap::new(),
            ..rules
        };
        assert_eq!(
            english.prompt(None, &TranscribeTask::default()).unwrap(),
            [11, 17]
        );
        let refused = english.prompt(None, &ask).unwrap_err().to_string();
        assert!(
            refused.contains("translate") && !refused.contains("task"),
            "{refused}"
        );
        let refused = english
            .language(&TranscribeTask {
                language: Some("romanian".into()),
                ..TranscribeTask::default()
            })
            .unwrap_err();
        assert!(
            refused.to_string().contains("'romanian'")
                && refused.to_string().contains("English only")
        );
        let of = |generation: Value, config: Value| {
            WhisperRules::read(&generation, &config)
                .unwrap()
                .english_only
        };
        let ids = json!({ "decoder_start_token_id": 1, "eos_token_id": 2 });
        assert!(of(ids.clone(), json!({ "model_type": "whisper" })));
        assert!(!of(ids, json!({ "model_type": "moonshine" })) && !rules.english_only);
        assert!(WhisperRules::read(&json!({}), &json!({})).is_err());
    }

    #[test]
    fn detection_returns_the_most_likely_supported_language() {
        let logits: Vec<f32> = (0..26)
            .map(|i| {
                if i == 13 {
                    2.0
                } else {
                    1.0 + (i == 0) as u8 as f32 * 9.0
                }
            })
            .collect();
        let found = rules().language_probabilities(&logits);
        assert_eq!(found[0].0, "de");
        assert!((found[0].1 + found[1].1 - 1.0).abs() < 1e-6);
        assert!(rules().no_speech(&logits).unwrap() < 1e-3);
    }

    #[test]
    fn timestamps_come_in_pairs_and_do_not_decrease() {
        let words = |i: usize| if i < 10 { 9.0 } else { 0.0 };
        assert_eq!(
            allowed(&[], words),
            [18, 19, 20],
            "the first token is a time, and an early one"
        );
        let after_first = allowed(&[19], words);
        assert!(
            after_first.iter().all(|i| *i < 18 && *i != 3 && *i != 17) && after_first.contains(&0)
        );
        let within = allowed(&[19, 5], words);
        assert!(within.contains(&0) && !within.contains(&19) && within.contains(&20));
        assert_eq!(
            allowed(&[19, 5, 21], words),
            [21, 22, 23, 24, 25],
            "a time that closes is followed by one or the end"
        );
        assert!(allowed(&[19, 5, 21], |i| if i == 10 { 9.0 } else { 0.0 }).contains(&10));
        // Many fairly likely times beat the likeliest word.
        let times = |i: usize| if i >= 18 { 8.5 } else { words(i) };
        assert_eq!(allowed(&[19, 5], times), [20, 21, 22, 23, 24, 25]);
        let mut plain = vec![0.0; 26];
        rules().mask_logits(&mut plain, &[], false);
        assert_eq!(
            (0..26).filter(|i| plain[*i] != 0.0).collect::<Vec<_>>(),
            [3, 4, 10]
        );
    }

    #[test]
    fn timed_spans_of_a_window() {
        let rules = rules();
        let spans = |ids: &[u32]| {
            let (made, go_on) = rules.timed_spans(ids, 1.0, 3000);
            let hundredths = |s: f64| (s * 100.0).round() as u32;
            (
                made.iter()
                    .map(|s| (hundredths(s.start), hundredths(s.end), s.tokens.clone()))
                    .collect::<Vec<_>>(),
                go_on,
            )
        };
        assert_eq!(
            spans(&[18, 1, 2, 20, 20, 3, 24, 24]),
            (vec![(100, 104, 0..4), (104, 112, 4..8)], 12)
        );
        assert_eq!(
            spans(&[18, 1, 20, 20, 3, 23]),
            (vec![(100, 104, 0..3), (104, 110, 3..6)], 3000)
        );
        assert_eq!(spans(&[18, 1, 2]), (vec![(100, 3100, 0..3)], 3000));
        assert_eq!(spans(&[18, 1, 2, 22]), (vec![(100, 108, 0..4)], 3000));
        assert_eq!(spans(&[]), (vec![(100, 3100, 0..0)], 3000));
        // Only a timestamp that closes a span gives the point where the model stopped.
        assert_eq!(rules.closing_frame(&[18, 1, 20, 20, 3, 23]), Some(10));
        for open in [&[18, 1, 2][..], &[18, 1, 20, 20], &[18], &[]] {
            assert_eq!(rules.closing_frame(open), None);
        }
    }

    #[test]
    fn words_take_their_punctuation() {
        let text = [
            " And",
            " so",
            ",",
            " my",
            " fel",
            "low",
            " \"",
            "Am",
            "ericans",
            "\"",
            ".",
            " \u{fffd}",
            "é",
        ];
        let decode = |ids: &[u32]| ids.iter().map(|i| text[*i as usize]).collect::<String>();
        let found = group_words(&(0..11).collect::<Vec<_>>(), true, &decode);
        let texts: Vec<&str> = found.iter().map(|w| w.0.as_str()).collect();
        assert_eq!(texts, [" And", " so,", " my", " fellow", " \"Americans\"."]);
        assert_eq!(found[4].1, 6..11);
        assert_eq!(group_words(&[0, 1], false, &decode).len(), 2);
    }
}
