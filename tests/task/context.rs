//! Full contexts, reused prefixes, aborted generations.

use super::{assert_usable, events, reference, request, run, stories, stories_with};
use jerboa::Error;
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{ChatModel, FinishReason};
use pollster::block_on;
use serde_json::{Value, json};

fn greedy(ids: &[u32], max: usize, overflow: &str) -> Value {
    json!({ "ids": ids, "temperature": 0, "maxTokens": max, "overflow": overflow, "ignoreEos": true })
}

fn turn(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn chat(messages: &[Value], overflow: &str) -> Value {
    json!({ "messages": messages, "temperature": 0, "maxTokens": 6, "overflow": overflow, "ignoreEos": true })
}

#[test]
fn a_prompt_that_does_not_fit_is_refused() {
    let mut model = stories(48);
    let ids = &reference().ids;
    let error = events(&mut model, greedy(&ids[..49], 1, "error")).expect_err("49 of 48");
    assert!(
        matches!(
            error,
            Error::ContextFull {
                tokens: 49,
                limit: 48
            }
        ),
        "{error}"
    );
    assert_usable(&mut model, "a prompt that does not fit");
    // A full context still yields the next token; then the answer ends.
    let last = run(&mut model, greedy(&ids[..48], 10, "error"));
    assert_eq!(
        (last.ids.as_slice(), last.finish_reason),
        (&ids[48..49], FinishReason::Length)
    );
    for sampled in [false, true] {
        // Log-probabilities use the CPU sampler.
        let mut json = greedy(&ids[..40], 100, "error");
        json["logprobs"] = sampled.into();
        let outcome = run(&mut model, json);
        assert_eq!(
            (outcome.ids.as_slice(), outcome.finish_reason),
            (&ids[40..49], FinishReason::Length)
        );
    }
    assert_usable(&mut model, "an answer that filled the context");
}

#[test]
fn the_oldest_turns_are_dropped_first() {
    let mut model = stories(96);
    let story = "Once upon a time, there was a little girl";
    let mut messages = vec![turn("system", "Tell stories.")];
    for number in 0..5 {
        messages.push(turn("user", &format!("{story} {number}")));
        messages.push(turn("assistant", "She was sad."));
    }
    messages.push(turn("user", "What then?"));
    let error = events(&mut model, chat(&messages, "error")).expect_err("too long");
    assert_eq!(error.code(), "context_full");
    assert!(
        error.to_string().contains("set overflow to 'truncate'"),
        "dropping turns helps: {error}"
    );
    for overflow in ["truncate", "rolling"] {
        let outcome = run(&mut model, chat(&messages, overflow));
        assert!(
            outcome.prompt_tokens <= 96 - 6,
            "{} tokens leave room for the answer",
            outcome.prompt_tokens
        );
        // Equal to a request with fewer turns; one more would not fit.
        let with = |from: usize| [&messages[..1], &messages[from..]].concat();

        let kept = (1..messages.len())
            .step_by(2)
            .find(|from: &usize| tokens(&model, &with(*from)) <= 96 - 6)
            .expect("the last turn fits");
        assert!(
            kept > 1 && kept < messages.len() - 1,
            "some went, some stayed: {kept}"
        );
        let shorter = run(&mut model, chat(&with(kept), "error"));
        assert_eq!(
            (outcome.ids, outcome.prompt_tokens),
            (shorter.ids, shorter.prompt_tokens)
        );
    }
    let long = [messages[0].clone(), turn("user", &story.repeat(20))];
    for overflow in ["truncate", "rolling", "error"] {
        let error = events(&mut model, chat(&long, overflow)).expect_err("one turn");
        assert_eq!(error.code(), "context_full");
        assert!(
            !error.to_string().contains("overflow"),
            "it does not help: {error}"
        );
    }
    assert_usable(&mut model, "a conversation that does not fit");
}

fn tokens(model: &ChatModel, messages: &[Value]) -> usize {
    let input = jerboa::text::ChatInput {
        messages: messages.to_vec(),
        add_generation_prompt: true,
        ..Default::default()
    };
    let prompt = model.text.render(&input).expect("a prompt");
    model
        .text
        .tokenizer()
        .expect("a tokenizer")
        .encode_prompt(&prompt)
        .expect("ids")
        .len()
}

#[test]
fn long_prompts_keep_first_token_and_tail() {
    let mut model = stories(64);
    let ids = &reference().ids[..120];
    let outcome = run(&mut model, greedy(ids, 10, "truncate"));
    assert_eq!(outcome.prompt_tokens, 54);
    let kept = [&ids[..1], &ids[120 - 53..]].concat();
    assert_eq!(
        outcome.ids,
        run(&mut stories(64), greedy(&kept, 10, "error")).ids
    );
}

/// A rolling context moves as often as needed; each token equals that of a larger context with the
/// window's tokens.
#[test]
fn a_rolling_context_continues() {
    const WINDOW: usize = 40;
    let prompt = &reference().prompt_ids;
    let mut roomy = stories(WINDOW);
    let mut expected = Vec::<u32>::new();
    let mut context = prompt.clone();

    while expected.len() < 90 {
        let left = (90 - expected.len()).min(WINDOW + 1 - context.len());
        let next = run(&mut roomy, greedy(&context, left, "error")).ids;
        expected.extend(&next);
        context.extend(&next);
        context = [&context[..1], &context[context.len() - WINDOW / 2..]].concat();
    }
    for sampled in [false, true] {
        let mut json = greedy(prompt, 90, "rolling");
        json["logprobs"] = sampled.into();
        let outcome = run(&mut stories(WINDOW), json);
        assert_eq!(outcome.ids, expected);
        assert_eq!(
            (outcome.finish_reason, outcome.completion_tokens),
            (FinishReason::Length, 90)
        );
    }
}

#[test]
fn a_common_prefix_is_not_run_again() {
    let mut model = stories(256);
    let ids = &reference().ids;
    let first = run(&mut model, greedy(&ids[..20], 30, "error"));
    assert_eq!(
        (first.cached_tokens, first.ids.as_slice()),
        (0, &ids[20..50])
    );
    // The next turn starts with all of it; the last token was sampled but never run.
    let second = run(&mut model, greedy(&ids[..60], 10, "error"));
    assert_eq!(
        (second.cached_tokens, second.ids.as_slice()),
        (49, &ids[60..70])
    );
    // The same prompt again: one token must run for its logits.
    let again = run(&mut model, greedy(&ids[..60], 10, "error"));
    assert_eq!(
        (again.cached_tokens, again.ids.as_slice()),
        (59, &ids[60..70])
    );
    // Another branch: the common prefix is reused, the rest of the first branch has no effect.
    let mut branch = ids[..60].to_vec();
    branch[30] += 1;
    let other = run(&mut model, greedy(&branch, 10, "error"));
    assert_eq!(other.cached_tokens, 30);
    assert_eq!(
        other.ids,
        run(&mut stories(256), greedy(&branch, 10, "error")).ids
    );
    // A request for logits resets the context.
    block_on(model.logits(&ids[..5], false)).expect("logits");
    assert_eq!(
        run(&mut model, greedy(&ids[..60], 1, "error")).cached_tokens,
        0
    );
}

#[test]
fn turns_of_a_conversation_share_their_prefix() {
    let mut model = stories(256);
    let mut messages = vec![
        turn("system", "Tell stories."),
        turn("user", "Once upon a time"),
    ];
    let first = run(&mut model, chat(&messages, "error"));
    messages.extend([turn("assistant", &first.text), turn("user", "And then?")]);
    let second = run(&mut model, chat(&messages, "error"));
    assert!(
        second.cached_tokens + 2 >= first.prompt_tokens,
        "{} of {}",
        second.cached_tokens,
        first.prompt_tokens
    );
    assert_eq!(
        second.ids,
        run(&mut stories(256), chat(&messages, "error")).ids
    );
}

#[test]
fn an_abort_ends_generation_with_a_partial_answer() {
    let mut model = stories(256);
    for logprobs in [false, true] {
        let mut json = greedy(&reference().prompt_ids, 200, "error");
        json["logprobs"] = logprobs.into();
        let abort = AbortFlag::new();
        let mut seen = 0;
        let outcome = block_on(model.generate(&request(json), &abort, |event| {
            seen += event.ids.len();
            if seen >= 10 {
                abort.abort();
            }
        }))
        .expect("an outcome");
        assert_eq!(outcome.finish_reason, FinishReason::Abort);
        assert!(
            (10..200).contains(&outcome.ids.len()),
            "{} tokens",
            outcome.ids.len()
        );
        assert_eq!(outcome.ids, reference().new_ids()[..outcome.ids.len()]);
        // Computed steps are reused, and steps that ran ahead have no effect.
        let so_far = [&reference().prompt_ids[..], &outcome.ids].concat();
        let next = run(&mut model, greedy(&so_far, 20, "error"));
        assert_eq!(next.cached_tokens, so_far.len() - 1);
        assert_eq!(next.ids, reference().ids[so_far.len()..so_far.len() + 20]);
    }
}

#[test]
fn an_abort_before_or_during_the_prompt_is_an_error() {
    let json = || greedy(&reference().ids[..200], 5, "error");
    let abort = AbortFlag::new();
    abort.abort();
    let mut model = stories_with(
        256,
        RunOptions {
            prefill_chunk: 1,
            ..RunOptions::default()
        },
    );
    let error =
        block_on(model.generate(&request(json()), &abort, |_| ())).expect_err("aborted before");
    assert_eq!(error.code(), "aborted");
    // Two hundred single-token steps take far longer than this thread waits.
    let abort = AbortFlag::new();
    let later = abort.clone();
    let setter = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        later.abort();
    });
    let result = block_on(model.generate(&request(json()), &abort, |_| panic!("no token comes")));
    setter.join().expect("the thread");
    assert_eq!(result.expect_err("aborted on the way").code(), "aborted");
    assert_usable(&mut model, "an aborted prompt");
}
