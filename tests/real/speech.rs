//! Whisper: transcripts of real recordings, with and without timestamps, as transformers gives
//! them.

use super::{Report, facts, ids, load};
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{TaskModel, TranscribeRequest, Transcriber};
use jerboa_tests::golden::golden;
use pollster::block_on;
use serde_json::{Value, json};

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
    for (clip, expected) in facts["clips"].as_object().expect("clips") {
        let wave = samples(clip);
        for (kind, timestamps) in [("plain", "none"), ("times", "segment")] {
            let mut request = request.clone();
            request["timestamps"] = json!(timestamps);
            let (text, found) = transcribe(&mut model, &wave, &request);
            let expected = &expected[kind];
            let equal = found == ids(&expected["ids"]) && json!(text) == expected["text"];
            report.check(&format!("{clip}, {kind}"), equal, &text);
        }
    }
    report.finish();
}

fn samples(clip: &str) -> Vec<f32> {
    let path = golden(&format!("real/audio/{clip}.wav"));
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
