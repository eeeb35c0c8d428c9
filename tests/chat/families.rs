//! Formats of further families: XML with other tags, lists in JSON, lines with recipients.

use super::{case, check, check_after, thought};

const OSLO: (&str, &str) = ("weather", r#"{"city":"Oslo"}"#);
const NOW: (&str, &str) = ("now", "{}");

/// Template words of Apriel 1.5 and 1.6.
const APRIEL: &str = "<tool_calls>[ [BEGIN FINAL RESPONSE] [END FINAL RESPONSE]";

#[test]
fn apriel() {
    check(
        APRIEL,
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</tool_calls>",
                "",
                &[OSLO],
            ),
            case(
                "<tool_calls>[{\"name\": \"now\", \"arguments\": {}, \"id\": \"call_1\"}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}, \"id\": \"call_2\"}]</tool_calls>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]</tool_call>",
                "",
                &[NOW],
            ),
            case(
                "I look.\n<tool_calls>[\n  {\"name\": \"now\", \"arguments\": {}}\n]</tool_calls>\n",
                "I look.",
                &[NOW],
            ),
            thought(
                "Here are my reasoning steps:\nOslo.\n[BEGIN FINAL RESPONSE]\nIt rains.\n[END FINAL RESPONSE]",
                "Oslo.",
                "It rains.",
                &[],
            ),
            thought(
                "Here are my reasoning steps:\nOslo.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</tool_calls>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            thought(
                "Here are my reasoning steps:\nOslo.\n<tool_calls>[{\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
                "Oslo.",
                "",
                &[NOW],
            ),
            thought(
                "Here are my reasoning steps:\nA [BEGIN] b",
                "A [BEGIN] b",
                "",
                &[],
            ),
            case("<tool_calls>none", "<tool_calls>none", &[]),
            case("<tool_calls>[]</tool_calls>None.", "None.", &[]),
            case(
                "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
    check_after(
        APRIEL,
        "<|begin_assistant|>\nHere are my reasoning steps:\n",
        &[
            thought("A.\n[BEGIN FINAL RESPONSE]\nB.", "A.", "B.", &[]),
            thought("never closed", "never closed", "", &[]),
        ],
    );
}

#[test]
fn hunyuan() {
    check(
        "<tool_calls>[ <think> <answer>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</tool_calls>",
                "",
                &[OSLO],
            ),
            thought(
                "<think>\nOslo.\n</think>\n<answer>\nIt rains.\n</answer>",
                "Oslo.",
                "It rains.",
                &[],
            ),
            thought(
                "<think>\n\n</think>\n<answer>\nHi.\n</answer>",
                "",
                "Hi.",
                &[],
            ),
            thought(
                "<think>Oslo.</think>\n<answer>\n<tool_calls>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]</tool_calls>\n</answer>",
                "Oslo.",
                "",
                &[NOW, OSLO],
            ),
            thought(
                "<think>\nHm.\n</think>\n<tool_calls>[{\"name\": \"now\", \"arguments\": {}}]</tool_calls>\n</answer>",
                "Hm.",
                "",
                &[NOW],
            ),
            thought("<answer>\nA < b\n</answer>", "", "A < b", &[]),
            thought("<think>cut", "cut", "", &[]),
            case(
                "I call it. <tool_calls>[{\"name\": \"now\"}]</tool_calls>\nDone.",
                "I call it.\n\nDone.",
                &[NOW],
            ),
            case(
                "<tool_calls>[{\"name\": \"search\", \"arguments\": {\"query\": \"北京\", \"filter\": {\"a\": {\"b\": [1, null]}}}}]</tool_calls>",
                "",
                &[(
                    "search",
                    r#"{"query":"北京","filter":{"a":{"b":[1,null]}}}"#,
                )],
            ),
        ],
    );
}

#[test]
fn olmo_3() {
    check(
        "<function_calls>",
        &[
            case("How can I help?", "How can I help?", &[]),
            case(
                "Wrap calls in <function_calls>lookup(query)</function_calls> tags.",
                "Wrap calls in <function_calls>lookup(query)</function_calls> tags.",
                &[],
            ),
            case(
                "<function_calls>lookup(query=1)\nping()</function_calls>",
                "",
                &[("lookup", r#"{"query":1}"#), ("ping", "{}")],
            ),
            case(
                "<function_calls>weather(city=\"Oslo\")</function_calls>",
                "",
                &[OSLO],
            ),
            case(
                "<function_calls>now()\nweather(city='Oslo')\nnow()</function_calls>",
                "",
                &[NOW, OSLO, NOW],
            ),
            case("<function_calls>\nnow()\n</function_calls>", "", &[NOW]),
            case(
                "<function_calls>search(query=\"it's \\\"x\\\"\", limit=null, score=0.50, tags=[\"a\", \"b\"], filter={\"a\": {\"b\": true}})</function_calls>",
                "",
                &[(
                    "search",
                    r#"{"query":"it's \"x\"","limit":null,"score":0.50,"tags":["a","b"],"filter":{"a":{"b":true}}}"#,
                )],
            ),
            case(
                "<function_calls>search(query='a', limit=None, filter={})\nweather(city='Oslo', metric=True)</function_calls>",
                "",
                &[
                    ("search", r#"{"query":"a","limit":null,"filter":{}}"#),
                    ("weather", r#"{"city":"Oslo","metric":true}"#),
                ],
            ),
            case(
                "I look.\n<function_calls>now()</function_calls>So.",
                "I look.\n\nSo.",
                &[NOW],
            ),
            case(
                "<function_calls>[weather(city=\"Oslo\"), now()]</function_calls>",
                "",
                &[OSLO, NOW],
            ),
            case(
                "<function_calls>get.time-zone(zone=\"UTC\")</function_calls>",
                "",
                &[("get.time-zone", r#"{"zone":"UTC"}"#)],
            ),
            case(
                "<function_calls>search(query=\"</function_calls>\")</function_calls>",
                "",
                &[("search", r#"{"query":"</function_calls>"}"#)],
            ),
            case(
                "<function_calls>what?</function_calls>",
                "<function_calls>what?</function_calls>",
                &[],
            ),
            case(
                "<function_calls>weather(city=\"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
    check_after(
        "<function_calls> <think>",
        "<|im_start|>assistant\n<think>",
        &[thought(
            "Oslo.</think><function_calls>weather(city=\"Oslo\")</function_calls>",
            "Oslo.",
            "",
            &[OSLO],
        )],
    );
}

#[test]
fn functionary_3_2() {
    check(
        ">>>${recipient}",
        &[
            case("all\nHello.", "Hello.", &[]),
            case("all\nHello.\n\nBye.\n", "Hello.\n\nBye.\n", &[]),
            case("weather\n{\"city\": \"Oslo\"}", "", &[OSLO]),
            case("now\n{}>>>weather\n{\"city\": \"Oslo\"}", "", &[NOW, OSLO]),
            case(
                "all\nI look.\n>>>weather\n{\"city\": \"Oslo\"}",
                "I look.",
                &[OSLO],
            ),
            case("now\n{}\n>>>all\nDone.", "Done.", &[NOW]),
            case(">>>now\n{}", "", &[NOW]),
            case("all\n>>> print(1)\n1\n>>>2", ">>> print(1)\n1\n>>>2", &[]),
            case("Hello there.", "Hello there.", &[]),
            case("other\n{}", "other\n{}", &[]),
            case(
                "search\n{\"query\": \">>>all\\n\", \"tags\": [\"a\"]}",
                "",
                &[("search", r#"{"query":">>>all\n","tags":["a"]}"#)],
            ),
            case(
                "weather\n{\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            case("", "", &[]),
        ],
    );
}

#[test]
fn functionary_without_tools_has_recipients() {
    use jerboa::chat::{AnswerFormat, AnswerPart, AnswerStart};
    let format = AnswerFormat::detect(">>>${recipient}", &|_| false);
    assert!(!format.is_plain(false) && !format.has_reasoning());
    let mut parser = format.parser(AnswerStart::default());
    let mut parts = parser.push("all\nHello >>>now\n{}");
    parts.extend(parser.finish());
    let content = AnswerPart::Content {
        text: "Hello >>>now\n{}".into(),
    };
    assert_eq!(parts, [content]);
    let mut parser = format.parser(AnswerStart {
        is_continued: true,
        ..AnswerStart::default()
    });
    let parts = [parser.push("all\nof them"), parser.finish()].concat();
    let content = AnswerPart::Content {
        text: "all\nof them".into(),
    };
    assert_eq!(parts, [content]);
}

#[test]
fn firefunction_2() {
    check(
        "functools[{\"name\": [function name]",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                " functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
                "",
                &[OSLO],
            ),
            case(
                "functools[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look. functools[{\"name\": \"now\", \"arguments\": {}}]",
                "I look.",
                &[NOW],
            ),
            case("functools[\n{\"name\": \"now\"}\n]\n", "", &[NOW]),
            case("functools[]", "", &[]),
            case(
                "from functools import wraps",
                "from functools import wraps",
                &[],
            ),
            case("functools[ words ]", "functools[ words ]", &[]),
            case("functools[{\"name\": \"now\"}] So.", "So.", &[NOW]),
            case(
                "functools[{\"name\": \"search\", \"arguments\": {\"query\": \"a]\", \"score\": 7.0}}]",
                "",
                &[("search", r#"{"query":"a]","score":7.0}"#)],
            ),
            case(
                "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
}

#[test]
fn xlam_2() {
    check(
        "make calls in a single JSON array",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
                "",
                &[OSLO],
            ),
            case(
                "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
                "",
                &[NOW, OSLO],
            ),
            case(
                "[\n  {\"name\": \"now\", \"arguments\": {}}\n]\n",
                "",
                &[NOW],
            ),
            case(
                "I look.\n```json\n[{\"name\": \"now\", \"arguments\": {}}]\n```",
                "I look.",
                &[NOW],
            ),
            case("[]", "[]", &[]),
            case(
                "See [1], [a](b) and [{\"x\": 1}].",
                "See [1], [a](b) and [{\"x\": 1}].",
                &[],
            ),
            case(
                "[{\"name\": \"Bob\", \"age\": 3}]",
                "[{\"name\": \"Bob\", \"age\": 3}]",
                &[],
            ),
            case(
                "```json\n{\"a\": [1, 2]}\n```",
                "```json\n{\"a\": [1, 2]}\n```",
                &[],
            ),
            case(
                "[{\"name\": \"search\", \"arguments\": {\"query\": \"[{}]\", \"tags\": [\"a\", \"b\"]}}]",
                "",
                &[("search", r#"{"query":"[{}]","tags":["a","b"]}"#)],
            ),
            case(
                "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            case("[{\"name\": \"wea", "[{\"name\": \"wea", &[]),
        ],
    );
}

/// GigaChat 3 writes a message of another role; 3.1 has a marker.
#[test]
fn gigachat_3() {
    check(
        "<|message_sep|> 'function call'",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}",
                "",
                &[OSLO],
            ),
            case(
                "<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}",
                "",
                &[OSLO],
            ),
            case(
                "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}<|message_sep|>\n\n",
                "I look.",
                &[NOW],
            ),
            case(
                "I look.<|function_call|>{\"name\": \"now\", \"arguments\": {}}<|message_sep|>",
                "I look.",
                &[NOW],
            ),
            case(
                "<|function_call|>{\"name\": \"now\"}<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}",
                "",
                &[NOW, OSLO],
            ),
            case("A function call<|b", "A function call<|b", &[]),
            case("<|function_call|>words", "<|function_call|>words", &[]),
            case(
                "<|function_call|>{\"name\": \"search\", \"arguments\": {\"query\": \"Погода\", \"filter\": {\"ok\": true}}}",
                "",
                &[("search", r#"{"query":"Погода","filter":{"ok":true}}"#)],
            ),
            case(
                "<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
}

#[test]
fn internlm() {
    check(
        "<|action_start|><|plugin|> <think>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<|action_start|><|plugin|>\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}<|action_end|>",
                "",
                &[OSLO],
            ),
            case(
                "<|action_start|> <|plugin|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n<|action_end|>",
                "",
                &[OSLO],
            ),
            case(
                "<|action_start|><|plugin|>{\"name\": \"now\", \"parameters\": {}}<|action_end|>\n<|action_start|><|plugin|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}<|action_end|>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look.<|action_start|><|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>",
                "I look.",
                &[NOW],
            ),
            case(
                "<|action_start|><|plugin|>not json<|action_end|>",
                "<|action_start|><|plugin|>not json<|action_end|>",
                &[],
            ),
            case("<|action_start|>", "<|action_start|>", &[]),
            thought(
                "<think>Oslo.</think>\n<|action_start|><|plugin|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}<|action_end|>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            case(
                "<|action_start|><|plugin|>\n{\n \"name\": \"search\",\n \"parameters\": {\"query\": \"C:\\\\f.txt\", \"tags\": [], \"any\": 3.14}\n}<|action_end|>",
                "",
                &[("search", r#"{"query":"C:\\f.txt","tags":[],"any":3.14}"#)],
            ),
            case(
                "<|action_start|><|plugin|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
}

#[test]
fn minicpm_5() {
    check(
        "<function name= <think>",
        &[
            case("A <function> and <b>.", "A <function> and <b>.", &[]),
            case(
                "In XML, write <function name=\"now\"> for each. The rest.",
                "In XML, write <function name=\"now\"> for each. The rest.",
                &[],
            ),
            case(
                "<function name=\"f\" symbol=\"g\"></function>, <function name=\"f\"/>.",
                "<function name=\"f\" symbol=\"g\"></function>, <function name=\"f\"/>.",
                &[],
            ),
            case(
                "<function name=\"weather\"><param name=\"city\">Oslo</param></function>",
                "",
                &[OSLO],
            ),
            case("<function name=\"now\"></function>", "", &[NOW]),
            case("<functionname=\"now\"></function>", "", &[NOW]),
            case(
                "<function name=\"now\"></function>\n<function name=\"weather\"><param name=\"city\">Oslo</param></function>\n",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look.\n<function name=\"now\"></function>\nDone.\n<function name=\"now\"></function>",
                "I look.\n\nDone.",
                &[NOW, NOW],
            ),
            case(
                "<function name=\"search\"><param name=\"query\"><![CDATA[a\n</param> <b>]]></param><param name=\"limit\">5</param></function>",
                "",
                &[("search", r#"{"query":"a\n</param> <b>","limit":5}"#)],
            ),
            case(
                "<function name=\"weather\">\n<param name=\"city\">12</param>\n<param name=\"days\">3</param>\n<param name=\"metric\">true</param>\n</function>",
                "",
                &[("weather", r#"{"city":"12","days":3,"metric":true}"#)],
            ),
            case(
                "<function name=\"search\"><param name=\"tags\">[\"a\", 'b']</param><param name=\"filter\">{\"x\": null}</param><param name=\"new\">x y</param></function>",
                "",
                &[(
                    "search",
                    r#"{"tags":["a","b"],"filter":{"x":null},"new":"x y"}"#,
                )],
            ),
            case(
                "<function name=\"weather\"><param name=\"city\"> <![x] </param></function>",
                "",
                &[("weather", r#"{"city":" <![x] "}"#)],
            ),
            case(
                "<function name=\"weather\"><param name=\"city\"></param></function>",
                "",
                &[("weather", r#"{"city":""}"#)],
            ),
            thought(
                "<think>\nOslo.\n</think>\n\n<function name=\"weather\"><param name=\"city\">Oslo</param></function>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            case(
                "<function name=\"weather\"><param name=\"city\">Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
}

#[test]
fn seed_oss() {
    check(
        "<seed:tool_call> <function=example> <seed:think>",
        &[
            case("Plain <seed>.", "Plain <seed>.", &[]),
            thought(
                "<seed:think>I could write <function=weather> here.</seed:think>It is 42.",
                "I could write <function=weather> here.",
                "It is 42.",
                &[],
            ),
            case(
                "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>",
                "",
                &[OSLO],
            ),
            case(
                "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<seed:tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
                "",
                &[("weather", r#"{"city":"Oslo","days":3}"#)],
            ),
            case(
                "I look.\n<seed:tool_call>\n<function=search>\n<parameter=query>def f(a = \"1\"):\n    return a\n\n</parameter>\n<parameter=tags>[\"a\"]</parameter>\n</function>\n</seed:tool_call>",
                "I look.",
                &[(
                    "search",
                    "{\"query\":\"def f(a = \\\"1\\\"):\\n    return a\\n\",\"tags\":[\"a\"]}",
                )],
            ),
            thought(
                "<seed:think>Oslo.</seed:think>\nIt rains.",
                "Oslo.",
                "It rains.",
                &[],
            ),
            thought(
                "<seed:think>\nA.<seed:cot_budget_reflect>I used 128 tokens.</seed:cot_budget_reflect>\nB.</seed:think>C.",
                "A.I used 128 tokens.\nB.",
                "C.",
                &[],
            ),
            thought(
                "<seed:think>Oslo.</seed:think>\n<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            case(
                "<seed:tool_call>{\"name\": \"now\", \"arguments\": {}}</seed:tool_call>",
                "",
                &[NOW],
            ),
            case("<seed:tool_call> what?", "<seed:tool_call> what?", &[]),
            case(
                "<seed:tool_call><function=weather><parameter=city>Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
    let prompt = "assistant\n<seed:think>\n<seed:cot_budget_reflect>0 left.</seed:cot_budget_reflect>\n</seed:think>";
    check_after(
        "<seed:think>",
        prompt,
        &[thought("It rains.", "", "It rains.", &[])],
    );
}

#[test]
fn minimax_m2() {
    check(
        "<minimax:tool_call> <think>",
        &[
            case("Plain <invoke>.", "Plain <invoke>.", &[]),
            case(
                "Say `<invoke name=\"weather\">` in an <response>. The rest.",
                "Say `<invoke name=\"weather\">` in an <response>. The rest.",
                &[],
            ),
            case(
                "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n</invoke>\n</minimax:tool_call>",
                "",
                &[OSLO],
            ),
            case(
                "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
                "",
                &[NOW],
            ),
            case(
                "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n</invoke>\n</minimax:tool_call>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look.\n\n<minimax:tool_call><invoke name=\"now\"></invoke></minimax:tool_call>\nDone.",
                "I look.\n\nDone.",
                &[NOW],
            ),
            case(
                "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">1</parameter>\n<parameter name=\"days\">1</parameter>\n<parameter name=\"metric\">false</parameter>\n</invoke>\n</minimax:tool_call>",
                "",
                &[("weather", r#"{"city":"1","days":1,"metric":false}"#)],
            ),
            case(
                "<minimax:tool_call>\n<invoke name=\"search\">\n<parameter name=\"query\">\n a <b>\n</parameter>\n<parameter name=\"filter\">{\"a\": [1, null]}</parameter>\n</invoke>\n</minimax:tool_call>",
                "",
                &[(
                    "search",
                    r#"{"query":"\n a <b>\n","filter":{"a":[1,null]}}"#,
                )],
            ),
            case(
                "<invoke name=\"weather\"><parameter name=\"city\">Oslo</parameter></invoke>",
                "",
                &[OSLO],
            ),
            thought(
                "<think>\nOslo.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n</invoke>\n</minimax:tool_call>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            case(
                "<minimax:tool_call> what? </minimax:tool_call>",
                "<minimax:tool_call> what? </minimax:tool_call>",
                &[],
            ),
            case(
                "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
    check_after(
        "<minimax:tool_call> <think>",
        "]~b]ai\n<think>\n",
        &[thought("A.\n</think>\n\nB.", "A.", "B.", &[])],
    );
}

#[test]
fn deepseek_3_2_and_4() {
    check(
        "｜DSML｜ function_calls> <think>",
        &[
            case("Plain <｜.", "Plain <｜.", &[]),
            case(
                "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                "",
                &[OSLO],
            ),
            case(
                "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                "",
                &[NOW],
            ),
            case(
                "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"city\" string=\"true\">5</｜DSML｜parameter><｜DSML｜parameter name=\"days\" string=\"false\">5</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[("weather", r#"{"city":"5","days":5}"#)],
            ),
            // Without a type in the schema, the attribute tells.
            case(
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"search\"><｜DSML｜parameter name=\"any\" string=\"true\">5</｜DSML｜parameter><｜DSML｜parameter name=\"new\" string=\"false\">5</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[("search", r#"{"any":"5","new":5}"#)],
            ),
            case(
                "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"search\">\n<｜DSML｜parameter name=\"query\" string=\"true\">line 1\n \"2\"\n</｜DSML｜parameter>\n<｜DSML｜parameter name=\"tags\" string=\"false\">[\"a\", \"b\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                "I look.",
                &[("search", r#"{"query":"line 1\n \"2\"\n","tags":["a","b"]}"#)],
            ),
            thought(
                "<think>Oslo.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                "Oslo.",
                "",
                &[OSLO],
            ),
            case(
                "<｜DSML｜function_calls> what?",
                "<｜DSML｜function_calls> what?",
                &[],
            ),
            case(
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"weather\"><｜DSML｜parameter name=\"city\" string=\"true\">Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
    check_after(
        "'｜DSML｜' 'tool_calls>' <think>",
        "<think></think>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
                "",
                &[NOW, OSLO],
            ),
        ],
    );
}

#[test]
fn gigachat_3_5() {
    check(
        "<｜GCML｜tool_calls> <|message_sep|> function call <think>",
        &[
            case("Plain <｜.", "Plain <｜.", &[]),
            case(
                "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">Oslo</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
                "",
                &[OSLO],
            ),
            case(
                "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"now\">\n</｜GCML｜invoke>\n<｜GCML｜invoke name=\"now\">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
                "",
                &[NOW, NOW],
            ),
            case(
                "I look.\n\n<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">Oslo</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
                "I look.",
                &[OSLO],
            ),
            case(
                "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">5</｜GCML｜parameter>\n<｜GCML｜parameter name=\"days\" string=\"false\">5</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
                "",
                &[("weather", r#"{"city":"5","days":5}"#)],
            ),
            case(
                "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"search\">\n<｜GCML｜parameter name=\"new\" string=\"true\">null</｜GCML｜parameter>\n<｜GCML｜parameter name=\"tags\" string=\"false\">[\"a\"]</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
                "",
                &[("search", r#"{"new":"null","tags":["a"]}"#)],
            ),
            case(
                "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"search\">\n<｜GCML｜parameter name=\"query\" string=\"true\">Погода\n</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>\n",
                "",
                &[("search", r#"{"query":"Погода\n"}"#)],
            ),
            case(
                "<｜GCML｜invoke name=\"now\"></｜GCML｜invoke>Done.",
                "Done.",
                &[NOW],
            ),
            case(
                "<｜GCML｜tool_calls>what?",
                "<｜GCML｜tool_calls>what?",
                &[],
            ),
            case(
                "<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
            thought(
                "<think>Oslo.</think>\n\n<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" string=\"true\">Oslo</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
                "Oslo.",
                "",
                &[OSLO],
            ),
        ],
    );
}

#[test]
fn step_3() {
    check(
        "<steptml:invoke <think>",
        &[
            case("Plain.", "Plain.", &[]),
            case(
                "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">Oslo</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
                "",
                &[OSLO],
            ),
            case(
                "<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name=\"now\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
                "",
                &[NOW],
            ),
            case(
                "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"now\"></steptml:invoke><｜tool_call_end｜><｜tool_sep｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\"><steptml:parameter name=\"city\">Oslo</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
                "",
                &[NOW, OSLO],
            ),
            case(
                "I look.\n<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">5</steptml:parameter>\n<steptml:parameter name=\"days\">5</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>\nDone.",
                "I look.\n\nDone.",
                &[("weather", r#"{"city":"5","days":5}"#)],
            ),
            case(
                "<｜tool_calls_begin｜><steptml:invoke name=\"search\"><steptml:parameter name=\"filter\">{\"a\": 1}</steptml:parameter><steptml:parameter name=\"query\">a < b</steptml:parameter></steptml:invoke><｜tool_calls_end｜>",
                "",
                &[("search", r#"{"filter":{"a":1},"query":"a < b"}"#)],
            ),
            thought(
                "<think>Oslo.</think><｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"now\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
                "Oslo.",
                "",
                &[NOW],
            ),
            case(
                "<｜tool_calls_begin｜>what?",
                "<｜tool_calls_begin｜>what?",
                &[],
            ),
            case(
                "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"now\"></steptml:invoke>",
                "",
                &[NOW],
            ),
            case(
                "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\"><steptml:parameter name=\"city\">Os",
                "",
                &[("weather", r#"{"city":"Os"#)],
            ),
        ],
    );
}
