//! Random texts of markers, values and words: every cut gives the same parts, and all text is read.

use super::{join, parse};
use jerboa::chat::AnswerFormat;

/// Templates of the formats, and what random texts are made of.
const FORMATS: &[(&str, &[&str])] = &[
    (
        "<tool_call> <think>",
        &[
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"now\"",
            ", \"arguments\": {}",
            "{\"city\": \"O",
            "\"}",
            "}",
            "<think>",
            "</think>",
        ],
    ),
    (
        "<function= <think>",
        &[
            "<tool_call>",
            "</tool_call>",
            "<function=weather>",
            "</function>",
            "<parameter=city>",
            "<parameter=days>",
            "\n</parameter>",
            "</parameter>",
            "7",
            "</think>",
        ],
    ),
    (
        "<|python_tag|>",
        &[
            "<|python_tag|>",
            "{",
            "\"name\": ",
            "\"now\"",
            ", \"parameters\": ",
            "{}",
            "}",
            "; ",
            "now.call(",
            "a=\"1\"",
            ")",
        ],
    ),
    (
        "[TOOL_CALLS] [THINK]",
        &[
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "now",
            "[",
            "{\"name\": \"now\"}",
            "]",
            "{\"a\": 1}",
            "[THINK]",
            "[/THINK]",
        ],
    ),
    (
        "<|tool_call_start|> <think>",
        &[
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            "[",
            "weather(",
            "city=",
            "'O'",
            "\"x",
            ", ",
            ")",
            "]",
            "days=3",
            "{'a': 1}",
        ],
    ),
    (
        "<|tool_call|>",
        &[
            "<|tool_call|>",
            "[",
            "{\"name\": \"now\"",
            ", \"arguments\": {\"a\": [1, 2",
            "]",
            "}",
            "</tool_call>",
        ],
    ),
    (
        "<|tool|> <|/tool|>",
        &[
            "<|tool_call|>",
            "<|/tool_call|>",
            "functools",
            "[",
            "{\"function\": ",
            "{\"name\": \"now\"}",
            "}",
            "]",
        ],
    ),
    (
        "<|channel|> <|message|>",
        &[
            "<|channel|>",
            "analysis",
            "final",
            "commentary to=functions.now",
            "<|message|>",
            "<|end|>",
            "<|start|>assistant",
            "<|call|>",
            "{\"a\":",
            " 1}",
            "<|constrain|>json",
        ],
    ),
    (
        "<|tool_call> <|channel>",
        &[
            "<|tool_call>",
            "<tool_call|>",
            "call:weather",
            "<|tool_call>call:weather{",
            "{",
            "city:",
            "<|\"|>",
            ",",
            "days:",
            "1.5",
            "}",
            "<|channel>thought\n",
            "<channel|>",
        ],
    ),
    (
        "<start_function_call>",
        &[
            "<start_function_call>",
            "<end_function_call>",
            "call:weather{",
            "city:",
            "<escape>",
            "}",
            "true",
        ],
    ),
    (
        "<arg_key> <think>",
        &[
            "<tool_call>",
            "</tool_call>",
            "weather",
            "<arg_key>",
            "</arg_key>",
            "city",
            "<arg_value>",
            "</arg_value>",
            "</think>",
        ],
    ),
    (
        "<｜tool▁call▁begin｜>",
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "function",
            "<｜tool▁sep｜>",
            "now\n```json\n",
            "{\"a\": \"b\"}",
            "\n```",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
    ),
    (
        "Action: tool_name",
        &[
            "Action:",
            " ```json\n",
            "```",
            "[",
            "{\"tool_name\": \"now\"",
            ", \"parameters\": {}",
            "}",
            "]",
            "directly-answer",
        ],
    ),
    (
        "<|START_ACTION|> <|START_THINKING|>",
        &[
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>",
            "[",
            "{\"tool_name\": \"now\"}",
            "]",
        ],
    ),
    (
        "<|tool_call_begin|>",
        &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "functions.now:0",
            "<|tool_call_argument_begin|>",
            "{\"a\": 1",
            "}",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
    ),
    (
        "<tool_calls> [BEGIN FINAL RESPONSE]",
        &[
            "<tool_calls>",
            "</tool_calls>",
            "[",
            "{\"name\": \"now\"",
            ", \"arguments\": {}",
            "}",
            "]",
            "Here are my reasoning steps:",
            "[BEGIN FINAL RESPONSE]",
            "[END FINAL RESPONSE]",
        ],
    ),
    (
        "<tool_calls> <think> <answer>",
        &[
            "<tool_calls>",
            "</tool_calls>",
            "[{\"name\": \"now\"}]",
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
        ],
    ),
    (
        "<function_calls>",
        &[
            "<function_calls>",
            "</function_calls>",
            "now()",
            "weather(",
            "city=",
            "'O'",
            ", ",
            ")",
            "days=3",
            "\n",
        ],
    ),
    (
        ">>>${recipient}",
        &[
            ">>>",
            "all\n",
            "now\n",
            "weather\n",
            "{}",
            "{\"city\": \"O",
            "\"}",
        ],
    ),
    (
        "functools[",
        &[
            "functools[",
            "{\"name\": \"now\"",
            ", \"arguments\": {}",
            "}",
            "]",
            " ",
        ],
    ),
    (
        "make calls in a single JSON array",
        &[
            "[",
            "{\"name\": \"now\"",
            ", \"arguments\": {}",
            "}",
            "]",
            "```json\n",
            "```",
        ],
    ),
    (
        "<|message_sep|> function call",
        &[
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "<|message_sep|>",
            "<|function_call|>",
            "{\"name\": \"now\"",
            "}",
            ", \"arguments\": {}",
        ],
    ),
    (
        "<|action_start|><|plugin|>",
        &[
            "<|action_start|>",
            "<|plugin|>",
            "<|action_end|>",
            "{\"name\": \"now\"",
            "}",
            ", \"parameters\": {}",
        ],
    ),
    (
        "<function name= <think>",
        &[
            "<function name=\"weather\">",
            "</function>",
            "<param name=\"city\">",
            "<param name=\"days\">",
            "<![CDATA[",
            "]]>",
            "</param>",
            "7",
            "</think>",
        ],
    ),
    (
        "<seed:tool_call> <seed:think>",
        &[
            "<seed:tool_call>",
            "</seed:tool_call>",
            "<function=weather>",
            "</function>",
            "<parameter=city>",
            "\n</parameter>",
            "</parameter>",
            "<seed:think>",
            "<seed:cot_budget_reflect>",
            "</seed:think>",
        ],
    ),
    (
        "<minimax:tool_call>",
        &[
            "<minimax:tool_call>",
            "</minimax:tool_call>",
            "<invoke name=\"weather\">",
            "</invoke>",
            "<parameter name=\"city\">",
            "</parameter>",
            "7",
        ],
    ),
    (
        "｜DSML｜ function_calls>",
        &[
            "<｜DSML｜function_calls>",
            "</｜DSML｜function_calls>",
            "<｜DSML｜invoke name=\"weather\">",
            "</｜DSML｜invoke>",
            "<｜DSML｜parameter name=\"city\" string=\"true\">",
            "</｜DSML｜parameter>",
        ],
    ),
    (
        "<steptml:invoke",
        &[
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "<｜tool_call_begin｜>function<｜tool_sep｜>",
            "<｜tool_call_end｜>",
            "<steptml:invoke name=\"now\">",
            "</steptml:invoke>",
            "<steptml:parameter name=\"city\">",
            "</steptml:parameter>",
        ],
    ),
];

const WORDS: &[&str] = &[" ", "\n", "a", "\u{e9}", "<", "\"", "'", "\\", ",", "x y"];

/// Numbers from a linear congruential generator.
fn random(state: &mut u64, below: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % below as u64) as usize
}

#[test]
fn any_cut_of_random_texts_gives_the_same_parts() {
    let mut state = 1;
    for (template, pieces) in FORMATS {
        let format = AnswerFormat::detect(template, &|_| false);
        let mut with_calls = 0;
        for _ in 0..300 {
            let length = 1 + random(&mut state, 14);
            let text: String = (0..length)
                .map(|_| match random(&mut state, 5) {
                    0 => WORDS[random(&mut state, WORDS.len())],
                    _ => pieces[random(&mut state, pieces.len())],
                })
                .collect();
            let whole = join(&parse(&format, "", &[&text]));
            with_calls += usize::from(!whole.calls.is_empty());
            let characters: Vec<&str> = text.split("").filter(|c| !c.is_empty()).collect();
            assert_eq!(
                join(&parse(&format, "", &characters)),
                whole,
                "characters of {text:?}"
            );
            let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            for _ in 0..4 {
                let cut = cuts[random(&mut state, cuts.len())];
                let halves = [&text[..cut], &text[cut..]];
                assert_eq!(join(&parse(&format, "", &halves)), whole, "{halves:?}");
            }
        }
        assert!(with_calls > 0, "{template}: no text had a call");
    }
}
