//! Answers of chat models, split into content, reasoning and tool calls: ten texts and more a
//! format, whole and cut at every character.

mod detection;
mod families;
mod grammar;
mod history;
mod json;
mod markers;
mod protocol;
mod random;
mod reasoning;
mod recorded;
mod vocabularies;

use jerboa::chat::{AnswerFormat, AnswerPart, AnswerStart};
use serde_json::{Value, json};

/// The tools of all requests.
fn tools() -> Vec<Value> {
    let function = |name: &str, properties: Value| {
        json!({ "type": "function", "function": {
            "name": name, "parameters": { "type": "object", "properties": properties } } })
    };
    vec![
        function(
            "weather",
            json!({ "city": { "type": "string" }, "days": { "type": "integer" }, "metric": { "type": "boolean" } }),
        ),
        function(
            "search",
            json!({ "query": { "type": "string" }, "limit": { "type": ["integer", "null"] }, "score": { "type": "number" },
                "tags": { "type": "array", "items": { "type": "string" } }, "filter": { "type": "object" }, "any": {} }),
        ),
        function("now", json!({})),
        function("get.time-zone", json!({ "zone": { "type": "string" } })),
        function("python", json!({ "code": { "type": "string" } })),
    ]
}

/// What a text consists of.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

/// A text and what it consists of.
struct Case {
    text: &'static str,
    content: &'static str,
    reasoning: &'static str,
    calls: &'static [(&'static str, &'static str)],
}

/// A text with content and calls.
const fn case(
    text: &'static str,
    content: &'static str,
    calls: &'static [(&'static str, &'static str)],
) -> Case {
    Case {
        text,
        content,
        reasoning: "",
        calls,
    }
}

/// A text with reasoning, content and calls.
const fn thought(
    text: &'static str,
    reasoning: &'static str,
    content: &'static str,
    calls: &'static [(&'static str, &'static str)],
) -> Case {
    Case {
        text,
        content,
        reasoning,
        calls,
    }
}

/// Joins events, which must come in order: a call's start, its arguments, its end.
fn join(parts: &[AnswerPart]) -> Answer {
    let mut answer = Answer::default();
    let mut open = None;
    for part in parts {
        match part {
            AnswerPart::Content { text } => answer.content += text,
            AnswerPart::Reasoning { text } => answer.reasoning += text,
            AnswerPart::ToolCall { index, id, name } => {
                assert_eq!((open, *index), (None, answer.calls.len()), "{parts:?}");
                assert!(!id.is_empty());
                open = Some(*index);
                answer.calls.push((name.clone(), String::new()));
            }
            AnswerPart::Arguments { index, text } => {
                assert_eq!(open, Some(*index), "{parts:?}");
                answer.calls[*index].1 += text;
            }
            AnswerPart::ToolCallEnd { index } => {
                assert_eq!(open.take(), Some(*index), "{parts:?}");
            }
        }
    }
    assert_eq!(open, None, "{parts:?}");
    answer
}

/// The events of a text that comes in pieces.
fn parse(format: &AnswerFormat, before: &str, pieces: &[&str]) -> Vec<AnswerPart> {
    let tools = tools();
    let mut parser = format.parser(AnswerStart {
        tools: &tools,
        before,
        is_continued: false,
        seed: 7,
    });
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(parser.push(piece));
    }
    parts.extend(parser.finish());
    assert_eq!(
        parser.has_calls(),
        parts
            .iter()
            .any(|part| matches!(part, AnswerPart::ToolCall { .. }))
    );
    parts
}

/// Checks texts of one format behind a prompt: whole, cut once at every character, and cut at all.
fn check_after(template: &str, before: &str, cases: &[Case]) {
    let format = AnswerFormat::detect(template, &|_| false);
    for case in cases {
        let text = case.text;
        let calls = case.calls.iter();
        let want = Answer {
            content: case.content.to_owned(),
            reasoning: case.reasoning.to_owned(),
            calls: calls
                .map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned()))
                .collect(),
        };
        assert_eq!(join(&parse(&format, before, &[text])), want, "{text}");
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for cut in &cuts {
            let (start, end) = text.split_at(*cut);
            assert_eq!(
                join(&parse(&format, before, &[start, end])),
                want,
                "{start} | {end}"
            );
        }
        let characters: Vec<&str> = text.split("").filter(|c| !c.is_empty()).collect();
        assert_eq!(
            join(&parse(&format, before, &characters)),
            want,
            "characters of {text}"
        );
    }
}

/// Checks texts of one format.
fn check(template: &str, cases: &[Case]) {
    assert!(cases.len() >= 10, "{} texts", cases.len());
    check_after(template, "", cases);
}
