//! Answers in parts on a real engine: reasoning that the prompt opens, special tokens that the
//! parser sees and text does not show, tools of an unknown format.

use super::{events, run, tiny_with};
use jerboa::chat::AnswerPart;
use jerboa::task::{FinishReason, ServesTask, TokenEvent};
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
    assert!(!reasoning.is_empty());
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
