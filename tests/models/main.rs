//! Dense families against transformers: logits in prefill, in chunks and token by token, greedy ids, every KV mode.

mod hybrid;
mod sampling;
mod sessions;
mod speculation;
mod tuning;
mod variants;

use jerboa::exec::{Overrides, RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions};
use jerboa::kernels::attention::Kv;
use jerboa::plan::Fusions;
use jerboa_tests::golden::{Golden, golden, greedy, load};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;

/// Folder, and the relative L2 distance that its stored precision allows.
const MODELS: &[(&str, f64)] = &[
    ("llama", 2e-4),
    ("llama3", 2e-4),
    ("llama_linear", 2e-4),
    ("llama_dynamic", 2e-4),
    ("llama_yarn", 2e-4),
    ("llama_bias", 2e-4),
    ("llama_sharded", 2e-4),
    ("mistral", 2e-4),
    ("smollm3", 2e-4),
    ("qwen2", 2e-4),
    ("qwen2_untied", 2e-4),
    ("qwen3", 2e-4),
    ("qwen3_f16", 2e-4),
    ("phi3", 2e-4),
    ("phi3_longrope", 2e-4),
    ("phi4_mini", 2e-4),
    ("gemma", 2e-4),
    ("gemma2", 2e-4),
    ("gemma3", 2e-4),
    ("gemma4", 2e-4),
    ("gemma4_kv", 2e-4),
    ("granite", 2e-4),
    ("olmo2", 2e-4),
    ("exaone4", 2e-4),
    ("glm4", 2e-4),
    ("ernie4_5", 2e-4),
    ("helium", 2e-4),
    ("hunyuan_dense", 2e-4),
    ("starcoder2", 2e-4),
    ("phi2", 2e-4),
    ("gpt_neox", 2e-4),
    ("gpt2", 2e-4),
    ("lfm2", 2e-4),
    ("lfm2_bias", 2e-4),
    ("qwen3_5", 2e-4),
    ("qwen3_5_odd", 2e-4),
    ("granite_hybrid", 2e-4),
    ("nemotron_h", 2e-4),
    // What is rounded to 8 bits turns a last bit into a whole step now and then.
    ("bitnet", 1e-2),
    ("bitnet_packed", 1e-2),
    ("llama_bitlinear", 1e-2),
];

fn exact() -> DeviceOptions {
    DeviceOptions { f16: false, ..DeviceOptions::default() }
}

fn with_kv(kv: Kv) -> RunOptions {
    RunOptions {
        max_context: Some(256),
        overrides: Overrides { kv: Some(kv), ..Overrides::default() },
        ..RunOptions::default()
    }
}

/// A model of tests/golden/models, or of another folder of tests/golden.
fn start(name: &str, device: &DeviceOptions, options: RunOptions) -> (Session, Golden) {
    let models = format!("models/{name}");
    let folder = golden(if name.contains('/') { name } else { &models });
    let model = load(open(device), &folder, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    (model, Golden::read(&folder.join("golden.safetensors")))
}

/// Logits of each token, run one after another with the cache.
fn stepwise(model: &mut Session, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    for (pos, id) in ids.iter().enumerate() {
        model.step(*id, pos).expect("step");
        all.extend(block_on(model.logits()).expect("logits"));
    }
    all
}

#[test]
fn logits_and_greedy_ids_equal_the_reference_in_f32() {
    for (name, limit) in MODELS {
        let (mut model, golden) = start(name, &exact(), with_kv(Kv::F32));
        let ids = golden.ids("input_ids");
        let expected = golden.floats("logits");
        let found = block_on(model.every_row(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_l2(&found, &expected);
        assert!(error < *limit, "{name}: prefill {error:e}");
        assert_eq!(greedy(&mut model, &ids, 24), golden.ids("greedy"), "{name}");
        // The last row alone, as generation asks for it.
        block_on(model.prefill(&ids, 0)).expect("prefill");
        let last = block_on(model.logits()).expect("logits");
        let error = relative_l2(&last, &expected[expected.len() - last.len()..]);
        assert!(error < *limit, "{name}: last row {error:e}");
        if !model.graph.ropes.iter().any(|r| r.depends_on_length()) {
            let error = relative_l2(&stepwise(&mut model, &ids), &expected);
            assert!(error < *limit, "{name}: token by token {error:e}");
        }
    }
}

#[test]
fn chunks_kv_modes_and_features_do_not_change_the_answer() {
    for name in ["llama_bias", "mistral", "smollm3", "qwen2", "qwen3", "gemma3", "gpt2"] {
        for (kv, device, options, limit) in [
            (Kv::F32, exact(), RunOptions { chunk: 7, ..RunOptions::default() }, 2e-4),
            (Kv::F32, DeviceOptions { subgroups: false, ..exact() }, RunOptions::default(), 2e-4),
            (Kv::Packed, exact(), RunOptions::default(), 1e-2),
            (Kv::F16, DeviceOptions::default(), RunOptions { chunk: 16, ..RunOptions::default() }, 1e-2),
            (Kv::F32, exact(), RunOptions { fusions: Fusions::NONE, ..RunOptions::default() }, 2e-4),
        ] {
            let options = RunOptions { overrides: Overrides { kv: Some(kv), ..Overrides::default() }, ..options };
            let (mut model, golden) = start(name, &device, options);
            let ids = golden.ids("input_ids");
            let expected = golden.floats("logits");
            let error = relative_l2(&block_on(model.every_row(&ids, false)).expect("logits"), &expected);
            assert!(error < limit, "{name} {kv:?}: {error:e}");
            let error = relative_l2(&stepwise(&mut model, &ids), &expected);
            assert!(error < limit, "{name} {kv:?}: token by token {error:e}");
            assert_eq!(greedy(&mut model, &ids, 24), golden.ids("greedy"), "{name} {kv:?}");
        }
    }
}

#[test]
fn norms_and_rounding_apart_give_the_same() {
    let options = RunOptions { fusions: Fusions::NONE, ..with_kv(Kv::F32) };
    let (mut model, golden) = start("bitnet_packed", &exact(), options);
    let ids = golden.ids("input_ids");
    let error = relative_l2(&block_on(model.every_row(&ids, false)).expect("logits"), &golden.floats("logits"));
    assert!(error < 1e-2, "{error:e}");
}

#[test]
fn short_prompts_and_the_rest_of_long_ones_have_a_step_of_their_own() {
    for name in ["llama_bias", "qwen3", "quant/qwen3_gptq"] {
        let options = RunOptions { short: Some(true), chunk: 40, ..with_kv(Kv::F32) };
        let (mut model, golden) = start(name, &exact(), options);
        let (ids, before) = (golden.ids("input_ids"), model.bytes().activations);
        let expected = golden.floats("logits");
        model.prepare_short().expect("a plan");
        for rows in [2, 16, 32].into_iter().filter(|rows| *rows <= ids.len()) {
            block_on(model.prefill(&ids[..rows], 0)).expect("prefill");
            let last = block_on(model.logits()).expect("logits");
            let error = relative_l2(&last, &expected[(rows - 1) * last.len()..rows * last.len()]);
            assert!(error < 2e-4, "{name}, {rows} rows: {error:e}");
        }
        assert!(model.bytes().activations > before, "{name}: there is no such step");
        // 40 tokens, then 21.
        let long: Vec<u32> = ids.iter().copied().cycle().take(61).collect();
        block_on(model.prefill(&long, 0)).expect("prefill");
        let last = block_on(model.logits()).expect("logits");
        let each = stepwise(&mut model, &long);
        let error = relative_l2(&last, &each[each.len() - last.len()..]);
        assert!(error < 2e-4, "{name}, a long one: {error:e}");
        // Where it is not asked for, a software adapter, which compiles slowly, has none.
        let (mut model, _) = start(name, &exact(), with_kv(Kv::F32));
        let before = model.bytes().activations;
        model.prepare_short().expect("no plan");
        block_on(model.prefill(&ids, 0)).expect("prefill");
        assert_eq!(model.bytes().activations > before, !model.gpu.caps().software, "{name}");
    }
}

#[test]
fn stories260k_continues_as_the_reference_for_200_tokens() {
    let folder = golden("../../www/public/models/stories260K");
    let mut model = load(open(&DeviceOptions::default()), &folder, with_kv(Kv::F32)).expect("stories260K");
    let text = std::fs::read_to_string(golden("stories260K/golden.json")).expect("golden.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("json");
    let all: Vec<u32> = json["ids"].as_array().expect("ids").iter().map(|v| v.as_u64().expect("id") as u32).collect();
    let prompt = all.len() - 200;
    assert_eq!(greedy(&mut model, &all[..prompt], 200), all[prompt..]);
}
