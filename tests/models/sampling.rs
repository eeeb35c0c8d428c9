//! Generation with GPU sampling against generation with the CPU sampler, which log-probabilities
//! require.

use jerboa::exec::RunOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::task::{ChatModel, GenerateRequest};
use jerboa_tests::golden::golden;
use jerboa_tests::open;
use pollster::block_on;
use serde_json::{Value, json};

fn loaded(context: usize) -> ChatModel {
    let folder = golden("../../www/public/models/stories260K");
    let options = RunOptions {
        max_context: Some(context),
        ..RunOptions::default()
    };
    block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        ChatModel::load(open(&super::exact()), &source, "stories", options).await
    })
    .expect("model")
}

fn ids(model: &mut ChatModel, request: &Value, logprobs: bool) -> Vec<u32> {
    let mut request = request.clone();
    request["logprobs"] = json!(logprobs);
    request["prompt"] = json!("Once upon a time, there was a little girl");
    let request = GenerateRequest::from_json(&request.to_string()).expect("request");
    let mut emitted = Vec::new();
    let outcome = block_on(model.generate(&request, &AbortFlag::default(), |event| {
        emitted.extend(event.ids.clone());
    }));
    let outcome = outcome.expect("generate");
    assert_eq!(outcome.ids, emitted);
    outcome.ids
}

#[test]
fn gpu_sampling_equals_the_cpu_sampler() {
    let mut model = loaded(256);
    let requests = [
        json!({ "temperature": 0.8, "seed": 3 }),
        json!({ "temperature": 1.5, "top_k": 40, "seed": 4 }),
        json!({ "temperature": 1.0, "top_p": 0.9, "top_k": 0, "seed": 5 }),
        json!({ "temperature": 1.2, "min_p": 0.05, "top_k": 0, "seed": 6 }),
        json!({ "temperature": 0.6, "top_k": 20, "top_p": 0.95, "seed": 7 }),
        json!({ "temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "seed": 8 }),
        json!({ "temperature": 0.9, "typical_p": 0.9, "seed": 9 }),
        json!({ "do_sample": false, "repetition_penalty": 1.4 }),
        json!({ "do_sample": false, "frequency_penalty": 1.5, "presence_penalty": 0.5 }),
        json!({ "do_sample": false, "logit_bias": { "13": -100.0, "322": 4.0 } }),
        json!({ "do_sample": false }),
    ];
    let mut all = Vec::new();
    for mut request in requests {
        request["maxTokens"] = json!(60);
        let gpu = ids(&mut model, &request, false);
        assert_eq!(gpu, ids(&mut model, &request, true), "{request}");
        assert!(!all.contains(&gpu), "{request} changed nothing");
        all.push(gpu);
    }
}

/// Random numbers and penalties continue when a rolling context drops its older half.
#[test]
fn sampling_continues_over_a_rolling_context() {
    let mut model = loaded(48);
    for request in [
        json!({ "temperature": 0.8, "seed": 3, "maxTokens": 150, "overflow": "rolling" }),
        json!({ "temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "maxTokens": 150, "overflow": "rolling" }),
        json!({ "do_sample": false, "repetition_penalty": 1.2, "maxTokens": 150, "overflow": "rolling" }),
    ] {
        let gpu = ids(&mut model, &request, false);
        assert_eq!(gpu, ids(&mut model, &request, true), "{request}");
        assert!(gpu.len() > 60, "{request}: {} tokens", gpu.len());
    }
}
