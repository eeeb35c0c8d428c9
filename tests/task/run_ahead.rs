//! Answers under a constraint that are sampled ahead of its masks: the same as step by step, with
//! fewer readbacks where the model follows the constraint.

use super::constraint::Pattern;
use super::{assert_usable, character, reference, request, stories, stories_with, tiny_with};
use jerboa::Result;
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::sample::TokenConstraint;
use jerboa::task::{ChatModel, FinishReason, GenerationResult};
use jerboa_grammar::Constraint;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::grammar::{GrammarLimit, vocabulary};
use pollster::block_on;
use serde_json::{Value, json};

/// A constraint whose tokens are read one by one.
struct Stepwise<C>(C);

impl<C: TokenConstraint> TokenConstraint for Stepwise<C> {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        self.0.mask(words)
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        self.0.accept(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        self.0.forced()
    }

    fn runs_ahead(&self) -> bool {
        false
    }
}

/// Allows the tokens with a remainder below `share` of `of`, which changes every `period` tokens.
#[derive(Clone, Copy)]
struct Remainders {
    share: u32,
    of: u32,
    period: u32,
    place: u32,
    /// Whether it answers for single tokens.
    tells: bool,
}

impl Remainders {
    fn new(share: u32, of: u32, period: u32) -> Self {
        Self {
            share,
            of,
            period,
            place: 0,
            tells: true,
        }
    }

    fn has(&self, token: u32) -> bool {
        (token * 7 + token / 5 + self.place / self.period * 3) % self.of < self.share
    }
}

impl TokenConstraint for Remainders {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        for token in (0..words.len() as u32 * 32).filter(|token| self.has(*token)) {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        assert!(self.has(token), "{token} is not allowed");
        self.place += 1;
        Ok(())
    }

    fn may_follow(&mut self, token: u32) -> Result<Option<bool>> {
        Ok(self.tells.then(|| self.has(token)))
    }
}

fn answer(
    model: &mut ChatModel,
    json: &Value,
    constraint: &mut dyn TokenConstraint,
) -> GenerationResult {
    let (request, abort) = (request(json.clone()), AbortFlag::new());
    block_on(model.generate_constrained(&request, Some(constraint), &abort, |_| {}))
        .unwrap_or_else(|e| panic!("{json}: {e}"))
}

fn with(base: &Value, extra: &Value) -> Value {
    let mut all = base.as_object().cloned().expect("an object");
    all.extend(extra.as_object().cloned().expect("an object"));
    Value::Object(all)
}

fn settings() -> Vec<Value> {
    vec![
        json!({ "temperature": 0 }),
        json!({ "temperature": 0, "repetitionPenalty": 1.3, "frequencyPenalty": 0.4, "logitBias": { "7": 3.0 } }),
        json!({ "temperature": 0.9, "seed": 7 }),
        json!({ "temperature": 0.2, "topK": 9, "topP": 0.9, "minP": 0.02, "seed": 3 }),
        json!({ "temperature": 0.7, "presencePenalty": 0.5, "repetitionPenalty": 1.1, "topK": 20, "seed": 4 }),
        json!({ "temperature": 0.8, "topK": 0, "seed": 5 }),
        json!({ "temperature": 0.8, "topP": 0.7, "topK": 0, "seed": 6 }),
    ]
}

/// Full caches, rings, logits that fill no word, recurrent states; constraints that are followed,
/// partly followed, not followed, and that force tokens.
#[test]
fn answers_are_those_of_single_steps() {
    for (name, settings) in [
        ("llama", &settings()[..]),
        ("gemma3", &settings()[..3]),
        ("olmo3_odd", &settings()[..4]),
        ("gpt2", &settings()[2..4]),
        ("qwen3_5_odd", &settings()[..3]),
    ] {
        let mut model = tiny_with(name, None, json!([]), None);
        let golden = Golden::read(&golden(&format!("models/{name}")).join("golden.safetensors"));
        let prompt = golden.ids("input_ids");
        let vocabulary = model.session.vocab();
        for setting in settings {
            let asked = json!({ "ids": prompt, "maxTokens": 25, "ignoreEos": true });
            let asked = with(&asked, setting);
            for (share, of, period) in [(96, 97, 1), (4, 5, 1), (2, 3, 9), (1, 4, 1)] {
                let limit = Remainders::new(share, of, period);
                let steps = answer(&mut model, &asked, &mut Stepwise(limit));
                for tells in [true, false] {
                    let ahead = answer(&mut model, &asked, &mut Remainders { tells, ..limit });
                    assert_eq!(ahead.ids, steps.ids, "{name}, {setting}, {share} of {of}");
                }
            }
            for offset in [0, 4] {
                let pattern = Pattern::new(vocabulary, offset);
                let steps = answer(&mut model, &asked, &mut Stepwise(pattern.clone()));
                let ahead = answer(&mut model, &asked, &mut pattern.clone());
                assert_eq!(
                    ahead.ids, steps.ids,
                    "{name}, {setting}, forced at {offset}"
                );
            }
        }
    }
}

/// Sampled tokens have the distribution of single steps, because they are the same at every seed.
#[test]
fn every_seed_gives_the_tokens_of_single_steps() {
    let mut model = tiny_with("llama", None, json!([]), None);
    for seed in 0..60 {
        for setting in [
            json!({ "temperature": 0.3, "topK": 12 }),
            json!({ "temperature": 1, "topK": 0 }),
        ] {
            let asked =
                json!({ "ids": [5, 9, 11], "maxTokens": 9, "ignoreEos": true, "seed": seed });
            let asked = with(&asked, &setting);
            let limit = Remainders::new(9, 10, 4);
            let steps = answer(&mut model, &asked, &mut Stepwise(limit));
            let ahead = answer(&mut model, &asked, &mut { limit });
            assert_eq!(ahead.ids, steps.ids, "{asked}");
        }
    }
}

#[test]
fn a_model_that_follows_is_read_back_rarely() {
    // As on a GPU; the measured speed of this machine would give fewer steps ahead.
    let options = RunOptions {
        batch_steps: Some(16),
        ..RunOptions::default()
    };
    let mut model = stories_with(256, options);
    for setting in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 0.7, "topK": 20, "seed": 1 }),
    ] {
        let asked = json!({ "prompt": reference().prompt, "maxTokens": 120, "ignoreEos": true });
        let asked = with(&asked, &setting);
        let steps = answer(
            &mut model,
            &asked,
            &mut Stepwise(Remainders::new(4000, 4001, 1)),
        );
        assert_eq!(steps.readbacks, steps.ids.len());
        let ahead = answer(&mut model, &asked, &mut Remainders::new(4000, 4001, 1));
        assert_eq!(ahead.ids, steps.ids, "{setting}");
        let (readbacks, tokens) = (ahead.readbacks, ahead.ids.len());
        println!("{setting}: {tokens} tokens in {readbacks} readbacks");
        assert!(
            readbacks * 3 < tokens * 2,
            "{setting}: {readbacks} readbacks"
        );
    }
}

#[test]
fn answers_end_as_those_of_single_steps() {
    let eos = 200;
    let config = json!({ "eos_token_id": eos });
    let mut model = tiny_with("llama", Some(&config), json!([]), None);
    let limit = Remainders::new(19, 20, 2);
    let asked = json!({ "ids": [5, 9, 11], "temperature": 0, "ignoreEos": true });
    let long = with(&asked, &json!({ "maxTokens": 40 }));
    let long = answer(&mut model, &long, &mut Stepwise(limit)).ids;
    for count in [1, 2, 7, 23] {
        let short = with(&asked, &json!({ "maxTokens": count }));
        let short = answer(&mut model, &short, &mut { limit });
        assert_eq!(short.ids, long[..count]);
        assert_eq!(short.finish_reason, FinishReason::Length);
    }
    // A stop string within the tokens of a readback.
    for at in [3, 11, 30] {
        let stop = json!({ "maxTokens": 40, "stop": [character(long[at]).to_string()] });
        let stopped = answer(&mut model, &with(&asked, &stop), &mut { limit });
        let first = long.iter().position(|id| *id == long[at]).expect("a place");
        assert_eq!(stopped.ids, long[..=first]);
        assert_eq!(stopped.finish_reason, FinishReason::Stop);
    }
    // The end token, wanted all the time and allowed from some place on.
    let ends = json!({ "ids": [5, 9, 11], "temperature": 0, "maxTokens": 40, "logitBias": { "200": 50.0 } });
    for from in [0, 1, 6, 17] {
        let mut late = EndsLate { place: 0, from };
        let ended = answer(&mut model, &ends, &mut late);
        assert_eq!((ended.ids.len(), ended.ids.last()), (from + 1, Some(&eos)));
        assert_eq!(ended.finish_reason, FinishReason::Stop);
        let steps = answer(
            &mut model,
            &ends,
            &mut Stepwise(EndsLate { place: 0, from }),
        );
        assert_eq!(ended.ids, steps.ids);
    }
    // The sequence is what its states hold.
    let ids = [&[5, 9, 11], &long[..20]].concat();
    let more = json!({ "ids": ids, "temperature": 0, "maxTokens": 6, "ignoreEos": true });
    let after = super::run(&mut model, more.clone());
    model.session.clear();
    assert_eq!(after.ids, super::run(&mut model, more).ids);
}

/// Allows all tokens, and the end token 200 from a place on.
struct EndsLate {
    place: usize,
    from: usize,
}

impl TokenConstraint for EndsLate {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(u32::MAX);
        if self.place < self.from {
            words[200 / 32] &= !(1 << (200 % 32));
        }
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<()> {
        self.place += 1;
        Ok(())
    }

    fn may_follow(&mut self, token: u32) -> Result<Option<bool>> {
        assert_ne!(token, 200, "asked about an end token");
        Ok(Some(true))
    }
}

/// An abort from the event of a token ends the answer there, and the model goes on.
#[test]
fn an_abort_drops_the_tokens_ahead() {
    let mut model = stories(256);
    let asked = json!({ "prompt": reference().prompt, "temperature": 0, "maxTokens": 90, "ignoreEos": true });
    let limit = Remainders::new(30, 31, 1);
    let whole = answer(&mut model, &asked, &mut Stepwise(limit)).ids;
    for after in [1, 8, 40] {
        let abort = AbortFlag::new();
        let mut count = 0;
        let mut limit = limit;
        let request = request(asked.clone());
        let running = model.generate_constrained(&request, Some(&mut limit), &abort, |event| {
            count += event.ids.len();
            if count >= after {
                abort.abort();
            }
        });
        let aborted = block_on(running).expect("an answer");
        assert_eq!(aborted.finish_reason, FinishReason::Abort);
        assert_eq!(aborted.ids, whole[..aborted.ids.len()]);
        assert!((after..after + 25).contains(&aborted.ids.len()));
        assert_usable(&mut model, "an abort");
    }
}

/// Schemas, expressions and choices, greedy and sampled, with forced text.
#[test]
fn documents_are_those_of_single_steps() {
    let mut model = stories(256);
    let text = model.text.clone();
    let tokenizer = text.tokenizer().expect("a tokenizer");
    let vocabulary = vocabulary(tokenizer);
    let person = json!({ "type": "object", "properties": {
        "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer", "minimum": 0, "maximum": 120 },
        "tags": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 3 },
    }, "required": ["name", "age", "tags"], "additionalProperties": false });
    let story = json!({ "type": "object", "properties": { "story": { "type": "string" } }, "required": ["story"] });
    let choices = [
        "a little dog".to_owned(),
        "a little girl named Lily".to_owned(),
    ];
    let constraints = || {
        [
            Constraint::JsonSchema(&person),
            Constraint::JsonSchema(&story),
            Constraint::JsonObject,
            Constraint::Regex("[A-Za-z ,.'\n]*"),
            Constraint::Choice(&choices),
            Constraint::Lark("start: (WORD \" \")+ \".\"\nWORD: /[a-z]{1,7}/"),
        ]
    };
    let [mut tokens, mut readbacks, mut masks] = [0; 3];
    let [mut steps_ms, mut ahead_ms] = [0.0; 2];
    for number in 0..constraints().len() {
        for setting in [
            json!({ "temperature": 0 }),
            json!({ "temperature": 1, "seed": 2 }),
            json!({ "temperature": 0.5, "topP": 0.9, "seed": 3, "repetitionPenalty": 1.1 }),
        ] {
            let asked = json!({ "prompt": reference().prompt, "maxTokens": 60 });
            let asked = with(&asked, &setting);
            let limit = |runs_ahead| {
                let constraint = constraints().into_iter().nth(number).expect("one");
                let mut limit = GrammarLimit::new(&vocabulary, tokenizer, constraint);
                limit.runs_ahead = runs_ahead;
                limit
            };
            let steps = answer(&mut model, &asked, &mut limit(false));
            let mut own = limit(true);
            let ahead = answer(&mut model, &asked, &mut own);
            assert_eq!(ahead.text, steps.text, "{number}, {setting}");
            assert_eq!(ahead.ids, steps.ids, "{number}, {setting}");
            tokens += ahead.ids.len();
            readbacks += ahead.readbacks;
            masks += own.masks;
            steps_ms += steps.decode_ms;
            ahead_ms += ahead.decode_ms;
        }
    }
    println!("{tokens} tokens in {readbacks} readbacks, {masks} masks");
    println!("{ahead_ms:.0} ms, {steps_ms:.0} ms in single steps");
    assert_usable(&mut model, "documents");
}
