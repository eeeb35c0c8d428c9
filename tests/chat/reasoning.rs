//! Reasoning: opened by the model or by the prompt, closed, cut off, in plain text.

use super::{check, check_after, parse, thought};
use jerboa::chat::{AnswerFormat, AnswerPart, AnswerStart};

const PROMPT: &str = "<|im_start|>assistant\n<think>\n";

#[test]
fn think_tags_of_the_model() {
    check(
        "</think>",
        &[
            thought("No thought.", "", "No thought.", &[]),
            thought(
                "<think>\nA.\n\nB.\n</think>\n\nC.\n",
                "A.\n\nB.",
                "C.\n",
                &[],
            ),
            thought("\n <think>A</think>B", "A", "B", &[]),
            thought("<think></think>\nB", "", "B", &[]),
            thought("<think>\n\n</think>\n\n", "", "", &[]),
            thought("<think>never closed", "never closed", "", &[]),
            thought("<think>a < b </thin</think>c", "a < b </thin", "c", &[]),
            thought("The <think> tag", "", "The <think> tag", &[]),
            thought(
                "<think>A</think>B <think>C</think>",
                "A",
                "B <think>C</think>",
                &[],
            ),
            thought("</think>B", "", "B", &[]),
            thought("<think>\u{1f914}</think>\u{e9}", "\u{1f914}", "\u{e9}", &[]),
        ],
    );
}

#[test]
fn think_tags_of_the_prompt() {
    check_after(
        "<think>",
        PROMPT,
        &[
            thought("A.\n</think>\n\nB.", "A.", "B.", &[]),
            thought("<think>\nA.\n</think>\nB.", "A.", "B.", &[]),
            thought("A", "A", "", &[]),
            thought("A <think> b</think>C", "A <think> b", "C", &[]),
        ],
    );
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    check_after("<think>", closed, &[thought("B.", "", "B.", &[])]);
}

#[test]
fn granite_prose_and_response_tags() {
    check_after(
        "Here is my thought process: Here is my response:",
        "",
        &[
            thought(
                "Here is my thought process: A.\nHere is my response: B.",
                "A.",
                "B.",
                &[],
            ),
            thought(
                "Here's my thought process:\n\nA.\n\nHere's my response:\n\nB.",
                "A.",
                "B.",
                &[],
            ),
            thought("Here is my cat.", "", "Here is my cat.", &[]),
        ],
    );
    check_after(
        "<think></think> <response></response>",
        "",
        &[
            thought(
                "<think>A.</think>\n\n<response>B.</response>",
                "A.",
                "B.",
                &[],
            ),
            thought("B.", "", "B.", &[]),
        ],
    );
}

#[test]
fn without_tools_calls_are_text() {
    let format = AnswerFormat::detect("<tool_call> <think>", &|_| false);
    let mut parser = format.parser(AnswerStart::default());
    let text = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    assert_eq!(parts, [AnswerPart::Content { text: text.into() }]);
}

#[test]
fn a_continued_message_may_be_inside_a_thought() {
    let format = AnswerFormat::detect("<think>", &|_| false);
    for (before, is_reasoning) in [
        ("<think>\nAs I said", true),
        ("<think>A</think>B", false),
        ("Plain", false),
    ] {
        let parser = format.parser(AnswerStart {
            before,
            is_continued: true,
            ..AnswerStart::default()
        });
        assert_eq!(parser.is_reasoning(), is_reasoning, "{before}");
    }
}

#[test]
fn the_state_is_known_while_text_comes() {
    let format = AnswerFormat::detect("<think>", &|_| false);
    let mut parser = format.parser(AnswerStart::default());
    let mut states = Vec::new();
    for piece in ["<think>", "A", "</thi", "nk>", "B"] {
        parser.push(piece);
        states.push(parser.is_reasoning());
    }
    assert_eq!(states, [true, true, true, false, false]);
    assert_eq!(format.forced_close(), Some("\n</think>\n\n"));
    assert!(format.has_reasoning());
    let plain = AnswerFormat::detect("{{ messages }}", &|_| false);
    assert!(!plain.has_reasoning() && plain.calls().is_none() && plain.forced_close().is_none());
    assert_eq!(
        parse(&plain, "", &["<think>x</think>"]),
        [AnswerPart::Content {
            text: "<think>x</think>".into()
        }]
    );
}
