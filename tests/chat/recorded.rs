//! Tool calls as the published templates write them, recorded by tests/golden/scripts/tool_calls.py:
//! whole and cut at every character, each gives the calls that were rendered.

use super::{Answer, join, parse};
use flate2::read::GzDecoder;
use jerboa::chat::AnswerFormat;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read as _;

#[derive(Deserialize)]
struct Template {
    template: String,
    /// Name of the format.
    format: String,
    /// The template's markers.
    words: Vec<String>,
    cases: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    text: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    reasoning: String,
    calls: Vec<(String, Value)>,
}

fn recorded() -> Vec<Template> {
    let packed = &include_bytes!("../golden/chat/tool_calls.json.gz")[..];
    let mut text = String::new();
    GzDecoder::new(packed)
        .read_to_string(&mut text)
        .expect("a compressed file");
    serde_json::from_str(&text).expect("JSON")
}

/// Compares an answer in pieces with what was rendered.
fn check(format: &AnswerFormat, case: &Recorded, pieces: &[&str], place: &str) {
    let Answer {
        content,
        reasoning,
        calls,
    } = join(&parse(format, "", pieces));
    assert_eq!(content.trim(), case.content, "{place}");
    assert_eq!(reasoning.trim(), case.reasoning, "{place}");
    let calls: Vec<(String, Value)> = calls
        .into_iter()
        .map(|(name, arguments)| {
            let arguments = serde_json::from_str(&arguments);
            (name, arguments.unwrap_or_else(|e| panic!("{place}: {e}")))
        })
        .collect();
    assert_eq!(calls, case.calls, "{place}");
}

#[test]
fn calls_of_published_templates_are_read_back() {
    let templates = recorded();
    assert!(templates.len() >= 20, "{} templates", templates.len());
    for template in &templates {
        let format = AnswerFormat::detect(&template.words.join(" "), &|_| false);
        let name = &template.template;
        let found = format.calls().map(|calls| calls.name());
        assert_eq!(found, Some(&template.format[..]), "{name}");
        assert!(template.cases.len() >= 9, "{name}");
        for case in &template.cases {
            let text = &case.text;
            check(&format, case, &[text], &format!("{name}: {text}"));
            for (cut, _) in text.char_indices() {
                let (start, end) = text.split_at(cut);
                let place = format!("{name}: {start} | {end}");
                check(&format, case, &[start, end], &place);
            }
            let characters: Vec<&str> = text.split("").filter(|c| !c.is_empty()).collect();
            check(&format, case, &characters, &format!("{name}: {text}"));
        }
    }
}
