//! Answers under a constraint, which allows some tokens and forces others: the ids of the CPU's
//! sampler over the same model's logits, at the same seed.

use super::{assert_usable, character, reference, request, stories, tiny_with};
use jerboa::hub::AbortFlag;
use jerboa::sample::{Sampler, SamplingOptions, SamplingParams, TokenConstraint, TokenMask};
use jerboa::task::{ChatModel, FinishReason, GenerationResult, TokenEvent};
use jerboa::{Error, Result};
use jerboa_tests::golden::{Golden, golden};
use pollster::block_on;
use serde_json::{Value, json};

const TOKENS: usize = 33;

/// Allows two fifths of the tokens, others after each token; forces two of each seven.
#[derive(Clone)]
pub(super) struct Pattern {
    vocabulary: usize,
    /// Indices of the forced tokens.
    offset: usize,
    /// A token forced after this many, such as an end token.
    last: Option<(usize, u32)>,
    tokens: Vec<u32>,
}

impl Pattern {
    pub(super) fn new(vocabulary: usize, offset: usize) -> Self {
        Self {
            vocabulary,
            offset,
            last: None,
            tokens: Vec::new(),
        }
    }

    fn allows(&self, id: usize) -> bool {
        (id * 7 + id / 9 + self.tokens.len()) % 5 < 2
    }

    fn forced_at(&self, place: usize) -> Option<u32> {
        match self.last {
            Some((at, token)) if place == at => Some(token),
            _ => {
                let is_forced = (place + self.offset) % 7 >= 5;
                is_forced.then_some((place * 31 + 5) as u32 % self.vocabulary as u32)
            }
        }
    }

    fn words(&self) -> Vec<u32> {
        let mut words = vec![0; self.vocabulary.div_ceil(32)];
        for id in (0..self.vocabulary).filter(|id| self.allows(*id)) {
            words[id / 32] |= 1 << (id % 32);
        }
        words
    }
}

impl TokenConstraint for Pattern {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        assert!(words.iter().all(|word| *word == 0));
        assert_eq!(self.forced_at(self.tokens.len()), None, "asked for no mask");
        words.copy_from_slice(&self.words());
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        match self.forced_at(self.tokens.len()) {
            Some(forced) => assert_eq!(token, forced),
            None => assert!(self.allows(token as usize), "{token} is not allowed"),
        }
        self.tokens.push(token);
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        let places = self.tokens.len()..;
        Ok(places.map_while(|place| self.forced_at(place)).collect())
    }
}

fn events(
    model: &mut ChatModel,
    json: Value,
    constraint: &mut dyn TokenConstraint,
) -> Result<(GenerationResult, Vec<TokenEvent>)> {
    let mut events = Vec::new();
    let request = request(json);
    let abort = AbortFlag::new();
    let running = model.generate_constrained(&request, Some(constraint), &abort, |event| {
        events.push(event.clone());
    });
    block_on(running).map(|outcome| (outcome, events))
}

fn with(base: &Value, extra: &Value) -> Value {
    let mut all = base.as_object().cloned().expect("an object");
    all.extend(extra.as_object().cloned().expect("an object"));
    Value::Object(all)
}

/// The same on the CPU, one step after another.
fn oracle(
    model: &mut ChatModel,
    prompt: &[u32],
    setting: &Value,
    mut pattern: Pattern,
) -> Vec<u32> {
    let options: SamplingOptions = serde_json::from_value(setting.clone()).expect("parameters");
    let params = SamplingParams::from_generation_config(&json!({}))
        .and_then(|p| p.merge(&options))
        .expect("parameters");
    let mut sampler = Sampler::new(params, model.session.vocab(), 0).expect("a sampler");
    sampler.start(prompt);
    block_on(async {
        model.logits(prompt, false).await.expect("logits");
        for pos in prompt.len()..prompt.len() + TOKENS {
            let token = match pattern.forced_at(pattern.tokens.len()) {
                Some(forced) => {
                    sampler.accept(forced);
                    forced
                }
                None => {
                    let logits = model.session.logits().await.expect("logits");
                    let words = pattern.words();
                    sampler
                        .sample(&logits, Some(TokenMask(&words)))
                        .expect("a token")
                }
            };
            pattern.tokens.push(token);
            model.session.step(token, pos).await.expect("a step");
        }
    });
    pattern.tokens
}

fn settings() -> Vec<Value> {
    vec![
        json!({ "temperature": 0 }),
        json!({ "temperature": 0.9, "seed": 7 }),
        json!({ "temperature": 0, "repetitionPenalty": 1.3, "logitBias": { "7": 3.0 } }),
        json!({ "temperature": 1.4, "topK": 9, "topP": 0.9, "minP": 0.02, "seed": 3 }),
        json!({ "temperature": 0.9, "presencePenalty": 0.5, "frequencyPenalty": 0.3, "topK": 0, "seed": 4 }),
        // Sampled on the CPU.
        json!({ "temperature": 1.0, "typicalP": 0.7, "seed": 5 }),
    ]
}

/// Full caches, rings of a vocabulary that fills no word, and recurrent states of the same.
#[test]
fn constrained_answers_are_the_cpu_samplers() {
    for (name, settings) in [
        ("llama", &settings()[..]),
        ("olmo3_odd", &settings()[..2]),
        ("qwen3_5_odd", &settings()[3..5]),
    ] {
        let mut model = tiny_with(name, None, json!([]), None);
        let golden = Golden::read(&golden(&format!("models/{name}")).join("golden.safetensors"));
        let prompt = golden.ids("input_ids");
        let vocabulary = model.session.vocab();
        let mut found = Vec::new();
        for setting in settings {
            // Forced tokens come first, and later.
            for offset in [5, 1] {
                let pattern = Pattern::new(vocabulary, offset);
                let expected = oracle(&mut model, &prompt, setting, pattern.clone());
                let asked = json!({ "ids": prompt, "maxTokens": TOKENS, "ignoreEos": true });
                for logprobs in [false, true] {
                    let extra = json!({ "logprobs": logprobs, "topLogprobs": 2 });
                    let request = with(&with(&asked, setting), &extra);
                    let (outcome, events) = events(&mut model, request, &mut pattern.clone())
                        .unwrap_or_else(|e| panic!("{name}, {setting}: {e}"));
                    assert_eq!(outcome.ids, expected, "{name}, {setting}, {logprobs}");
                    let told: Vec<u32> = events.iter().flat_map(|e| e.ids.clone()).collect();
                    assert_eq!(told, expected, "{name}, {setting}");
                    let infos = events.iter().flat_map(|e| e.logprobs.iter().flatten());
                    let ids: Vec<u32> = infos.map(|info| info.id).collect();
                    assert_eq!(ids, if logprobs { expected.clone() } else { vec![] });
                }
                found.push(expected);
            }
            // The sequence is what its states hold: a plain answer goes on from it.
            let more = [&prompt[..], &found[found.len() - 1]].concat();
            let plain = json!({ "ids": more, "temperature": 0, "maxTokens": 6, "ignoreEos": true });
            let after = super::run(&mut model, plain.clone());
            assert!(after.cached_tokens + 1 >= prompt.len(), "{name}: {after:?}");
            model.session.clear();
            assert_eq!(after.ids, super::run(&mut model, plain).ids, "{name}");
        }
        found.dedup();
        assert_eq!(found.len(), 2 * settings.len(), "{name}: settings count");
    }
}

#[test]
fn masks_run_on_the_gpu() {
    let mut model = stories(64);
    for greedy in [true, false] {
        let params = SamplingParams {
            greedy,
            ..SamplingParams::default()
        };
        let sampler = Sampler::new(params, model.session.vocab(), 0).expect("a sampler");
        let pipeline = block_on(model.session.prepare_sampling(&sampler, true)).expect("kernels");
        assert!(pipeline.is_some_and(|p| p.host_input().is_some()));
    }
}

#[test]
fn forced_tokens_end_answers_as_sampled_ones_do() {
    let eos = 200;
    let config = json!({ "eos_token_id": eos });
    let mut model = tiny_with("llama", Some(&config), json!([]), None);
    let prompt = [5u32, 9, 11];
    let asked = json!({ "ids": prompt, "temperature": 0 });
    for logprobs in [false, true] {
        let run = |model: &mut ChatModel, extra: Value, last: Option<(usize, u32)>| {
            let mut pattern = Pattern {
                last,
                ..Pattern::new(256, 0)
            };
            let request = with(&with(&asked, &extra), &json!({ "logprobs": logprobs }));
            events(model, request, &mut pattern).expect("an answer").0
        };
        let long = run(
            &mut model,
            json!({ "maxTokens": 20, "ignoreEos": true }),
            None,
        );
        assert_eq!(long.ids.len(), 20);
        // Between two forced tokens, at indices 5 and 6.
        let six = run(
            &mut model,
            json!({ "maxTokens": 6, "ignoreEos": true }),
            None,
        );
        assert_eq!(six.ids, long.ids[..6]);
        assert_eq!(six.finish_reason, FinishReason::Length);
        for at in [0, 4, 6] {
            let ended = run(&mut model, json!({ "maxTokens": 20 }), Some((at, eos)));
            assert_eq!(
                ended.ids,
                [&long.ids[..at], &[eos]].concat(),
                "forced at {at}"
            );
            assert_eq!(ended.finish_reason, FinishReason::Stop);
        }
        let stop = character(long.ids[5]).to_string();
        let stopped = run(
            &mut model,
            json!({ "maxTokens": 20, "ignoreEos": true, "stop": [stop] }),
            None,
        );
        let first = long.ids.iter().position(|id| *id == long.ids[5]);
        assert_eq!(stopped.ids.len(), first.expect("a place") + 1);
        assert_eq!(stopped.finish_reason, FinishReason::Stop);
    }
}

/// A context that fills up drops its older half, whatever the constraint forces there.
#[test]
fn constraints_go_on_over_a_rolling_context() {
    let mut model = stories(48);
    for setting in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 0.8, "seed": 3, "repetitionPenalty": 1.2 }),
    ] {
        let [gpu, cpu] = [false, true].map(|logprobs| {
            let more = json!({ "prompt": reference().prompt, "maxTokens": 120, "overflow": "rolling", "ignoreEos": true, "logprobs": logprobs });
            let mut pattern = Pattern::new(512, 2);
            events(&mut model, with(&setting, &more), &mut pattern)
                .expect("an answer")
                .0
                .ids
        });
        assert_eq!(gpu, cpu, "{setting}");
        assert_eq!(gpu.len(), 120);
    }
    assert_usable(&mut model, "a rolling context");
}

/// Fails at a step: in the mask, the accepted token, or the forced tokens.
struct Failing {
    step: usize,
    at: usize,
    call: &'static str,
}

impl Failing {
    fn check(&self, call: &str) -> Result<()> {
        if self.step == self.at && self.call == call {
            return Err(Error::Request {
                parameter: "constraint".into(),
                reason: format!("no {call}"),
            });
        }
        Ok(())
    }
}

impl TokenConstraint for Failing {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        self.check("mask")?;
        let allows = self.call != "any" || self.step < self.at;
        words.fill(if allows { u32::MAX } else { 0 });
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<()> {
        self.check("accept")?;
        self.step += 1;
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        self.check("forced")?;
        let beyond = self.call == "beyond" && self.step == self.at;
        Ok(if beyond { vec![512] } else { Vec::new() })
    }
}

#[test]
fn failing_constraints_end_the_answer_and_leave_the_model_usable() {
    let mut model = stories(64);
    for (call, part) in [
        ("mask", "no mask"),
        ("accept", "no accept"),
        ("forced", "no forced"),
        ("any", "leave no token"),
        ("beyond", "outside the vocabulary"),
    ] {
        for (at, temperature) in [(0, 0.0), (3, 0.0), (3, 0.9)] {
            for logprobs in [false, true] {
                let asked = json!({ "prompt": reference().prompt, "temperature": temperature, "maxTokens": 9, "logprobs": logprobs });
                let mut failing = Failing { step: 0, at, call };
                let error = events(&mut model, asked, &mut failing).expect_err(call);
                assert_eq!(error.code(), "request", "{call}: {error}");
                assert!(error.to_string().contains(part), "{call}: {error}");
                assert_usable(&mut model, call);
            }
        }
    }
}
