//! Tiny models of several families against transformers, and sessions of the bundled one.

use super::server::open;
use jerboa::arch::{Container, load_config};
use jerboa::exec::{DecodeLoop, DecodeParams, RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions, Gpu};
use safetensors::SafeTensors;
use serde_json::Value;
use wasm_bindgen_test::wasm_bindgen_test;

/// A golden model's configuration, weights and expected values.
macro_rules! golden {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!(
                "../../../tests/golden/models/",
                $name,
                "/config.json"
            )) as &[u8],
            include_bytes!(concat!(
                "../../../tests/golden/models/",
                $name,
                "/model.safetensors"
            )) as &[u8],
            include_bytes!(concat!(
                "../../../tests/golden/models/",
                $name,
                "/golden.safetensors"
            )) as &[u8],
        )
    };
}

async fn load(name: &str, config: &[u8], weights: &[u8]) -> Session {
    let files = [("config.json", config), ("model.safetensors", weights)];
    let source = open(name, &files, false).await;
    let config = serde_json::from_slice(config).expect("JSON");
    let config = load_config(config, Container::HuggingFace);
    let gpu = Gpu::open(&DeviceOptions::default()).await.expect("WebGPU");
    let options = RunOptions {
        max_context: Some(256),
        ..RunOptions::default()
    };
    Session::load(gpu, &source, config, options)
        .await
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Generates greedily after a prompt.
async fn greedy(session: &mut Session, ids: &[u32], count: usize) -> Vec<u32> {
    session.prefill(ids, 0).await.expect("prefill");
    let params = DecodeParams::greedy(ids.len(), count);
    let mut decode = DecodeLoop::start(session, params).expect("start");
    let mut tokens = Vec::new();
    loop {
        let next = decode.next(session).await.expect("decode");
        if next.is_empty() {
            break;
        }
        tokens.extend(next);
    }
    decode.finish(session).await.expect("finish");
    tokens
}

fn ids(golden: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let data = golden.tensor(name).expect("a tensor").data();
    let values: Vec<i64> = bytemuck::pod_collect_to_vec(data);
    values.into_iter().map(|id| id as u32).collect()
}

/// Mamba-2 layers; ternary weights with 8-bit activations. tests/page and tests/firefox compare more.
#[wasm_bindgen_test]
async fn logits_and_greedy_ids_equal_transformers() {
    for (name, config, weights, golden) in [golden!("granite_hybrid"), golden!("bitnet_packed")] {
        let golden = SafeTensors::deserialize(golden).expect("a safetensors file");
        let mut session = load(name, config, weights).await;
        let prompt = ids(&golden, "input_ids");
        let found = session.all_rows(&prompt, false).await.expect("logits");
        let logits = golden.tensor("logits").expect("a tensor").data();
        let expected: Vec<f32> = bytemuck::pod_collect_to_vec(logits);
        assert_eq!(found.len(), expected.len(), "{name}");
        let sum =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v * v)).sum::<f64>();
        let error = sum(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let error = (error / sum(&mut expected.iter().copied())).sqrt();
        assert!(error < 1e-2, "{name}: {error:e}");
        let greedy_ids = ids(&golden, "greedy");
        assert_eq!(
            greedy(&mut session, &prompt, greedy_ids.len()).await,
            greedy_ids,
            "{name}"
        );
    }
}

#[wasm_bindgen_test]
async fn sessions_of_the_bundled_model_continue_their_own_sequences() {
    let golden: Value = serde_json::from_str(include_str!(
        "../../../tests/golden/stories260K/golden.json"
    ))
    .expect("JSON");
    let all: Vec<u32> = serde_json::from_value(golden["ids"].clone()).expect("ids");
    let prompt: Vec<u32> = serde_json::from_value(golden["prompt_ids"].clone()).expect("ids");
    let mut first = load(
        "stories",
        include_bytes!("../../../www/public/models/stories260K/config.json"),
        include_bytes!("../../../www/public/models/stories260K/model.safetensors"),
    )
    .await;
    let mut second = Session::new(&first.model().clone()).expect("a session");
    let begin = prompt.len();
    assert_eq!(
        greedy(&mut first, &prompt, 30).await,
        all[begin..begin + 30]
    );
    // The other sequence starts in the middle and does not disturb the first.
    let later = &all[..begin + 10];
    assert_eq!(
        greedy(&mut second, later, 20).await,
        all[begin + 10..begin + 30]
    );
    assert_eq!(
        greedy(&mut first, &all[..begin + 30], 20).await,
        all[begin + 30..begin + 50]
    );
}
