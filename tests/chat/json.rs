//! Formats whose calls are JSON objects.

use super::{case, check, thought};

const OSLO: (&str, &str) = ("weather", r#"{"city":"Oslo"}"#);
const NOW: (&str, &str) = ("now", "{}");

#[test]
fn hermes() {
    check(
        "<tool_call> <think>",
        &[
            case("Hello.", "Hello.", &[]),
            case("  Two\n\nparagraphs.\n", "  Two\n\nparagraphs.\n", &[]),
            case(
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
                "",
                &[OSLO],
            ),
            case(
                "Let me see.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n",
                "Let me see.",
                &[NOW],
            ),
            case(
                "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n<tool_call>{\"arguments\": {\"city\": \"Oslo\"}, \"name\": \"weather\"}</tool_call>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<tool_call>\n{\"name\": \"now\"}\n{\"name\": \"now\", \"arguments\": null}\n</tool_call> Done.",
                "Done.",
                &[NOW, NOW],
            ),
            case(
                "Before\n\n<tool_call>{'name': 'search', 'arguments': {'query': 'it\\'s', \"limit\": None}}</tool_call>\nAfter",
                "Before\n\nAfter",
                &[("search", r#"{"query":"it's","limit":null}"#)],
            ),
            case(
                "<tool_call>{\"name\": \"search\", \"arguments\": \"{\\\"query\\\": \\\"a b\\\"}\"}</tool_call>",
                "",
                &[("search", r#"{"query":"a b"}"#)],
            ),
            case(
                "a <tool_call> nonsense </tool_call> b <tool",
                "a <tool_call> nonsense </tool_call> b <tool",
                &[],
            ),
            case(
                "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            case(
                "<tool_call>{\"name\": \"weather\", \"arguments\": {oops] }}</tool_call>Sorry",
                "Sorry",
                &[("weather", r#"{"oops""#)],
            ),
            case(
                "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"filter\": {\"a\": [1, {\"b\": \"</tool_call>\"}]}, \"query\": \"\u{1f600} \\u00e9\"}}}\n</tool_call>",
                "",
                &[(
                    "search",
                    "{\"filter\":{\"a\":[1,{\"b\":\"</tool_call>\"}]},\"query\":\"\u{1f600} \\u00e9\"}",
                )],
            ),
            case(
                "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}",
                "",
                &[OSLO],
            ),
            case(
                "<tool_call>```json\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n```</tool_call>",
                "",
                &[OSLO],
            ),
            thought(
                "<think>\nOslo, then.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
                "Oslo, then.",
                "I look.",
                &[OSLO],
            ),
            thought(
                "<think>I call it <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
                "I call it",
                "",
                &[NOW],
            ),
        ],
    );
}

#[test]
fn granite_3() {
    check(
        "<|tool_call|>",
        &[
            case("No call.", "No call.", &[]),
            case(
                "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
                "",
                &[OSLO],
            ),
            case(
                "<|tool_call|> [{\"arguments\": {\"city\": \"Oslo\"}, \"name\": \"weather\"}, {\"arguments\": {}, \"name\": \"now\"}]",
                "",
                &[OSLO, NOW],
            ),
            case(
                "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]",
                "",
                &[NOW],
            ),
            case("<|tool_call|>[\n  {\"name\": \"now\"}\n]\n", "", &[NOW]),
            case("<|tool_call|>[]", "", &[]),
            case(
                "One moment. <|tool_call|>[{\"name\": \"now\"}]",
                "One moment.",
                &[NOW],
            ),
            case("<|tool_call|>[{\"name\": \"now\"}]\nSo.", "So.", &[NOW]),
            case(
                "<|tool_call|>{\"name\": \"now\", \"arguments\": {}}",
                "",
                &[NOW],
            ),
            case("<|tool_call|>text", "<|tool_call|>text", &[]),
            case(
                "<|tool_call|>[{\"name\": \"search\", \"arguments\": {\"tags\": [\"a\", \"b\"], \"score\": 3.5, \"limit\": null}}]",
                "",
                &[("search", r#"{"tags":["a","b"],"score":3.5,"limit":null}"#)],
            ),
            case(
                "<|tool_call|>[{\"name\": \"search\", \"arguments\": {\"query\": \"a \\\"b\\\" \\\\ c\"",
                "",
                &[("search", r#"{"query":"a \"b\" \\ c""#)],
            ),
        ],
    );
}

#[test]
fn phi_4_mini() {
    check(
        "<|tool|> <|/tool|>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]<|/tool_call|>",
                "",
                &[OSLO],
            ),
            case(
                "<|tool_call|>[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}}]<|/tool_call|>",
                "",
                &[OSLO],
            ),
            case(
                "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
                "",
                &[OSLO],
            ),
            case(
                "functools[\n  {\"name\": \"now\", \"arguments\": {}},\n  {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n]",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I do.\nfunctools[{\"name\": \"now\"}]\nDone",
                "I do.\n\nDone",
                &[NOW],
            ),
            case(
                "functools{\"name\": \"now\"}",
                "functools{\"name\": \"now\"}",
                &[],
            ),
            case("functools[ words ]", "functools[ words ]", &[]),
            case(
                "<|tool_call|>{\"name\": \"now\", \"arguments\": {}}<|/tool_call|>",
                "",
                &[NOW],
            ),
            case(
                "<|tool_call|>[]<|/tool_call|>Nothing to call.",
                "Nothing to call.",
                &[],
            ),
            case(
                "<|tool_call|>[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}]<|/tool_call|>",
                "",
                &[OSLO],
            ),
        ],
    );
}

#[test]
fn nemotron() {
    check(
        "<TOOLCALL>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</TOOLCALL>",
                "",
                &[OSLO],
            ),
            case(
                "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</TOOLCALL>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<TOOLCALL>[\n{\"name\": \"now\", \"arguments\": {}}\n]\n</TOOLCALL>\n",
                "",
                &[NOW],
            ),
            case(
                "I look.\n<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
                "I look.",
                &[NOW],
            ),
            case(
                "<TOOLCALL>{\"name\": \"now\", \"arguments\": {}}</TOOLCALL>",
                "",
                &[NOW],
            ),
            case(
                "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Oslo\\\"}\"}]</TOOLCALL>",
                "",
                &[OSLO],
            ),
            case(
                "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]",
                "",
                &[NOW],
            ),
            case("<TOOLCALL> words", "<TOOLCALL> words", &[]),
            case("<TOOLCALL>[]</TOOLCALL>None.", "None.", &[]),
        ],
    );
}

#[test]
fn command_r() {
    check(
        "Action: tool_name",
        &[
            case("An answer.", "An answer.", &[]),
            case("Actions: none", "Actions: none", &[]),
            case("Action: wait", "Action: wait", &[]),
            case(
                "Action: ```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\n            \"city\": \"Oslo\"\n        }\n    }\n]```",
                "",
                &[OSLO],
            ),
            case(
                "Action:\n```json\n[\n {\"tool_name\": \"now\", \"parameters\": {}},\n {\"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}\n]\n```",
                "",
                &[NOW, OSLO],
            ),
            case(
                "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```",
                "",
                &[],
            ),
            case(
                "Action: ```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}, {\"tool_name\": \"now\", \"parameters\": {}}]```",
                "",
                &[NOW],
            ),
            case(
                "I will look.\nAction: ```json\n[{\"tool_name\": \"now\", \"parameters\": {}}]```",
                "I will look.",
                &[NOW],
            ),
            case(
                "Action: [{\"tool_name\": \"now\", \"parameters\": {}}]",
                "",
                &[NOW],
            ),
            case(
                "Action: ```json\n[{\"tool_name\": \"now\"}]\n```\nAnswer: so",
                "Answer: so",
                &[NOW],
            ),
            case(
                "Action: ```json\n[{\"tool_name\": \"search\", \"parameters\": {\"query\": \"```\"}}]```",
                "",
                &[("search", r#"{"query":"```"}"#)],
            ),
        ],
    );
}

#[test]
fn command_r7b() {
    check(
        "<|START_ACTION|> <|START_THINKING|>",
        &[
            case("<|START_RESPONSE|>Hello.<|END_RESPONSE|>", "Hello.", &[]),
            case("Hello.", "Hello.", &[]),
            thought(
                "<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}\n]<|END_ACTION|>",
                "I will look.",
                "",
                &[OSLO],
            ),
            thought(
                "<|START_THINKING|> Two. <|END_THINKING|><|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}, {\"tool_call_id\": \"1\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}]<|END_ACTION|>",
                "Two.",
                "",
                &[NOW, OSLO],
            ),
            thought(
                "<|START_THINKING|>Hm.<|END_THINKING|>\n<|START_RESPONSE|>So.<|END_RESPONSE|>",
                "Hm.",
                "So.",
                &[],
            ),
            thought("<|START_THINKING|><|END_THINKING|>So.", "", "So.", &[]),
            case("<|START_ACTION|>[]<|END_ACTION|>", "", &[]),
            case(
                "<|START_ACTION|>{\"tool_name\": \"now\"}<|END_ACTION|>",
                "",
                &[NOW],
            ),
            case(
                "<|START_ACTION|>oops<|END_ACTION|>",
                "<|START_ACTION|>oops<|END_ACTION|>",
                &[],
            ),
            thought("<|START_THINKING|>unfinished", "unfinished", "", &[]),
            thought(
                "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|><|START_THINKING|>c<|END_THINKING|>",
                "a\n\nc",
                "b",
                &[],
            ),
        ],
    );
}

#[test]
fn llama_3() {
    check(
        "<|python_tag|>",
        &[
            case("Just text.", "Just text.", &[]),
            case(
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
                "",
                &[OSLO],
            ),
            case(
                "{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
                "",
                &[OSLO],
            ),
            case(
                "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}",
                "",
                &[OSLO],
            ),
            case(
                "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}};\n{\"name\": \"now\"}",
                "",
                &[NOW, OSLO, NOW],
            ),
            case(
                "Here: {\"name\": \"now\", \"parameters\": {}} Good?",
                "Here:\n\nGood?",
                &[NOW],
            ),
            case(
                "{\"name\": \"Bob\", \"age\": 3}",
                "{\"name\": \"Bob\", \"age\": 3}",
                &[],
            ),
            case("{\"parameters\": {}}", "{\"parameters\": {}}", &[]),
            case("fn main() { loop {} }", "fn main() { loop {} }", &[]),
            case(
                "{\"name\": \"now\", \"parameters\": {}} I passed {\"query\": \"x\"}.",
                "I passed {\"query\": \"x\"}.",
                &[NOW],
            ),
            case(
                "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}",
                "",
                &[NOW],
            ),
            case(
                "<|python_tag|>search.call(query=\"a, b\", limit=\"3\")",
                "",
                &[("search", r#"{"query":"a, b","limit":3}"#)],
            ),
            case(
                "<|python_tag|>import math\nprint(\"x\")\n",
                "",
                &[("python", r#"{"code":"import math\nprint(\"x\")"}"#)],
            ),
            case(
                "{\"name\": \"search\", \"parameters\": {\"query\": \"{a} [b] \\\"c\\\"\", \"filter\": {\"a\": {\"b\": {}}}}}",
                "",
                &[(
                    "search",
                    r#"{"query":"{a} [b] \"c\"","filter":{"a":{"b":{}}}}"#,
                )],
            ),
            case(
                "{\"name\": \"weather\", \"parameters\": {\"ci",
                "",
                &[("weather", r#"{"ci"#)],
            ),
            case("{\"name\": \"wea", "{\"name\": \"wea", &[]),
        ],
    );
}

#[test]
fn mistral() {
    check(
        "[TOOL_CALLS] [THINK]",
        &[
            case("This is a test", "This is a test", &[]),
            case(
                "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\":{\"city\": \"Oslo\"}}]",
                "",
                &[OSLO],
            ),
            case(
                "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}, \"id\": \"abcdefghi\"}, {\"arguments\": {}, \"name\": \"now\"}]",
                "",
                &[OSLO, NOW],
            ),
            case(
                "Hello[TOOL_CALLS] [{\"arguments\":{\"city\": \"Oslo\"}, \"name\": \"weather\"}]\nmore",
                "Hello\n\nmore",
                &[OSLO],
            ),
            case(
                "[TOOL_CALLS] not json at all",
                "[TOOL_CALLS] not json at all",
                &[],
            ),
            case("[TOOL_CALLS]weather{\"city\": \"Oslo\"}", "", &[OSLO]),
            case("[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}", "", &[OSLO]),
            case(
                "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}",
                "",
                &[NOW, OSLO],
            ),
            case(
                "[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{\"city\": \"Oslo\"}",
                "",
                &[OSLO],
            ),
            case("[TOOL_CALLS]now[ARGS]{} ok", "ok", &[NOW]),
            case("[TOOL_CALLS]now[ARGS]", "", &[NOW]),
            case(
                "[TOOL_CALLS]weather[ARGS]{\"city\": ",
                "",
                &[("weather", r#"{"city":"#)],
            ),
            case(
                "[TOOL_CALLS]search[ARGS]nonsense",
                "",
                &[("search", "nonsense")],
            ),
            thought(
                "[THINK]Oslo?[/THINK]Yes.[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}",
                "Oslo?",
                "Yes.",
                &[OSLO],
            ),
            thought(
                "[THINK]Hm.[/THINK]\nA [list] of [TOOL]s",
                "Hm.",
                "A [list] of [TOOL]s",
                &[],
            ),
        ],
    );
}
