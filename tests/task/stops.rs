//! Ends of an answer: stop strings across token borders, end tokens, the maximum number of tokens.

use super::{events, reference, run, stories};
use jerboa::task::FinishReason;
use serde_json::json;

/// Stop strings that begin inside one token and end inside another, at many positions of the text.
#[test]
fn stop_strings_across_tokens() {
    let mut model = stories(256);
    let text = reference().new_text().to_string();
    let tokenizer = model.text.clone();
    let decode = |n: usize| {
        tokenizer
            .tokenizer()
            .expect("a tokenizer")
            .decode(&reference().ids[..n], true)
    };
    let mut tried = 0;
    for border in (reference().prompt_ids.len() + 3..160).step_by(11) {
        // Two bytes before the border of two tokens and two after it.
        let at = decode(border).len() - reference().prompt.len();
        let Some(stop) = text.get(at - 2..at + 2) else {
            continue;
        };
        let expected = &text[..text.find(stop).expect("it is there")];
        for logprobs in [false, true] {
            let json = json!({
                "prompt": reference().prompt, "temperature": 0, "stop": ["never", stop], "maxTokens": 180, "logprobs": logprobs,
            });
            let (outcome, events) = events(&mut model, json).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(outcome.finish_reason, FinishReason::Stop, "{stop:?}");
            assert_eq!(outcome.text, expected, "{stop:?}");
            // No part of it was emitted.
            let mut shown = String::new();
            for event in &events {
                shown += &event.text;
                assert!(expected.starts_with(&shown), "{stop:?}: {shown:?}");
            }
            assert_eq!(shown, expected);
            assert!(
                outcome.completion_tokens < 180,
                "{stop:?}: {} tokens",
                outcome.completion_tokens
            );
        }
        tried += 1;
    }
    assert!(tried > 8);
}

#[test]
fn incomplete_stop_strings_are_emitted_at_the_end() {
    let mut model = stories(256);
    let shown = &reference().new_text()[..20];
    // Continues differently from the text.
    let stop = format!("{}#", &shown[16..]);
    let json =
        json!({ "prompt": reference().prompt, "temperature": 0, "stop": [stop], "maxTokens": 40 });
    let outcome = run(&mut model, json);
    assert_eq!(outcome.finish_reason, FinishReason::Length);
    assert!(
        outcome.text.len() > 20 && reference().new_text().starts_with(&outcome.text),
        "{:?}",
        outcome.text
    );
}

/// Generated text fits to the prompt: a word that follows a word has its space.
#[test]
fn a_text_is_continued_with_its_space() {
    let mut model = stories(256);
    for prompt in ["The dog", "One day, a big", "She said, \"I"] {
        let (outcome, events) = events(
            &mut model,
            json!({ "prompt": prompt, "temperature": 0, "maxTokens": 12 }),
        )
        .unwrap_or_else(|e| panic!("{e}"));
        let tokenizer = model.text.tokenizer().expect("a tokenizer");
        let all = [tokenizer.encode(prompt, true).expect("ids"), outcome.ids].concat();
        assert_eq!(
            format!("{prompt}{}", outcome.text),
            tokenizer.decode(&all, true)
        );
        assert_eq!(
            events.iter().map(|e| e.text.as_str()).collect::<String>(),
            outcome.text
        );
    }
}

#[test]
fn an_end_token_ends_generation_unless_ignored() {
    let mut model = stories(256);
    // The model rarely ends a story, so a bias makes it.
    let json = |ignore: bool| {
        json!({
            "prompt": reference().prompt, "temperature": 0, "maxTokens": 9, "logitBias": { "2": 100.0 }, "ignoreEos": ignore,
        })
    };
    let ended = run(&mut model, json(false));
    assert_eq!(
        (
            ended.finish_reason,
            ended.ids.as_slice(),
            ended.text.as_str()
        ),
        (FinishReason::Stop, &[2][..], "")
    );
    let ignored = run(&mut model, json(true));
    assert_eq!(
        (ignored.finish_reason, ignored.ids),
        (FinishReason::Length, vec![2; 9])
    );
}
