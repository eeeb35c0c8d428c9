//! What comes when: arguments as they are written, ids, special tokens.

use super::parse;
use jerboa::chat::{AnswerFormat, AnswerPart, AnswerStart};

fn content(text: &str) -> AnswerPart {
    AnswerPart::Content { text: text.into() }
}

fn arguments(index: usize, text: &str) -> AnswerPart {
    AnswerPart::Arguments {
        index,
        text: text.into(),
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    let tools = super::tools();
    for (template, pieces) in [
        (
            "<tool_call>",
            [
                "<tool_call>{\"name\": \"search\", ",
                "\"arguments\": {\"query\": \"one",
                " two\"}}</tool_call>",
            ],
        ),
        (
            "<function=",
            [
                "<tool_call><function=search>",
                "<parameter=query>one",
                " two</parameter></function></tool_call>",
            ],
        ),
        (
            "<|tool_call_start|>",
            [
                "<|tool_call_start|>[search(",
                "query=\"one",
                " two\")]<|tool_call_end|>",
            ],
        ),
        (
            "<tool_calls>",
            [
                "<tool_calls>[{\"name\": \"search\", ",
                "\"arguments\": {\"query\": \"one",
                " two\"}}]</tool_calls>",
            ],
        ),
        (
            "<minimax:tool_call>",
            [
                "<minimax:tool_call><invoke name=\"search\">",
                "<parameter name=\"query\">one",
                " two</parameter></invoke></minimax:tool_call>",
            ],
        ),
        (
            "<function_calls>",
            [
                "<function_calls>search(",
                "query=\"one",
                " two\")</function_calls>",
            ],
        ),
        (
            ">>>${recipient}",
            ["search\n", "{\"query\": \"one", " two\"}>>>all\n"],
        ),
        (
            "<|tool_call>",
            [
                "<|tool_call>call:search{",
                "query:<|\"|>one",
                " two<|\"|>}<tool_call|>",
            ],
        ),
    ] {
        let format = AnswerFormat::detect(template, &|_| false);
        let mut parser = format.parser(AnswerStart {
            tools: &tools,
            ..AnswerStart::default()
        });
        let first = parser.push(pieces[0]);
        let second = parser.push(pieces[1]);
        let third = parser.push(pieces[2]);
        let started = [first, second.clone()].concat();
        assert!(
            matches!(&started[0], AnswerPart::ToolCall { index: 0, name, .. } if name == "search"),
            "{template}: {started:?}"
        );
        assert_eq!(
            second.last(),
            Some(&arguments(0, "{\"query\":\"one")),
            "{template}"
        );
        let end = AnswerPart::ToolCallEnd { index: 0 };
        assert_eq!(third, [arguments(0, " two\"}"), end], "{template}");
        assert_eq!(parser.finish(), [], "{template}");
    }
}

#[test]
fn content_waits_only_for_what_may_be_a_marker() {
    let format = AnswerFormat::detect("<tool_call>", &|_| false);
    let tools = super::tools();
    let mut parser = format.parser(AnswerStart {
        tools: &tools,
        ..AnswerStart::default()
    });
    assert_eq!(parser.push("a <"), [content("a")]);
    assert_eq!(parser.push("b"), [content(" <b")]);
    assert_eq!(parser.push("<tool_"), []);
    assert_eq!(parser.push("box>"), [content("<tool_box>")]);
    assert_eq!(parser.push("\n"), []);
    assert_eq!(parser.finish(), [content("\n")]);
}

#[test]
fn a_marker_that_a_limit_cut_is_no_content() {
    let tools = super::tools();
    let format = AnswerFormat::detect("<tool_call>", &|_| false);
    let end = |text: &str, is_cut: bool| -> String {
        let mut parser = format.parser(AnswerStart {
            tools: &tools,
            ..AnswerStart::default()
        });
        parser.push(text);
        let parts = if is_cut {
            parser.cut()
        } else {
            parser.finish()
        };
        let texts = parts.into_iter().map(|part| match part {
            AnswerPart::Content { text } => text,
            other => panic!("{text:?}: {other:?}"),
        });
        texts.collect()
    };
    let name = "<tool_call>{\"name\": \"sea";
    for (text, cut, whole) in [
        ("<tool_call", "", "<tool_call"),
        ("\n<tool_", "\n", "\n<tool_"),
        (name, "", name),
        ("1 <", " <", " <"),
        ("done\n", "\n", "\n"),
    ] {
        assert_eq!(
            [end(text, true), end(text, false)],
            [cut, whole],
            "{text:?}"
        );
    }
}

#[test]
fn ids_are_unique_repeatable_and_of_the_familys_form() {
    let ids = |template: &str, text: &str| -> Vec<String> {
        let format = AnswerFormat::detect(template, &|_| false);
        parse(&format, "", &[text])
            .into_iter()
            .filter_map(|part| match part {
                AnswerPart::ToolCall { id, .. } => Some(id),
                _ => None,
            })
            .collect()
    };
    let call = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let twice = format!("{call}{call}");
    let hermes = ids("<tool_call>", &twice);
    assert_eq!(hermes, ids("<tool_call>", &twice));
    assert!(
        hermes
            .iter()
            .all(|id| id.len() == 29 && id.starts_with("call_")),
        "{hermes:?}"
    );
    assert_ne!(hermes[0], hermes[1]);
    let mistral = ids("[TOOL_CALLS]", "[TOOL_CALLS]now[ARGS]{}");
    assert!(mistral[0].len() == 9 && mistral[0].chars().all(|c| c.is_ascii_alphanumeric()));
    assert_eq!(
        ids("[TOOL_CALLS]", "[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}"),
        ["123456789"]
    );
    let kimi = "<|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|>";
    assert_eq!(ids("<|tool_call_begin|>", kimi), ["functions.now:4"]);
}

#[test]
fn special_tokens_of_the_format_are_wanted_and_others_are_not() {
    let tools = super::tools();
    for (template, wanted) in [
        (
            "<tool_call> <think>",
            &["<tool_call>", "</tool_call>", "<think>", "</think>"][..],
        ),
        (
            "[TOOL_CALLS] [THINK]",
            &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
        ),
        (
            "<|tool_call> <|channel>",
            &[
                "<|tool_call>",
                "<tool_call|>",
                "<|\"|>",
                "<|channel>",
                "<channel|>",
            ],
        ),
        (
            "<|channel|> <|message|>",
            &[
                "<|start|>",
                "<|channel|>",
                "<|constrain|>",
                "<|message|>",
                "<|end|>",
                "<|call|>",
            ],
        ),
        (
            "<｜tool▁call▁begin｜>",
            &[
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
            ],
        ),
        (
            "<|tool_call_begin|>",
            &[
                "<|tool_calls_section_begin|>",
                "<|tool_call_argument_begin|>",
            ],
        ),
        ("<|python_tag|>", &["<|python_tag|>"]),
        (
            "<|action_start|><|plugin|>",
            &["<|action_start|>", "<|plugin|>", "<|action_end|>"],
        ),
        (
            "<|message_sep|> function call",
            &["<|message_sep|>\n\n", "<|role_sep|>\n", "<|function_call|>"],
        ),
        (
            "<function name=",
            &["<function", "<param", "</param>", "</function>"],
        ),
        (
            "<seed:tool_call> <seed:think>",
            &[
                "<seed:tool_call>",
                "</seed:tool_call>",
                "<seed:think>",
                "<seed:cot_budget_reflect>",
                "</seed:cot_budget_reflect>",
            ],
        ),
        ("｜DSML｜ tool_calls>", &["｜DSML｜"]),
        (
            "<steptml:invoke",
            &[
                "<｜tool_calls_begin｜>",
                "<｜tool_call_begin｜>",
                "<｜tool_sep｜>",
                "<｜tool_call_end｜>",
            ],
        ),
        (
            "<arg_key>",
            &[
                "<tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
                "</tool_call>",
            ],
        ),
    ] {
        let format = AnswerFormat::detect(template, &|_| false);
        let parser = format.parser(AnswerStart {
            tools: &tools,
            ..AnswerStart::default()
        });
        for token in wanted {
            assert!(parser.wants(token), "{template}: {token}");
        }
        for token in ["<|im_end|>", "</s>", "<pad>", "<|eot_id|>"] {
            assert!(!parser.wants(token), "{template}: {token}");
        }
    }
}

#[test]
fn events_are_json_with_a_type() {
    let call = AnswerPart::ToolCall {
        index: 0,
        id: "call_1".into(),
        name: "now".into(),
    };
    let parts = [
        content("a"),
        call,
        arguments(0, "{}"),
        AnswerPart::ToolCallEnd { index: 0 },
    ];
    assert_eq!(
        serde_json::to_string(&parts).expect("JSON"),
        r#"[{"type":"content","text":"a"},{"type":"toolCall","index":0,"id":"call_1","name":"now"},{"type":"arguments","index":0,"text":"{}"},{"type":"toolCallEnd","index":0}]"#
    );
}
