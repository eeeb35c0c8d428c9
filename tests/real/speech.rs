//! Whisper: transcripts of real recordings against transformers, with and without timestamps, and
//! word error rates, also of long recordings.

use super::{Report, facts, ids, load};
use jerboa::audio::vad::Vad;
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{TaskModel, TranscribeRequest, Transcriber};
use jerboa_tests::golden::golden;
use pollster::block_on;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::rc::Rc;

#[test]
fn whisper_tiny_en() {
    compare("whisper-tiny.en", &json!({}));
}

#[test]
fn whisper_base() {
    compare("whisper-base", &json!({ "language": "english" }));
}

fn compare(name: &'static str, request: &Value) {
    let facts = facts(name);
    let mut report = Report::new(name);
    let TaskModel::Transcribe(mut model) = load(&format!("openai/{name}"), RunOptions::default())
    else {
        panic!("{name} is a speech-to-text model")
    };
    let mut rate = WordErrors::default();
    let spoken = super::facts("whisper");
    for (clip, expected) in facts["clips"].as_object().expect("clips") {
        let wave = samples(clip);
        for (kind, timestamps) in [("plain", "none"), ("times", "segment")] {
            let mut request = request.clone();
            request["timestamps"] = json!(timestamps);
            let (text, found) = transcribe(&mut model, &wave, &request);
            let expected = &expected[kind];
            let equal = found == ids(&expected["ids"]) && json!(text) == expected["text"];
            report.check(&format!("{clip}, {kind}"), equal, &text);
            if kind == "plain" {
                rate.add(&text, &transcript(&spoken, clip));
            }
        }
    }
    println!("{name} word error rate of the clips: {rate}");
    model.vad = Some(silero_vad());
    for (title, parts) in spoken["recordings"].as_object().expect("recordings") {
        let parts = parts.as_array().expect("clips and pauses");
        let reference = &spoken["models"][format!("openai/{name}")][title];
        let Some(allowed) = reference["errors"].as_u64() else {
            continue;
        };
        let clips: Vec<&str> = parts.iter().filter_map(Value::as_str).map(stem).collect();
        if let Some(missing) = clips.iter().find(|clip| audio_file(clip).is_none()) {
            println!("{name} {title}: skipped, {AUDIO} has no {missing}.wav");
            continue;
        }
        let mut request = request.clone();
        request["timestamps"] = json!("segment");
        let (text, _) = transcribe(&mut model, &recording(parts), &request);
        let said: Vec<String> = clips.iter().map(|clip| transcript(&spoken, clip)).collect();
        let mut rate = WordErrors::default();
        rate.add(&text, &said.join(" "));
        report.check(
            &format!("{title}, word error rate"),
            rate.errors as u64 <= allowed,
            &format!("{rate}, transformers {allowed} words: {text}"),
        );
    }
    report.finish();
}

/// The voice activity detector that the runner and the page load.
fn silero_vad() -> Rc<Vad> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../www/public/models/silero-vad/model.safetensors");
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Rc::new(Vad::new(&bytes).expect("Silero VAD"))
}

/// Environment variable for a folder with the clips of whisper.json that are not in the repository.
const AUDIO: &str = "JERBOA_AUDIO";

/// A clip's name in whisper.json without its extension.
fn stem(clip: &str) -> &str {
    clip.split_once('.').map_or(clip, |(stem, _)| stem)
}

/// The human transcript of a clip.
fn transcript(spoken: &Value, clip: &str) -> String {
    let clips = spoken["clips"].as_object().expect("transcripts");
    let found = clips.iter().find(|(name, _)| stem(name) == clip);
    let (_, text) = found.unwrap_or_else(|| panic!("{clip}: no transcript in whisper.json"));
    text.as_str().expect("a transcript").to_owned()
}

/// Concatenates clips, with pauses of this many seconds.
fn recording(parts: &[Value]) -> Vec<f32> {
    let mut wave = Vec::new();
    for part in parts {
        match part.as_f64() {
            Some(seconds) => wave.resize(wave.len() + (seconds * 16_000.0) as usize, 0.0),
            None => wave.extend(samples(stem(part.as_str().expect("a clip")))),
        }
    }
    wave
}

/// Word errors against a transcript: substitutions, insertions and deletions.
#[derive(Default)]
struct WordErrors {
    errors: usize,
    words: usize,
}

impl WordErrors {
    fn add(&mut self, found: &str, spoken: &str) {
        let [found, spoken] = [words(found), words(spoken)];
        let mut row: Vec<usize> = (0..=spoken.len()).collect();
        for (i, word) in found.iter().enumerate() {
            let mut next = vec![i + 1];
            for (j, other) in spoken.iter().enumerate() {
                let substituted = row[j] + usize::from(word != other);
                next.push(substituted.min(row[j + 1] + 1).min(next[j] + 1));
            }
            row = next;
        }
        self.errors += row[spoken.len()];
        self.words += spoken.len();
    }
}

impl std::fmt::Display for WordErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = 100.0 * self.errors as f64 / self.words.max(1) as f64;
        write!(f, "{} of {} ({percent:.1} %)", self.errors, self.words)
    }
}

/// Lower-case words without punctuation, as make_real_whisper.py counts them.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase().replace("mr.", "mister");
    let text = text.replace('\u{2019}', "'");
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '\'';
    text.split(|c| !kept(c))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The WAV file of a clip: the repository's, or that of JERBOA_AUDIO.
fn audio_file(clip: &str) -> Option<PathBuf> {
    let committed = golden(&format!("real/audio/{clip}.wav"));
    let other =
        std::env::var_os(AUDIO).map(|folder| Path::new(&folder).join(format!("{clip}.wav")));
    std::iter::once(committed)
        .chain(other)
        .find(|path| path.exists())
}

fn samples(clip: &str) -> Vec<f32> {
    let path = audio_file(clip).unwrap_or_else(|| panic!("{clip}.wav is not there"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    jerboa::audio::wav::read(&bytes, clip)
        .expect("a WAV file")
        .samples
}

/// The text and the ids of a transcript.
fn transcribe(model: &mut Transcriber, wave: &[f32], request: &Value) -> (String, Vec<u32>) {
    let request = TranscribeRequest::from_json(&request.to_string()).expect("a request");
    let made = block_on(model.transcribe(wave, &request, &AbortFlag::new(), |_| {}))
        .expect("a transcript");
    let ids = made
        .segments
        .iter()
        .flat_map(|segment| segment.ids.iter().copied())
        .collect();
    (made.text().trim().to_owned(), ids)
}

#[test]
fn word_errors_are_counted() {
    let mut rate = WordErrors::default();
    rate.add("The cat, sat on on a mat.", "the cat sat on the mat");
    assert_eq!((rate.errors, rate.words), (2, 6));
    rate.add("Mr. Fox\u{2019}s den", "mister fox's den here");
    assert_eq!((rate.errors, rate.words), (3, 10));
    assert_eq!(rate.to_string(), "3 of 10 (30.0 %)");
}
