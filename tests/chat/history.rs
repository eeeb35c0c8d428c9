//! Messages as the templates of the families read them.

use jerboa::chat::{CallFormat, adapt_messages, stringify_arguments};
use jerboa::text::{ChatInput, ChatTemplate, LocalTime, SpecialTokens};
use serde_json::{Value, json};

fn adapted(template: &str, calls: Option<CallFormat>, messages: &Value) -> Vec<Value> {
    let mut messages = messages.as_array().expect("messages").clone();
    let markers = adapt_messages(template, calls, &mut messages, None);
    // What rendering does with the marks.
    for message in &mut messages {
        if let Some(Value::String(content)) = message.get_mut("content") {
            for (mark, texts) in markers.replacements() {
                for text in texts {
                    *content = content.replacen(mark, text, 1);
                }
            }
        }
    }
    messages
}

fn thought(field: &str) -> Value {
    json!([{ "role": "user", "content": "?" }, { "role": "assistant", "content": "!", field: "Hm." }])
}

#[test]
fn reasoning_goes_where_the_template_reads_it() {
    for field in ["reasoning_content", "reasoning"] {
        let given = thought(field);
        for (template, want) in [
            (
                "message.reasoning_content",
                json!({ "role": "assistant", "content": "!", "reasoning_content": "Hm." }),
            ),
            (
                "message.thinking",
                json!({ "role": "assistant", "content": "!", "thinking": "Hm." }),
            ),
            (
                "\"thinking\" in message",
                json!({ "role": "assistant", "content": "!", "thinking": "Hm." }),
            ),
            (
                "message.reasoning",
                json!({ "role": "assistant", "content": "!", "reasoning": "Hm." }),
            ),
            (
                "block['thinking']",
                json!({ "role": "assistant", "content": [{ "type": "thinking", "thinking": "Hm." }, { "type": "text", "text": "!" }] }),
            ),
            (
                "content.split('</think>')[-1]",
                json!({ "role": "assistant", "content": "<think>\nHm.\n</think>\n\n!" }),
            ),
            (
                "message.content",
                json!({ "role": "assistant", "content": "!" }),
            ),
        ] {
            assert_eq!(adapted(template, None, &given)[1], want, "{template}");
        }
    }
    let nothing = json!([{ "role": "assistant", "content": "!", "reasoning_content": null }]);
    let plain = json!({ "role": "assistant", "content": "!" });
    assert_eq!(adapted("reasoning_content", None, &nothing)[0], plain);
}

#[test]
fn calls_that_the_template_does_not_render_are_written_out() {
    let arguments = json!({ "city": "Oslo", "days": 2, "ok": true, "none": null, "list": [1] });
    let call = |arguments: Value| json!({ "id": "1", "type": "function", "function": { "name": "weather", "arguments": arguments } });
    let messages = json!([
        { "role": "assistant", "content": "I look.", "tool_calls": [call(arguments.clone()), call(json!({}))] },
        { "role": "tool", "content": "rain", "tool_call_id": "1" },
        { "role": "assistant", "content": "", "tool_calls": [call(arguments.to_string().into())] },
    ]);
    let object = r#"{"city":"Oslo","days":2,"ok":true,"none":null,"list":[1]}"#;
    for (format, first) in [
        (
            CallFormat::Lfm2,
            r#"I look.<|tool_call_start|>[weather(city="Oslo", days=2, ok=True, none=None, list=[1]), weather()]<|tool_call_end|>"#.to_owned(),
        ),
        (
            CallFormat::Granite,
            format!(r#"I look.<|tool_call|>[{{"name": "weather", "arguments": {object}}}, {{"name": "weather", "arguments": {{}}}}]"#),
        ),
        (
            CallFormat::Hermes,
            format!("I look.<tool_call>\n{{\"name\": \"weather\", \"arguments\": {object}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"weather\", \"arguments\": {{}}}}\n</tool_call>"),
        ),
    ] {
        let got = adapted("message.content", Some(format), &messages);
        assert_eq!(got[0]["content"], Value::String(first), "{format:?}");
        let third = got[2]["content"].as_str().expect("text");
        assert!(third.contains("Oslo") && third.starts_with('<'), "{third}");
        // A template that renders calls gets them as they are.
        assert_eq!(adapted("message.tool_calls", Some(format), &messages)[0], messages[0]);
    }
}

#[test]
fn templates_of_one_call_get_one_call_a_message() {
    let call = |id: &str| json!({ "id": id, "function": { "name": "now", "arguments": {} } });
    let result = |id: &str| json!({ "role": "tool", "content": id, "tool_call_id": id });
    let messages = json!([
        { "role": "assistant", "content": "Two.", "tool_calls": [call("a"), call("b")] },
        result("b"), result("a"),
        { "role": "assistant", "content": "Done." },
    ]);
    let template = "tool_calls: This model only supports single tool-calls at once!";
    let want = [
        json!({ "role": "assistant", "content": "Two.", "tool_calls": [call("a")] }),
        result("a"),
        json!({ "role": "assistant", "content": "", "tool_calls": [call("b")] }),
        result("b"),
        json!({ "role": "assistant", "content": "Done." }),
    ];
    assert_eq!(adapted(template, None, &messages), want);
}

#[test]
fn templates_that_render_the_first_call_get_one_call_a_message() {
    let call = |id: &str| json!({ "id": id, "function": { "name": "now", "arguments": {} } });
    let messages =
        json!([{ "role": "assistant", "content": "", "tool_calls": [call("a"), call("b")] }]);
    for template in [
        "{%- set function_call = message.tool_calls[0] -%}",
        "{{- render_function_call(message.tool_calls[0]) -}}",
    ] {
        let got = adapted(template, Some(CallFormat::GigaChat), &messages);
        let calls: Vec<&Value> = got.iter().map(|message| &message["tool_calls"]).collect();
        assert_eq!(
            calls,
            [&json!([call("a")]), &json!([call("b")])],
            "{template}"
        );
    }
}

#[test]
fn tools_stand_in_the_system_message_where_the_template_reads_them_there() {
    let template = "{% if 'tools' in message %}";
    let tools = [json!({ "type": "function", "function": { "name": "now" } })];
    let system = json!({ "role": "system", "content": "Be brief." });
    for messages in [
        vec![json!({ "role": "user", "content": "?" })],
        vec![system],
    ] {
        let mut messages = messages;
        adapt_messages(template, None, &mut messages, Some(&tools));
        assert_eq!(messages[0]["role"], "system");
        assert_eq!(messages[0]["tools"], r#"[{"name":"now"}]"#);
    }
}

#[test]
fn arguments_become_text_once() {
    let function = json!({ "name": "now", "arguments": { "a": 1 } });
    let mut messages =
        vec![json!({ "role": "assistant", "tool_calls": [{ "function": function }] })];
    assert!(stringify_arguments(&mut messages));
    assert_eq!(
        messages[0]["tool_calls"][0]["function"]["arguments"],
        r#"{"a":1}"#
    );
    assert!(!stringify_arguments(&mut messages));
}

#[test]
fn firefunction_gets_the_functions_and_the_time_by_its_names() {
    let source = "functools[ {{ functions }} {{ datetime }}";
    let template = ChatTemplate::new(source).expect("a template");
    let now = json!({ "type": "function", "function": { "name": "now" } });
    let mut input = ChatInput {
        tools: Some(vec![now]),
        local_time: Some(LocalTime::from_unix(0)),
        ..ChatInput::default()
    };
    let render = |input: &ChatInput| {
        let prompt = template.render(input, &SpecialTokens::default(), &[]);
        prompt.expect("a prompt").text
    };
    assert_eq!(
        render(&input),
        "functools[ [{\"name\":\"now\"}] Jan 01 1970 00:00:00"
    );
    input.variables.insert("datetime".into(), "today".into());
    assert_eq!(render(&input), "functools[ [{\"name\":\"now\"}] today");
}
