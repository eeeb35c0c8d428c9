//! Language models: token ids, chat template, logits, greedy ids and perplexity.

use super::{Report, exact, facts, ids, load, strings, text};
use jerboa::exec::RunOptions;
use jerboa::hub::AbortFlag;
use jerboa::task::{ChatModel, GenerateRequest, TaskModel};
use jerboa::text::ChatInput;
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::relative_l2;
use pollster::block_on;
use serde_json::{Value, json};

/// make_real.py stores every 63rd logit.
const STRIDE: usize = 63;

#[test]
fn smollm2() {
    compare("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF");
}

#[test]
fn gemma3() {
    compare("gemma3", "ggml-org/gemma-3-270m-GGUF");
}

fn compare(name: &'static str, repo: &str) {
    let facts = facts(name);
    let golden = Golden::read(&golden(&format!("real/{name}.safetensors")));
    let mut report = Report::new(name);
    let mut model = load(repo, exact());
    strings(&mut report, &model, &facts["strings"]);
    let TaskModel::Generate(loaded) = &mut model else {
        panic!("{repo} is a language model")
    };
    for (key, greedy) in facts["greedy"].as_object().expect("greedy ids by prompt") {
        let prompt = ids(&facts["prompts"][key]);
        let logits = block_on(loaded.logits(&prompt, false)).expect("logits");
        let logits: Vec<f32> = logits.into_iter().step_by(STRIDE).collect();
        let error = relative_l2(&logits, &golden.floats(&format!("{key}.last_logits")));
        report.check(
            &format!("{key}, logits"),
            error < 1e-4,
            &format!("relative L2 {error:.1e}"),
        );
        let found = generate(loaded, &json!({ "ids": prompt, "ignoreEos": true }), greedy);
        report.check(
            &format!("{key}, greedy ids"),
            found == ids(greedy),
            &format!("{found:?}"),
        );
    }
    if let Some(rendered) = facts["chat_text"].as_str() {
        let messages = prompts()["chat"].clone();
        let conversation = messages.as_array().expect("messages").clone();
        let input = ChatInput {
            messages: conversation,
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        let prompt = loaded.text.render(&input).expect("a prompt").text;
        report.check("chat template", prompt == rendered, &prompt);
        let found = generate(
            loaded,
            &json!({ "messages": messages, "ignoreEos": true }),
            &facts["greedy"]["chat"],
        );
        report.check(
            "chat, greedy ids from messages",
            found == ids(&facts["greedy"]["chat"]),
            &format!("{found:?}"),
        );
    }
    let (perplexity, predicted) =
        block_on(loaded.perplexity(&text("page.txt"))).expect("a perplexity");
    let expected = facts["perplexity"].as_f64().expect("a perplexity");
    let equal = (perplexity / expected - 1.0).abs() < 1e-4
        && Some(predicted as u64) == facts["predicted"].as_u64();
    report.check(
        "perplexity",
        equal,
        &format!("{perplexity:.5} of {predicted} tokens, expected {expected:.5}"),
    );
    drop(model);
    // As users load it: the device's defaults for weights, activations and cache.
    let TaskModel::Generate(mut loaded) = load(repo, RunOptions::default()) else {
        panic!("{repo} is a language model")
    };
    let key = if facts["greedy"].get("chat").is_some() {
        "chat"
    } else {
        "english"
    };
    let logits = block_on(loaded.logits(&ids(&facts["prompts"][key]), false)).expect("logits");
    let logits: Vec<f32> = logits.into_iter().step_by(STRIDE).collect();
    let error = relative_l2(&logits, &golden.floats(&format!("{key}.last_logits")));
    report.check(
        &format!("{key}, logits with defaults"),
        error < 3e-3,
        &format!("relative L2 {error:.1e}"),
    );
    report.finish();
}

fn prompts() -> Value {
    facts("prompts")
}

/// Generates as many greedy tokens as the reference.
fn generate(loaded: &mut ChatModel, request: &Value, reference: &Value) -> Vec<u32> {
    let mut request = request.clone();
    request["maxTokens"] = json!(reference.as_array().map(Vec::len));
    request["temperature"] = json!(0);
    let request = GenerateRequest::from_json(&request.to_string()).expect("a request");
    block_on(loaded.generate(&request, &AbortFlag::new(), |_| {}))
        .expect("an answer")
        .ids
}
