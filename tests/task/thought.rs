//! Thoughts before constrained answers, and thoughts that a budget ends: opened by the prompt or by
//! the model, closed by the model, by the budget or by an end of the answer.

use super::{character, request, tiny_with};
use jerboa::Result;
use jerboa::chat::AnswerPart;
use jerboa::hub::AbortFlag;
use jerboa::sample::TokenConstraint;
use jerboa::task::{ChatModel, GenerationResult, TokenEvent};
use pollster::block_on;
use serde_json::{Value, json};

const OPEN: u32 = 240;
const CLOSE: u32 = 241;
const END: u32 = 230;

/// Allows three tokens, and the end after five of them; forces the first of each pair after that.
#[derive(Default)]
struct Few {
    accepted: Vec<u32>,
}

impl TokenConstraint for Few {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        for id in [40u32, 50, 60] {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        if self.accepted.len() >= 5 {
            words.fill(0);
            words[END as usize / 32] |= 1 << (END % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        assert!([40, 50, 60].contains(&token), "{token} was accepted");
        self.accepted.push(token);
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        Ok(match self.accepted.len() {
            2 => vec![60, 40],
            3 => vec![40],
            _ => Vec::new(),
        })
    }
}

fn added() -> Value {
    let token = |id: u32, content: &str| json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false });
    json!([token(OPEN, "<think>"), token(CLOSE, "</think>")])
}

/// A model that thinks; its prompt opens the thought, or leaves that to the model.
fn thinker(name: &str, is_opened: bool) -> ChatModel {
    let template = match is_opened {
        true => "{{ messages[0].content }}<think>{# </think> #}",
        false => "{{ messages[0].content }}{# <think></think> #}",
    };
    let config = json!({ "eos_token_id": END });
    tiny_with(name, Some(&config), added(), Some(template))
}

fn user() -> Value {
    json!([{ "role": "user", "content": "\u{4e10}\u{4e11}" }])
}

fn answer(
    model: &mut ChatModel,
    more: &Value,
    constraint: Option<&mut dyn TokenConstraint>,
) -> (GenerationResult, Vec<AnswerPart>) {
    let mut asked = json!({ "messages": user(), "temperature": 0, "maxTokens": 30 });
    let fields = asked.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    let mut events: Vec<TokenEvent> = Vec::new();
    let request = request(asked);
    let abort = AbortFlag::new();
    let running = model.generate_constrained(&request, constraint, &abort, |event| {
        events.push(event.clone());
    });
    let outcome = block_on(running).unwrap_or_else(|e| panic!("{more}: {e}"));
    let ids: Vec<u32> = events.iter().flat_map(|event| event.ids.clone()).collect();
    assert_eq!(ids, outcome.ids, "events have all tokens");
    (
        outcome,
        events.into_iter().flat_map(|event| event.parts).collect(),
    )
}

fn text(ids: &[u32]) -> String {
    ids.iter().map(|id| character(*id)).collect()
}

fn reasoning(parts: &[AnswerPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        AnswerPart::Reasoning { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn content(parts: &[AnswerPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        AnswerPart::Content { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Full caches, and recurrent states, which cannot go back.
const MODELS: [&str; 2] = ["llama", "qwen3_5_odd"];

/// The tokens that follow these without a thought, as the model computes them from the start.
fn continued(model: &mut ChatModel, ids: &[u32], count: usize) -> Vec<u32> {
    model.session.clear();
    let asked = json!({ "ids": ids, "temperature": 0, "maxTokens": count, "ignoreEos": true });
    let outcome = super::run(model, asked);
    model.session.clear();
    outcome.ids
}

#[test]
fn a_budget_closes_the_thought() {
    for name in MODELS {
        let mut model = thinker(name, true);
        let more = json!({ "reasoningBudget": 3, "maxTokens": 10, "ignoreEos": true });
        for logprobs in [false, true] {
            let mut more = more.clone();
            more["logprobs"] = logprobs.into();
            let (outcome, parts) = answer(&mut model, &more, None);
            let prompt = [0x10, 0x11, OPEN];
            let thought = continued(&mut model, &prompt, 3);
            assert_eq!(outcome.ids[..3], thought[..], "{name}");
            assert_eq!(outcome.ids[3], CLOSE, "{name}: {:?}", outcome.ids);
            // What follows is what the model writes behind the closed thought.
            let before = [&prompt[..], &outcome.ids[..4]].concat();
            assert_eq!(
                outcome.ids[4..],
                continued(&mut model, &before, 6),
                "{name}"
            );
            assert_eq!(reasoning(&parts), text(&thought), "{name}");
            assert_eq!(content(&parts), text(&outcome.ids[4..]), "{name}");
            assert_eq!(
                (outcome.reasoning_tokens, outcome.completion_tokens),
                (4, 10)
            );
        }
        let (none, parts) = answer(
            &mut model,
            &json!({ "reasoningBudget": 0, "maxTokens": 4, "ignoreEos": true }),
            None,
        );
        assert_eq!(
            (none.ids[0], reasoning(&parts).as_str()),
            (CLOSE, ""),
            "{name}"
        );
    }
}

#[test]
fn a_thought_that_the_model_opens_has_the_budget_too() {
    for name in MODELS {
        let mut model = thinker(name, false);
        let bias = json!({ OPEN.to_string(): 100 });
        let more =
            json!({ "reasoningBudget": 2, "maxTokens": 8, "ignoreEos": true, "logitBias": bias });
        let (outcome, _) = answer(&mut model, &more, None);
        assert_eq!(outcome.ids[..4], [OPEN, OPEN, OPEN, CLOSE], "{name}");
        // Without a thought, a budget changes nothing.
        let plain = answer(
            &mut model,
            &json!({ "maxTokens": 8, "ignoreEos": true }),
            None,
        )
        .0;
        let limited = answer(
            &mut model,
            &json!({ "maxTokens": 8, "ignoreEos": true, "reasoningBudget": 2 }),
            None,
        )
        .0;
        assert_eq!(plain.ids, limited.ids, "{name}");
    }
}

#[test]
fn a_constraint_starts_behind_the_thought() {
    for name in MODELS {
        for logprobs in [false, true] {
            let sampled = |bias: Value| json!({ "logitBias": bias, "logprobs": logprobs });
            // The prompt opens the thought; a budget, the model or an end of the answer closes it.
            let mut model = thinker(name, true);
            let budget = json!({ "reasoningBudget": 4, "logprobs": logprobs });
            for (more, thought) in [
                (budget, 4),
                (sampled(json!({ CLOSE.to_string(): 100 })), 0),
                (sampled(json!({ END.to_string(): 100 })), 0),
            ] {
                let mut few = Few::default();
                let (outcome, parts) = answer(&mut model, &more, Some(&mut few));
                let ids = &outcome.ids;
                assert_eq!(
                    (ids.len(), ids[thought]),
                    (thought + 7, CLOSE),
                    "{name}: {ids:?}"
                );
                assert_eq!(ids[thought + 1..thought + 6], few.accepted[..], "{name}");
                assert_eq!(few.accepted[2..4], [60, 40]);
                assert_eq!(ids.last(), Some(&END));
                assert_eq!(content(&parts), text(&few.accepted), "{name}");
                assert_eq!(outcome.reasoning_tokens, thought + 1);
                // The same tokens in one go: the states behind the thought are right.
                let before = [&[0x10, 0x11, OPEN][..], &ids[..=thought]].concat();
                model.session.clear();
                let mut alone = Few::default();
                let mut asked = json!({ "ids": before, "temperature": 0, "maxTokens": 10 });
                if let Some(bias) = more.get("logitBias") {
                    asked["logitBias"] = bias.clone();
                }
                let again = request(asked);
                let abort = AbortFlag::new();
                let running = model.generate_constrained(&again, Some(&mut alone), &abort, |_| {});
                block_on(running).expect("an answer");
                assert_eq!(alone.accepted, few.accepted, "{name}");
                model.session.clear();
            }
            // The model may open the thought itself, or answer at once.
            let mut model = thinker(name, false);
            let opens = json!({ "reasoningBudget": 2, "logitBias": { OPEN.to_string(): 100 }, "logprobs": logprobs });
            let mut few = Few::default();
            let (outcome, parts) = answer(&mut model, &opens, Some(&mut few));
            assert_eq!(outcome.ids[..4], [OPEN, OPEN, OPEN, CLOSE], "{name}");
            assert_eq!(content(&parts), text(&few.accepted), "{name}");
            let shy = json!({ "logitBias": { OPEN.to_string(): -100 }, "logprobs": logprobs });
            let mut few = Few::default();
            let (outcome, _) = answer(&mut model, &shy, Some(&mut few));
            assert_eq!(outcome.ids[..5], few.accepted[..], "{name}");
            // A budget of nothing lets none begin.
            let none = json!({ "reasoningBudget": 0, "logitBias": { OPEN.to_string(): 100 } });
            let mut few = Few::default();
            let (outcome, _) = answer(&mut model, &none, Some(&mut few));
            assert_eq!(outcome.ids[..5], few.accepted[..], "{name}");
        }
    }
}

#[test]
fn a_budget_is_refused_where_thoughts_are_not_known() {
    let mut model = tiny_with("llama", None, json!([]), Some("{{ messages[0].content }}"));
    let asked = request(json!({ "messages": user(), "reasoningBudget": 5, "maxTokens": 2 }));
    let abort = AbortFlag::new();
    let running = model.generate(&asked, &abort, |_| {});
    let Err(error) = block_on(running) else {
        panic!("no error")
    };
    assert_eq!(error.code(), "unsupported_option");
    assert!(error.to_string().contains("'reasoningBudget'"), "{error}");
}

#[test]
fn a_single_call_ends_the_answer() {
    // The whole call is one token, so that a bias can write it.
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}";
    let token = json!([{ "id": 250, "content": call, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false }]);
    let mut model = tiny_with(
        "llama",
        None,
        token,
        Some("{{ messages[0].content }}{{ tools }}{# <tool_call> #}"),
    );
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let more =
        json!({ "tools": tools, "logitBias": { "250": 100 }, "maxTokens": 5, "ignoreEos": true });
    let (many, _) = answer(&mut model, &more, None);
    assert_eq!(many.ids.len(), 5);
    let mut single = more;
    single["singleCall"] = true.into();
    let (one, parts) = answer(&mut model, &single, None);
    assert_eq!(one.ids, [250]);
    assert_eq!(
        serde_json::to_value(one.finish_reason).expect("a name"),
        "tool_calls"
    );
    let calls = parts
        .iter()
        .filter(|part| matches!(part, AnswerPart::ToolCall { .. }));
    assert_eq!(calls.count(), 1);
}
