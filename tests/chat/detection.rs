//! Formats of published chat templates.

use flate2::read::GzDecoder;
use jerboa::chat::{AnswerFormat, CallFormat};
use jerboa_tests::golden::golden;
use std::io::Read as _;

fn template(name: &str) -> String {
    let path = golden(&format!("text/templates/{name}.jinja.gz"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut text = String::new();
    GzDecoder::new(&bytes[..])
        .read_to_string(&mut text)
        .expect("a template");
    text
}

#[test]
fn committed_templates() {
    use CallFormat::{DeepSeek, FunctionXml, Granite, Harmony, Hermes, Mistral, Phi4};
    for (name, calls, has_reasoning) in [
        ("chatml-community", None, false),
        ("deepseek-v3.1", Some(DeepSeek), true),
        ("gpt-oss", Some(Harmony), true),
        ("granite3.3", Some(Granite), true),
        ("granite4.0", Some(Hermes), false),
        ("hermes2-pro-tool", Some(Hermes), false),
        ("ministral-3", Some(Mistral), true),
        ("mistral-nemo", Some(Mistral), false),
        ("phi4-mini", Some(Phi4), false),
        ("qwen2.5", Some(Hermes), false),
        ("qwen3", Some(Hermes), true),
        ("qwen3-coder", Some(FunctionXml), false),
        ("smollm3", Some(Hermes), true),
        ("zephyr-community", None, false),
    ] {
        let format = AnswerFormat::detect(&template(name), &|_| false);
        assert_eq!(
            (format.calls(), format.has_reasoning()),
            (calls, has_reasoning),
            "{name}"
        );
    }
}

/// Words that distinguish families, from their published templates.
#[test]
fn other_families() {
    for (template, token, calls) in [
        (
            "'Environment: ipython' {\"name\": function name, \"parameters\": dictionary of argument name and its value}",
            "",
            Some(CallFormat::Llama),
        ),
        ("<|tool_list_start|>[", "", Some(CallFormat::Lfm2)),
        (
            "List of tools: [",
            "<|tool_call_start|>",
            Some(CallFormat::Lfm2),
        ),
        ("List of tools: [", "", None),
        (
            "<|tool_call>call: <|channel>thought",
            "",
            Some(CallFormat::Gemma4),
        ),
        ("<start_function_call>", "", Some(CallFormat::FunctionGemma)),
        (
            "<tool_call>{function-name} <arg_key>",
            "",
            Some(CallFormat::Glm),
        ),
        ("<TOOLCALL>[{{", "", Some(CallFormat::Nemotron)),
        ("<|START_ACTION|>", "", Some(CallFormat::CommandR7b)),
        (
            "\\nAction:\\n```json \"tool_name\"",
            "",
            Some(CallFormat::CommandR),
        ),
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>",
            "",
            Some(CallFormat::KimiK2),
        ),
        (
            "<tool_calls>[{\"name\": <function-name-1>",
            "",
            Some(CallFormat::ToolCalls),
        ),
        (
            "within <function_calls></function_calls> XML tags",
            "",
            Some(CallFormat::Olmo3),
        ),
        (
            "Respond in this format:\\n>>>${recipient}\\n${content}",
            "",
            Some(CallFormat::Functionary),
        ),
        (
            "formatted as functools[{\"name\"",
            "",
            Some(CallFormat::FireFunction),
        ),
        (
            "make calls in a single JSON array",
            "",
            Some(CallFormat::Xlam),
        ),
        (
            "message_sep=\"<|message_sep|>\" {'role': 'function call'",
            "",
            Some(CallFormat::GigaChat),
        ),
        (
            "function_call=\"<|function_call|>\"",
            "",
            Some(CallFormat::GigaChat),
        ),
        ("<|action_start|><|plugin|>", "", Some(CallFormat::InternLm)),
        (
            "<function name=\"f\"><param name=",
            "",
            Some(CallFormat::MiniCpm5),
        ),
        (
            "'<seed:tool_call>' <function=example_function_name>",
            "",
            Some(CallFormat::SeedOss),
        ),
        ("'<minimax:tool_call>'", "", Some(CallFormat::MiniMaxM2)),
        (
            "'｜DSML｜' 'function_calls>'",
            "",
            Some(CallFormat::DeepSeekV3_2),
        ),
        ("'｜DSML｜' 'tool_calls>'", "", Some(CallFormat::DeepSeekV4)),
        (
            "'<|message_sep|>' 'function call' '<｜GCML｜tool_calls>'",
            "",
            Some(CallFormat::GigaChat3_5),
        ),
        ("<steptml:invoke name=", "", Some(CallFormat::Step3)),
        // Formats that are not supported.
        (
            "<|tool_call:begin|><|tool_call:name|><|tool_call:args|>",
            "",
            None,
        ),
        ("'<|tools_prefix|>' '<|tools_suffix|>'", "", None),
        ("'<tool_calls>' '<tool_sep>' '<arg_key>'", "", None),
        (
            "'<function name=' content.split('<tool_sep>')",
            "",
            Some(CallFormat::MiniCpm5),
        ),
        ("']<]minimax[>[' ~ '<tool_call>'", "", None),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", "", None),
    ] {
        let format = AnswerFormat::detect(template, &|name| name == token);
        assert_eq!(format.calls(), calls, "{template}");
    }
    let by_vocabulary = AnswerFormat::detect("{{ messages }}", &|name| name == "</think>");
    assert!(by_vocabulary.has_reasoning());
}
