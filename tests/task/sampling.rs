//! Sampling and log-probabilities of a running engine against the CPU sampler on the same model's
//! logits.

use super::{assert_usable, events, reference, run, stories};
use jerboa::sample::{Sampler, SamplingOptions, SamplingParams};
use jerboa::task::ChatModel;
use pollster::block_on;
use serde_json::{Value, json};

const TOKENS: usize = 24;

/// Parameters by request field; all but the first sample.
fn settings() -> Vec<Value> {
    vec![
        json!({ "temperature": 0, "repetitionPenalty": 1.3 }),
        json!({ "temperature": 0.7 }),
        json!({ "temperature": 1.5, "topK": 7 }),
        json!({ "temperature": 1.0, "topP": 0.8 }),
        json!({ "temperature": 1.2, "minP": 0.1, "topK": 0 }),
        json!({ "temperature": 1.0, "typicalP": 0.7 }),
        json!({ "temperature": 0.9, "presencePenalty": 0.5, "frequencyPenalty": 0.3 }),
        json!({ "temperature": 0.9, "logitBias": { "432": -100.0, "417": 4.0 } }),
    ]
}

fn with(base: &Value, extra: &Value) -> Value {
    let mut all = base.as_object().cloned().expect("an object");
    all.extend(extra.as_object().cloned().expect("an object"));
    Value::Object(all)
}

fn draw(model: &mut ChatModel, setting: &Value, seed: u64) -> Vec<u32> {
    let request = json!({ "prompt": reference().prompt, "seed": seed, "maxTokens": TOKENS, "ignoreEos": true });
    run(model, with(setting, &request)).ids
}

/// Tokens that the CPU sampler samples from the logits of each step.
fn oracle(model: &mut ChatModel, setting: &Value, seed: u64) -> Vec<u32> {
    let overrides: SamplingOptions =
        serde_json::from_value(with(setting, &json!({ "seed": seed }))).expect("parameters");
    let params = SamplingParams::from_generation_config(&json!({}))
        .and_then(|p| p.merge(&overrides))
        .expect("parameters");
    let mut sampler = Sampler::new(params, model.session.vocab(), 0).expect("a sampler");
    let prompt = &reference().prompt_ids;
    sampler.start(prompt);
    block_on(async {
        // The cache holds another text now, so reset it.
        model.logits(prompt, false).await.expect("logits");
        let mut tokens = Vec::new();
        for pos in prompt.len().. {
            let logits = model.session.logits().await.expect("logits");
            tokens.push(sampler.sample(&logits, None).expect("a token"));
            if tokens.len() == TOKENS {
                break;
            }
            model
                .session
                .step(tokens[tokens.len() - 1], pos)
                .await
                .expect("a step");
        }
        tokens
    })
}

#[test]
fn the_engine_samples_like_the_cpu_sampler() {
    let mut model = stories(256);
    for setting in settings() {
        let expected = oracle(&mut model, &setting, 7);
        assert_eq!(draw(&mut model, &setting, 7), expected, "{setting}");
    }
    assert_usable(&mut model, "draws");
}

#[test]
fn a_seed_gives_the_same_tokens_after_any_history() {
    let setting = json!({ "temperature": 1.0, "topK": 20 });
    let mut model = stories(256);
    let first = draw(&mut model, &setting, 11);
    assert_eq!(
        draw(&mut model, &setting, 11),
        first,
        "with the prompt in the cache"
    );
    let others: Vec<Vec<u32>> = (12..18)
        .map(|seed| draw(&mut model, &setting, seed))
        .collect();
    assert!(
        others.iter().all(|o| *o != first),
        "other seeds, other tokens"
    );
    run(
        &mut model,
        json!({ "prompt": "The dog", "temperature": 0, "maxTokens": 5 }),
    );
    assert_eq!(draw(&mut model, &setting, 11), first, "after another text");
    assert_eq!(
        draw(&mut stories(256), &setting, 11),
        first,
        "in another engine"
    );
}

/// Log-probabilities are those of the raw logits, regardless of the sampling parameters.
#[test]
fn log_probabilities_are_those_of_the_logits() {
    let mut model = stories(256);
    for setting in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 1.3, "topK": 5, "seed": 3 }),
    ] {
        let request = json!({ "prompt": reference().prompt, "maxTokens": 10, "logprobs": true, "topLogprobs": 4 });
        let (outcome, events) =
            events(&mut model, with(&setting, &request)).unwrap_or_else(|e| panic!("{e}"));
        let infos: Vec<_> = events
            .iter()
            .flat_map(|e| e.logprobs.iter().flatten())
            .collect();
        assert_eq!(infos.len(), outcome.ids.len());
        let mut context = reference().prompt_ids.clone();
        for (info, id) in infos.iter().zip(&outcome.ids) {
            let logits = block_on(model.logits(&context, false)).expect("logits");
            let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
            let expected = |id: u32| f64::from(logits[id as usize]) - sum.ln();
            assert_eq!(info.id, *id);
            let top = info.top.as_ref().expect("alternatives");
            let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
            ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            assert_eq!(
                top.iter().map(|t| t.id).collect::<Vec<_>>(),
                ranked[..4],
                "the likeliest in order"
            );
            for one in top.iter().chain([*info]) {
                let error = (f64::from(one.logprob) - expected(one.id)).abs();
                assert!(error < 2e-5, "{one:?}: {}", expected(one.id));
                let bytes = one.bytes.as_ref().expect("bytes");
                assert!(!bytes.is_empty() && !one.token.is_empty(), "{one:?}");
            }
            context.push(*id);
        }
    }
}

#[test]
fn contradictory_requests_are_refused_by_the_name_of_the_parameter() {
    let mut model = stories(64);
    for (setting, part) in [
        (json!({ "temperature": -1.0 }), "temperature"),
        (json!({ "topP": 1.5 }), "top_p"),
        (json!({ "minP": 2.0 }), "min_p"),
        (json!({ "repetitionPenalty": 0.0 }), "repetition_penalty"),
        (json!({ "logitBias": { "512": 1.0 } }), "logit_bias"),
    ] {
        let error =
            events(&mut model, with(&setting, &json!({ "prompt": "The" }))).expect_err(part);
        assert_eq!(error.code(), "request", "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert_usable(&mut model, part);
    }
    for ids in [vec![], vec![512]] {
        assert_eq!(
            events(&mut model, json!({ "ids": ids }))
                .expect_err("ids")
                .code(),
            "request"
        );
    }
}
