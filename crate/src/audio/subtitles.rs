//! Transcripts as text, JSON and subtitles.

use serde_json::{Value, json};
use std::ops::Range;

/// A word with its time range.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    /// The word with its punctuation, without spaces around it.
    pub text: String,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
}

/// A segment of the transcript.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TranscriptSegment {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Transcribed text.
    pub text: String,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Words, if requested.
    pub words: Vec<Word>,
    /// Mean log-probability of the tokens, if the logits were read.
    pub mean_logprob: Option<f64>,
    /// Compression ratio of the text.
    pub compression: f64,
    /// No-speech probability, if the model predicts it.
    pub no_speech: Option<f64>,
}

/// A complete transcript.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transcript {
    /// Language code, if known.
    pub language: Option<String>,
    /// Whether it was translated into English.
    pub translated: bool,
    /// Seconds of audio.
    pub duration: f64,
    /// Segments, in order.
    pub segments: Vec<TranscriptSegment>,
    /// Time ranges in seconds with detected speech but no words.
    pub untranscribed: Vec<Range<f64>>,
}

impl Transcript {
    /// Returns the whole text.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .segments
            .iter()
            .map(|s| s.text.trim())
            .filter(|t| !t.is_empty())
            .collect();
        texts.join(" ")
    }

    /// Formats SubRip subtitles.
    pub fn srt(&self) -> String {
        self.cues()
            .enumerate()
            .map(|(n, (text, range))| {
                format!(
                    "{}\n{} --> {}\n{text}\n\n",
                    n + 1,
                    format_time(range.start, ','),
                    format_time(range.end, ','),
                )
            })
            .collect()
    }

    /// Formats WebVTT subtitles.
    pub fn vtt(&self) -> String {
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");

        std::iter::once("WEBVTT\n\n".to_string())
            .chain(self.cues().map(|(text, range)| {
                format!(
                    "{} --> {}\n{}\n\n",
                    format_time(range.start, '.'),
                    format_time(range.end, '.'),
                    escape(text)
                )
            }))
            .collect()
    }

    /// Returns the `verbose_json` of OpenAI's API.
    pub fn to_verbose_json(&self) -> Value {
        let words: Vec<Value> = self
            .segments
            .iter()
            .flat_map(|s| &s.words)
            .map(|w| json!({ "word": w.text, "start": round_ms(w.start), "end": round_ms(w.end) }))
            .collect();
        let segment = |(id, s): (usize, &TranscriptSegment)| {
            json!({
                "id": id, "start": round_ms(s.start), "end": round_ms(s.end), "text": s.text, "tokens": s.ids,
                "avg_logprob": s.mean_logprob, "compression_ratio": s.compression, "no_speech_prob": s.no_speech,
            })
        };
        let mut out = json!({
            "task": if self.translated { "translate" } else { "transcribe" },
            "language": self.language, "duration": round_ms(self.duration), "text": self.text(),
            "segments": self.segments.iter().enumerate().map(segment).collect::<Vec<_>>(),
        });
        if !words.is_empty() {
            out["words"] = words.into();
        }
        if !self.untranscribed.is_empty() {
            let spans = self
                .untranscribed
                .iter()
                .map(|s| [round_ms(s.start), round_ms(s.end)]);
            out["untranscribed"] = json!(spans.collect::<Vec<_>>());
        }
        out
    }

    /// Texts of subtitles with their times, which end with the audio; those that would show for no
    /// time are left out.
    fn cues(&self) -> impl Iterator<Item = (&str, Range<f64>)> {
        self.segments
            .iter()
            .map(|s| (s.text.trim(), s.start.max(0.0)..s.end.min(self.duration)))
            .filter(|(text, range)| !text.is_empty() && round_ms(range.start) < round_ms(range.end))
    }
}

/// Rounds to milliseconds.
fn round_ms(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// Formats `hh:mm:ss,mmm`, with `point` before the milliseconds.
fn format_time(seconds: f64, point: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    format!(
        "{:02}:{:02}:{:02}{point}{:03}",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1000 % 60,
        ms % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let word = |text: &str, start, end| Word {
            text: text.into(),
            start,
            end,
        };
        let segment = |start, end, text: &str| TranscriptSegment {
            start,
            end,
            text: text.into(),
            ..TranscriptSegment::default()
        };
        let mut segments = vec![
            segment(0.0, 2.5, " Ever tried,"),
            segment(2.5, 2.5, " "),
            segment(3599.9996, 3661.02, " a<b & c"),
        ];
        segments[0].words = vec![word("Ever", 0.1, 0.4), word("tried,", 0.4, 0.91)];
        Transcript {
            language: Some("en".into()),
            duration: 3700.0,
            segments,
            ..Transcript::default()
        }
    }

    #[test]
    fn subtitles() {
        let expected = "1\n00:00:00,000 --> 00:00:02,500\nEver tried,\n\n2\n01:00:00,000 --> 01:01:01,020\na<b & c\n\n";
        assert_eq!(transcript().srt(), expected);
        let expected = "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nEver tried,\n\n01:00:00.000 --> 01:01:01.020\na&lt;b &amp; c\n\n";
        assert_eq!(transcript().vtt(), expected);
    }

    #[test]
    fn subtitles_end_with_the_audio() {
        let made = Transcript {
            duration: 60.0,
            segments: [
                (57.0, 61.5, "cut"),
                (58.0, 58.0, "no time"),
                (60.0, 61.0, "after"),
            ]
            .map(|(start, end, text)| TranscriptSegment {
                start,
                end,
                text: text.into(),
                ..TranscriptSegment::default()
            })
            .into(),
            ..Transcript::default()
        };
        assert_eq!(made.srt(), "1\n00:00:57,000 --> 00:01:00,000\ncut\n\n");
        assert_eq!(
            made.vtt(),
            "WEBVTT\n\n00:00:57.000 --> 00:01:00.000\ncut\n\n"
        );
    }

    #[test]
    fn verbose_json() {
        let found = transcript().to_verbose_json();
        assert_eq!(found["text"], "Ever tried, a<b & c");
        assert_eq!(
            (&found["task"], &found["language"]),
            (&json!("transcribe"), &json!("en"))
        );
        assert_eq!(
            found["words"][1],
            json!({ "word": "tried,", "start": 0.4, "end": 0.91 })
        );
        assert_eq!(
            (&found["segments"][2]["start"], found.get("untranscribed")),
            (&json!(3600.0), None)
        );
        let untranscribed = Transcript {
            untranscribed: std::iter::once(1.0..2.5).collect(),
            ..transcript()
        };
        assert_eq!(
            untranscribed.to_verbose_json()["untranscribed"],
            json!([[1.0, 2.5]])
        );
    }
}
