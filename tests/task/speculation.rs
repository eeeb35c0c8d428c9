//! Speculation on request: equal text for greedy decoding, with draft counts in the result.

use super::{events, reference, request, run, stories};
use jerboa::task::{FinishReason, GenerateRequest};
use serde_json::{Value, json};

/// The story so far, followed by its beginning: the continuation is in the prompt.
fn repetitive() -> Vec<u32> {
    let ids = &reference().ids;
    [&ids[..90], &ids[..30]].concat()
}

fn with_lookup(mut json: Value) -> Value {
    json["speculation"] = json!("prompt-lookup");
    json
}

fn ask(ids: &[u32], max: usize) -> Value {
    json!({ "ids": ids, "temperature": 0, "maxTokens": max, "ignoreEos": true })
}

#[test]
fn the_text_is_the_same_and_the_drafts_are_counted() {
    let mut plain = stories(256);
    let mut model = stories(256);

    for ids in [repetitive(), reference().prompt_ids.clone()] {
        let expected = run(&mut plain, ask(&ids, 80));
        let (found, events) = events(&mut model, with_lookup(ask(&ids, 80))).expect("an outcome");
        assert_eq!((&found.ids, &found.text), (&expected.ids, &expected.text));
        assert_eq!(
            events
                .iter()
                .flat_map(|e| e.ids.clone())
                .collect::<Vec<_>>(),
            found.ids
        );
        assert_eq!((expected.drafted_tokens, expected.accepted_tokens), (0, 0));
        assert!(found.accepted_tokens <= found.drafted_tokens);
        if ids == repetitive() {
            assert!(
                found.accepted_tokens > 0,
                "{} drafted",
                found.drafted_tokens
            );
        }
    }
    // Steps without drafts follow steps with drafts, and a prefix is reused.
    let next = [
        &repetitive()[..],
        &run(&mut plain, ask(&repetitive(), 20)).ids[..],
    ]
    .concat();
    let expected = run(&mut plain, ask(&next, 30));
    let found = run(&mut model, with_lookup(ask(&next, 30)));

    assert_eq!(found.ids, expected.ids);
    let again = run(&mut model, with_lookup(ask(&next, 30)));
    assert_eq!(
        (again.ids, again.cached_tokens),
        (expected.ids, next.len() - 1)
    );
}

#[test]
fn full_and_rolling_contexts_give_the_same_text() {
    let ids = repetitive();
    for context in [121, 124, 128, 140] {
        let expected = run(&mut stories(context), ask(&ids, 100));
        let mut model = stories(context);
        let found = run(&mut model, with_lookup(ask(&ids, 100)));
        assert_eq!(
            (&found.ids, found.finish_reason),
            (&expected.ids, FinishReason::Length),
            "{context}"
        );
        // The cache that it leaves is correct up to its last position.
        let full = [&ids[..], &expected.ids[..]].concat();
        let again = run(&mut model, ask(&full[..context], 1));
        assert_eq!(
            (again.cached_tokens, &again.ids[..]),
            (context - 1, &full[context..]),
            "{context}"
        );
    }
    let mut rolling = ask(&ids, 150);
    rolling["overflow"] = json!("rolling");
    let expected = run(&mut stories(128), rolling.clone());
    let found = run(&mut stories(128), with_lookup(rolling));
    assert_eq!((found.ids.len(), found.ids), (150, expected.ids));
}

#[test]
fn sampling_or_logprobs_disable_speculation() {
    let mut model = stories(256);
    for more in [
        json!({ "temperature": 0.8, "seed": 3 }),
        json!({ "temperature": 0, "repetitionPenalty": 1.2 }),
        json!({ "temperature": 0, "logprobs": true }),
    ] {
        let mut json = ask(&repetitive(), 30);
        more.as_object()
            .expect("an object")
            .iter()
            .for_each(|(name, value)| json[name] = value.clone());
        let expected = run(&mut model, json.clone());
        let found = run(&mut model, with_lookup(json));
        assert_eq!(
            (found.ids, found.drafted_tokens),
            (expected.ids, 0),
            "{more}"
        );
    }
}

#[test]
fn an_unknown_kind_is_refused_by_name() {
    let error =
        GenerateRequest::from_json(r#"{"prompt":"x","speculation":"magic"}"#).expect_err("magic");
    assert_eq!(error.code(), "request");
    assert!(error.to_string().contains("prompt-lookup"), "{error}");
    request(json!({ "prompt": "x", "speculation": "off" }));
}
