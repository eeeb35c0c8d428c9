//! Single steps of a conversation and logits processors: the ids of plain answers, and those of the
//! changed logits.

use super::{assert_usable, character, events, reference, request, run, stories, tiny_with};
use jerboa::Result;
use jerboa::hub::AbortFlag;
use jerboa::sample::{LogitsProcessor, TokenConstraint};
use jerboa::task::{ChatModel, FinishReason, GenerationHooks, GenerationResult, ServesTask};
use pollster::block_on;
use serde_json::{Value, json};
use std::future::{Future, ready};
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::Pin;

fn largest(logits: &[f32]) -> u32 {
    let greater = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a));
    (0..logits.len()).max_by(greater).expect("logits") as u32
}

#[test]
fn steps_give_the_ids_of_an_answer_and_keep_the_cache() {
    let reference = reference();
    let mut model = stories(256);
    let mut ids = reference.prompt_ids.clone();
    for expected in &reference.new_ids()[..12] {
        let logits = block_on(model.prefill(&ids, &AbortFlag::new())).expect("logits");
        assert_eq!(largest(&logits), *expected);
        ids.push(*expected);
        assert_eq!(model.session.tokens(), &ids[..ids.len() - 1]);
    }
    // An earlier place of the conversation, and another continuation.
    let back = block_on(model.prefill(&ids[..9], &AbortFlag::new())).expect("logits");
    assert_eq!(largest(&back), ids[9]);
    let other = [&ids[..9], &[7, 8]].concat();
    let logits = block_on(model.prefill(&other, &AbortFlag::new())).expect("logits");
    assert_eq!(model.session.tokens(), other);
    let alone = block_on(stories(256).prefill(&other, &AbortFlag::new())).expect("logits");
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    assert!(logits.iter().zip(&alone).all(near));
    // An answer goes on from the cache.
    let ids = &reference.ids[..reference.prompt_ids.len() + 5];
    block_on(model.prefill(ids, &AbortFlag::new())).expect("logits");
    let answer = run(
        &mut model,
        json!({ "ids": ids, "temperature": 0, "maxTokens": 4 }),
    );
    assert_eq!(answer.cached_tokens, ids.len() - 1);
    assert_eq!(answer.ids, reference.ids[ids.len()..ids.len() + 4]);
}

#[test]
fn steps_refuse_what_cannot_run() {
    let mut model = stories(64);
    let vocabulary = model.session.vocab() as u32;
    for (ids, part) in [
        (vec![], "no tokens"),
        (vec![vocabulary], "outside the vocabulary"),
        (vec![1; 65], "64"),
    ] {
        let error = block_on(model.prefill(&ids, &AbortFlag::new())).expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
    }
    let abort = AbortFlag::new();
    abort.abort();
    let error = block_on(model.prefill(&[1, 2], &abort)).expect_err("aborted");
    assert_eq!(error.code(), "aborted");
    assert_usable(&mut model, "refused steps");
}

/// A function as a processor.
struct Changes<F>(F);

impl<F: FnMut(&mut Vec<f32>, &[u32]) -> Result<ControlFlow<()>>> LogitsProcessor for Changes<F> {
    fn process<'a>(
        &'a mut self,
        logits: &'a mut Vec<f32>,
        tokens: &'a [u32],
    ) -> Pin<Box<dyn Future<Output = Result<ControlFlow<()>>> + 'a>> {
        Box::pin(ready((self.0)(logits, tokens)))
    }
}

fn processed(
    model: &mut ChatModel,
    json: Value,
    constraint: Option<&mut dyn TokenConstraint>,
    change: impl FnMut(&mut Vec<f32>, &[u32]) -> Result<ControlFlow<()>>,
) -> Result<GenerationResult> {
    let mut processor = Changes(change);
    let hooks = GenerationHooks {
        constraint: match constraint {
            Some(constraint) => Some(&mut *constraint),
            None => None,
        },
        processor: Some(&mut processor),
    };
    let (request, abort) = (request(json), AbortFlag::new());
    block_on(model.generate_with(&request, hooks, &abort, |_| {}))
}

fn ask(more: &Value) -> Value {
    let mut ask = json!({ "ids": reference().prompt_ids, "maxTokens": 20, "ignoreEos": true });
    for (name, value) in more.as_object().expect("an object") {
        ask[name] = value.clone();
    }
    ask
}

#[test]
fn a_processor_that_changes_nothing_gives_the_plain_answer() {
    let mut model = stories(256);
    for more in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 0.9, "seed": 4, "topP": 0.9 }),
        json!({ "temperature": 1, "seed": 5, "repetitionPenalty": 1.3 }),
        json!({ "temperature": 0, "speculation": "prompt-lookup" }),
    ] {
        let expected = run(&mut model, ask(&more));
        let mut seen = Vec::new();
        let found = processed(&mut model, ask(&more), None, |logits, tokens| {
            seen.push((logits.len(), tokens.len()));
            Ok(Continue(()))
        });
        assert_eq!(found.expect("an answer").ids, expected.ids, "{more}");
        let vocabulary = model.session.vocab();
        let each: Vec<_> = (0..20).map(|step| (vocabulary, step)).collect();
        assert_eq!(seen, each, "once per token, with the tokens before it");
    }
}

#[test]
fn changed_logits_decide_and_an_end_is_a_stop() {
    let mut model = stories(256);
    let plain = run(&mut model, ask(&json!({ "temperature": 0 })));
    // Bans the plain token at the third place, and demands token 17 at the fifth.
    let banned = plain.ids[2];
    let more = json!({ "temperature": 0, "logprobs": true });
    let found = processed(&mut model, ask(&more), None, |logits, tokens| {
        match tokens.len() {
            2 => logits[banned as usize] = f32::NEG_INFINITY,
            4 => logits[17] = 1e4,
            9 => return Ok(Break(())),
            _ => {}
        }
        Ok(Continue(()))
    })
    .expect("an answer");
    assert_eq!(found.ids[..2], plain.ids[..2]);
    assert_ne!(found.ids[2], banned);
    assert_eq!((found.ids[4], found.ids.len()), (17, 9));
    assert_eq!(found.finish_reason, FinishReason::Stop);
    assert_usable(&mut model, "a processed answer");
}

#[test]
fn an_abort_during_a_processor_is_an_abort() {
    let mut model = stories(256);
    let abort = AbortFlag::new();
    let mut processor = Changes(|_: &mut Vec<f32>, tokens: &[u32]| {
        if tokens.len() < 3 {
            return Ok(Continue(()));
        }
        abort.abort();
        Ok(Break(()))
    });
    let hooks = GenerationHooks {
        processor: Some(&mut processor),
        ..GenerationHooks::default()
    };
    let request = request(ask(&json!({ "temperature": 0 })));
    let outcome = block_on(model.generate_with(&request, hooks, &abort, |_| {})).expect("a part");
    assert_eq!(
        (outcome.ids.len(), outcome.finish_reason),
        (3, FinishReason::Abort)
    );
    assert_usable(&mut model, "an abort");
}

/// Allows even tokens only.
struct Even;

impl TokenConstraint for Even {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(0x5555_5555);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        assert_eq!(token % 2, 0);
        Ok(())
    }
}

#[test]
fn a_constraint_applies_after_the_processor() {
    let mut model = stories(256);
    let more = json!({ "temperature": 0 });
    let found = processed(&mut model, ask(&more), Some(&mut Even), |logits, _| {
        logits[33] = 1e4;
        logits[34] = 1e3;
        Ok(Continue(()))
    });
    assert_eq!(found.expect("an answer").ids, [34; 20]);
}

#[test]
fn invalid_logits_are_refused_by_name() {
    let mut model = stories(256);
    for (value, part) in [
        (f32::NAN, "NaN for token 3"),
        (f32::INFINITY, "inf for token 3"),
    ] {
        let error = processed(&mut model, ask(&json!({})), None, |logits, _| {
            logits[3] = value;
            Ok(Continue(()))
        })
        .expect_err(part);
        assert_eq!(error.code(), "request");
        let text = error.to_string();
        assert!(
            text.contains("logitsProcessor") && text.contains(part),
            "{text}"
        );
    }
    let error = processed(&mut model, ask(&json!({})), None, |logits, _| {
        logits.pop();
        Ok(Continue(()))
    })
    .expect_err("too few");
    assert!(error.to_string().contains("one for each token"), "{error}");
    assert_usable(&mut model, "refused logits");
}

/// Allows no token.
struct Nothing;

impl TokenConstraint for Nothing {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(0);
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<()> {
        Ok(())
    }
}

#[test]
fn what_bans_every_token_is_named() {
    let mut model = stories(256);
    let all = |_: usize| true;
    let even = |id: usize| id.is_multiple_of(2);
    for more in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 1, "seed": 3 }),
        json!({ "temperature": 0, "logprobs": true }),
    ] {
        let mut ban = |banned: &dyn Fn(usize) -> bool,
                       constraint: Option<&mut dyn TokenConstraint>| {
            let error = processed(&mut model, ask(&more), constraint, |logits, _| {
                let each = logits.iter_mut().enumerate();
                each.filter(|(id, _)| banned(*id))
                    .for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                Ok(Continue(()))
            })
            .expect_err("no token is left");
            assert_eq!(error.code(), "request", "{more}: {error}");
            error.to_string()
        };
        let alone = ban(&all, None);
        let expected = "logitsProcessor: the logits processor left no token";
        assert!(alone.starts_with(expected), "{more}: {alone}");
        let both = ban(&even, Some(&mut Even));
        let expected = "logitsProcessor, grammar: together they leave no token";
        assert!(both.starts_with(expected), "{more}: {both}");

        let hooks = GenerationHooks {
            constraint: Some(&mut Nothing),
            ..GenerationHooks::default()
        };
        let (request, abort) = (request(ask(&more)), AbortFlag::new());
        let outcome = model.generate_with(&request, hooks, &abort, |_| {});
        let grammar = block_on(outcome)
            .expect_err("no token is allowed")
            .to_string();
        assert!(
            grammar.starts_with("grammar: its rules leave no token"),
            "{more}: {grammar}"
        );
        assert_usable(&mut model, "banned tokens");
    }
}

#[test]
fn a_processor_may_make_all_logits_equal() {
    let mut model = stories(256);
    for (more, first) in [
        (
            json!({ "temperature": 0, "logprobs": true, "topLogprobs": 1 }),
            Some(0),
        ),
        (json!({ "temperature": 1, "seed": 3 }), None),
    ] {
        let found = processed(&mut model, ask(&more), None, |logits, _| {
            logits.fill(-2.5);
            Ok(Continue(()))
        })
        .expect("an answer");
        assert_eq!(found.ids.len(), 20, "{more}");
        assert!(
            first.is_none_or(|id| found.ids == [id; 20]),
            "{:?}",
            found.ids
        );
    }
}

#[test]
fn a_prediction_is_drafted_and_never_changes_the_answer() {
    let mut plain = stories(256);
    let mut model = stories(256);
    let tokenizer = model.text.clone();
    let tokenizer = tokenizer.tokenizer().expect("a tokenizer");
    let prompt = [&reference().ids[..60], &reference().ids[..20]].concat();
    let ask = json!({ "ids": prompt, "temperature": 0, "maxTokens": 60, "ignoreEos": true });
    let expected = run(&mut plain, ask.clone());
    // A text that is not in the prompt, and the answer itself.
    let answer = tokenizer.decode(&expected.ids, true);
    for (prediction, accepts) in [
        (answer.as_str(), true),
        ("Nothing of this kind occurs.", false),
        ("", false),
    ] {
        let mut with = ask.clone();
        with["prediction"] = json!(prediction);
        let (found, _) = events(&mut model, with).expect("an answer");
        assert_eq!(found.ids, expected.ids, "{prediction}");
        assert!(
            !accepts || found.accepted_tokens > 0,
            "{} drafted",
            found.drafted_tokens
        );
    }
    // Sampling does not draft.
    let mut sampled = ask;
    sampled["temperature"] = json!(0.8);
    sampled["seed"] = json!(2);
    let expected = run(&mut plain, sampled.clone());
    sampled["prediction"] = json!(answer);
    let found = run(&mut model, sampled);
    assert_eq!((found.ids, found.drafted_tokens), (expected.ids, 0));
}

#[test]
fn a_suffix_makes_a_prompt_with_a_gap() {
    let special = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false });
    let added = json!([
        special(40, "<fim_prefix>"),
        special(41, "<fim_suffix>"),
        special(42, "<fim_middle>"),
    ]);
    let mut model = tiny_with("llama", Some(&json!({})), added, None);
    assert_eq!(model.info()["fillInTheMiddle"], json!(true));
    let text = |ids: &[u32]| ids.iter().map(|id| character(*id)).collect::<String>();
    let by_ids = run(
        &mut model,
        json!({ "ids": [40, 5, 6, 41, 7, 42], "maxTokens": 6 }),
    );
    let by_text = run(
        &mut model,
        json!({ "prompt": text(&[5, 6]), "suffix": text(&[7]), "maxTokens": 6 }),
    );
    assert_eq!((by_text.ids, by_text.prompt_tokens), (by_ids.ids, 6));
    assert_eq!(stories(64).info()["fillInTheMiddle"], json!(false));
    let error = events(&mut stories(64), json!({ "prompt": "a", "suffix": "b" }));
    assert!(
        error
            .expect_err("no tokens")
            .to_string()
            .contains("fill-in-the-middle")
    );
    let error = jerboa::task::GenerateRequest::from_json(r#"{"ids":[1],"suffix":"b"}"#);
    assert!(error.expect_err("no prompt").to_string().contains("suffix"));
}
