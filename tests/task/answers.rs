//! Answers in parts on a real engine: reasoning that the prompt opens, special tokens that the
//! parser sees and text does not show, stop strings, calls that a limit cuts, tools of an unknown
//! format.

use super::{events, request, run, tiny_with};
use jerboa::Result;
use jerboa::chat::AnswerPart;
use jerboa::hub::AbortFlag;
use jerboa::sample::TokenConstraint;
use jerboa::task::{FinishReason, GenerationResult, ServesTask, TokenEvent};
use pollster::block_on;
use serde_json::{Value, json};

const MODEL: &str = "llama";

fn user() -> Value {
    json!([{ "role": "user", "content": "\u{4e10}\u{4e11}" }])
}

fn parts(events: &[TokenEvent]) -> Vec<AnswerPart> {
    events
        .iter()
        .flat_map(|event| event.parts.clone())
        .collect()
}

#[test]
fn a_prompt_that_opens_reasoning() {
    // The characters of the mark are tokens of their own.
    let added = json!([{ "id": 250, "content": "<think>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false }]);
    let template = "{{ messages[0].content }}<think>{# </think> #}";
    let mut model = tiny_with(MODEL, None, added, Some(template));
    let request = |more: Value| {
        let mut request =
            json!({ "messages": user(), "temperature": 0, "maxTokens": 6, "ignoreEos": true });
        let fields = request.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        request
    };
    let raw = run(&mut model, request(json!({ "rawAnswer": true })));
    let (parsed, events) = events(&mut model, request(json!({}))).expect("an answer");
    assert_eq!(parsed.ids, raw.ids);
    assert_eq!((parsed.text.as_str(), raw.reasoning_tokens), ("", 0));
    assert_eq!(parsed.reasoning_tokens, 6);
    let reasoning: String = parts(&events)
        .iter()
        .map(|part| match part {
            AnswerPart::Reasoning { text } => text.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(reasoning, raw.text.trim());
    // Stop strings end content only.
    let inside = reasoning.chars().next().expect("a thought").to_string();
    let stopped = run(&mut model, request(json!({ "stop": [inside] })));
    assert_eq!(stopped.ids, raw.ids);
}

#[test]
fn special_tokens_of_the_format_reach_the_parser() {
    let added = json!([{ "id": 250, "content": "<|tool_call|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }]);
    let template = "{{ messages[0].content }}{{ tools }}{# <|tool_call|> #}";
    let mut model = tiny_with(MODEL, None, added, Some(template));
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let mut request = json!({ "messages": user(), "logitBias": { "250": 100 }, "temperature": 0, "maxTokens": 2, "ignoreEos": true });
    // Without tools the token is hidden, as in all text.
    assert_eq!(run(&mut model, request.clone()).text, "");
    request["tools"] = tools;
    let (answer, events) = events(&mut model, request).expect("an answer");
    assert_eq!(answer.finish_reason, FinishReason::Length);
    let text = "<|tool_call|>".to_owned();
    assert_eq!(answer.text, format!("{text}{text}"));
    let content = AnswerPart::Content { text };
    assert_eq!(parts(&events), [content.clone(), content]);
}

#[test]
fn tools_that_the_template_does_not_read_are_refused() {
    let template = "{{ messages[0].content }}{# <tool_call> #}";
    let mut model = tiny_with(MODEL, None, json!([]), Some(template));
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let request = json!({ "messages": user(), "tools": tools, "maxTokens": 1 });
    let error = events(&mut model, request).expect_err("refused");
    assert_eq!(error.code(), "chat_template");
    assert_eq!(model.info()["toolCalls"], "hermes");
}

#[test]
fn tools_of_an_unknown_format_are_refused() {
    let template = "{{ messages[0].content }}{{ tools }}";
    let mut model = tiny_with(MODEL, None, json!([]), Some(template));
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let request = json!({ "messages": user(), "tools": tools, "maxTokens": 1 });
    let error = events(&mut model, request).expect_err("refused");
    assert_eq!(error.code(), "unsupported_option");
    assert!(error.to_string().contains("'tools'"), "{error}");
    let info = model.info();
    assert_eq!(
        (&info["toolCalls"], &info["reasoning"]),
        (&Value::Null, &json!(false))
    );
}

/// Requires certain tokens, one after another.
struct Script(Vec<u32>);

impl TokenConstraint for Script {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(u32::MAX);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        assert_eq!(token, self.0.remove(0));
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        Ok(self.0.clone())
    }
}

/// The answer of a model whose added tokens spell these texts.
fn scripted(texts: &[&str], more: &Value) -> (GenerationResult, Vec<AnswerPart>) {
    let token = |(index, text)| json!({ "id": 240 + index, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false });
    let added: Vec<Value> = texts.iter().enumerate().map(token).collect();
    let template = "{{ messages[0].content }}{{ tools }}{# <tool_call> #}";
    let mut model = tiny_with(MODEL, None, json!(added), Some(template));
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let mut json = json!({ "messages": user(), "tools": tools, "temperature": 0, "maxTokens": texts.len(), "ignoreEos": true });
    let fields = json.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    let mut script = Script((240..240 + texts.len() as u32).collect());
    let mut events = Vec::new();
    let answer = block_on(model.generate_constrained(
        &request(json),
        Some(&mut script),
        &AbortFlag::new(),
        |event| events.push(event.clone()),
    ));
    (answer.expect("an answer"), parts(&events))
}

fn arguments(parts: &[AnswerPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        AnswerPart::Arguments { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn stop_strings_end_content_and_not_calls() {
    let call = [
        "<tool_call>",
        "\n",
        "{\"name\": \"now\", \"arguments\": {\"city\": ",
        "\"Oslo\"}}",
        "</tool_call>",
    ];
    for stop in ["\n", "Oslo", "</tool_call>", "Oslo\"}}</tool"] {
        let (answer, parts) = scripted(&call, &json!({ "stop": [stop] }));
        assert_eq!(answer.ids.len(), call.len(), "{stop:?}: {parts:?}");
        assert_eq!(arguments(&parts), "{\"city\":\"Oslo\"}", "{stop:?}");
        assert_eq!(answer.text.trim(), "", "{stop:?}");
    }
    // Content before and after, with a stop string that spans tokens; what follows is dropped.
    let text = ["So", " it", " is", "<tool_call>", "never"];
    let (answer, found) = scripted(&text, &json!({ "stop": ["t is"] }));
    assert_eq!(
        (answer.text.as_str(), answer.finish_reason, answer.ids.len()),
        ("So i", FinishReason::Stop, 3)
    );
    let shown: Vec<AnswerPart> = ["So", " i"]
        .map(|text| AnswerPart::Content { text: text.into() })
        .into();
    assert_eq!(found, shown);
    // The beginning of a stop string is content once a call follows.
    let text = [&["So t"], &call[..]].concat();
    let (answer, found) = scripted(&text, &json!({ "stop": ["t is"] }));
    assert_eq!(answer.text.trim(), "So t", "{found:?}");
    assert_eq!(arguments(&found), "{\"city\":\"Oslo\"}");
}

#[test]
fn a_call_without_a_name_that_a_limit_cuts_is_not_content() {
    let call = [
        "<tool_call>",
        "\n",
        "{\"name\"",
        ": \"now\", ",
        "\"arguments\": {}}",
    ];
    for length in 1..=3 {
        let (answer, parts) = scripted(&call[..length], &json!({}));
        assert_eq!(answer.finish_reason, FinishReason::Length);
        assert_eq!(
            (answer.text.as_str(), &parts[..]),
            ("", &[][..]),
            "{length}"
        );
    }
    let (answer, parts) = scripted(&call, &json!({}));
    assert_eq!(
        (answer.text.as_str(), arguments(&parts).as_str()),
        ("", "{}")
    );
}
