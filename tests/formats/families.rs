//! What families are called: names of tensors in GGUF files as llama.cpp's converter gives them, and in published
//! checkpoints; graphs of published configurations. JERBOA_CONFIGS names a folder with more of these.

use jerboa::arch;
use jerboa::format::quantize;
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa::plan::{StatePlan, WeightPlan, plan_states, plan_weights};
use jerboa_tests::golden::golden;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// tests/golden/scripts/make_gguf_names.py; what the converter of BitNet's authors adds to llama.cpp's names is theirs.
#[test]
fn gguf_names_are_those_of_the_converter() {
    for (model, case) in json(&golden("gguf_names.json")).as_object().expect("models") {
        let config = json(&golden(&format!("models/{model}/config.json")));
        let name = case["architecture"].as_str().expect("a name");
        let family = arch::families().flat_map(|f| f.gguf).find(|a| a.name == name);
        let family = family.unwrap_or_else(|| panic!("{name} is not mapped"));
        assert_eq!(config["model_type"], family.model_type, "{model}");
        for (gguf, original) in case["names"].as_object().expect("names") {
            let original = arch::canonical(&config, original.as_str().expect("a name"));
            let found = family.original(gguf).unwrap_or_else(|| panic!("{model}: {gguf} has no name"));
            // A body without a head has no prefix.
            assert_eq!(
                found.strip_prefix("model.").unwrap_or(&found),
                original.trim_start_matches("model."),
                "{model}"
            );
        }
    }
}

/// A tensor's name with `{n}` for each number that stands alone.
fn pattern(name: &str) -> String {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.split('.').map(|part| if digits(part) { "{n}" } else { part }).collect::<Vec<_>>().join(".")
}

/// Tensors of the checkpoint by their canonical pattern.
fn stored(folder: &Path, config: &Value) -> Option<BTreeMap<String, usize>> {
    let (patterns, index) = (folder.join("tensors.json"), folder.join("model.safetensors.index.json"));
    let mut all = BTreeMap::new();
    if patterns.exists() {
        for (name, count) in json(&patterns).as_object()? {
            *all.entry(arch::canonical(config, name)).or_default() += count.as_u64()? as usize;
        }
    } else if index.exists() {
        for name in json(&index)["weight_map"].as_object()?.keys() {
            *all.entry(pattern(&arch::canonical(config, name))).or_default() += 1;
        }
    } else {
        return None;
    }
    Some(all)
}

/// What a published configuration comes to.
struct Found {
    /// Parameters.
    parameters: usize,
    /// Bytes of the weights at 4 bits.
    weights: u64,
    /// Bytes of what a sequence of 32,768 tokens keeps, in halves.
    states: u64,
}

/// The sizes of a published configuration whose names all are where they are looked for; or the refusal.
fn sizes(folder: &Path) -> Result<Found, String> {
    let config = json(&folder.join("config.json"));
    let is_encoder = arch::is_encoder(&config);
    let graph =
        if is_encoder { arch::encoder(&config, &arch::Head::Hidden).map(|e| e.graph) } else { arch::graph(&config) };
    let graph = graph.map_err(|e| {
        assert!(["unknown_architecture", "unsupported_option", "config"].contains(&e.code()), "{e}");
        e.to_string()
    })?;
    let parts = || graph.weights.iter().flat_map(|w| w.parts.iter().map(|p| (&p.0, p.1 * w.cols)));
    if let Some(stored) = stored(folder, &config) {
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        parts().for_each(|(name, _)| *wanted.entry(pattern(name)).or_default() += 1);
        // A head that is not stored is the embedding.
        wanted.retain(|name, _| name != "lm_head.weight" || stored.contains_key(name));
        for (name, count) in &wanted {
            assert_eq!(stored.get(name), Some(count), "{}: {name}", folder.display());
        }
        let text = |name: &str| name.starts_with("model.layers.") && name.ends_with("weight");
        for name in stored.keys().filter(|name| text(name)) {
            assert!(wanted.contains_key(name), "{}: nobody reads {name}", folder.display());
        }
    }
    let four_bits = |name: &str| quantize::layout(if graph.kind_of(name) == WeightKind::Table { 8 } else { 4 });
    let weights = plan_weights(&graph, &four_bits, 4 << 30).expect("a plan").values().map(WeightPlan::bytes).sum();
    let states = plan_states(&graph, Kv::F16, 32_768, 512).iter().map(StatePlan::bytes).sum();
    Ok(Found { parameters: parts().map(|(_, numbers)| numbers).sum(), weights, states })
}

/// Of those that run: millions of parameters, MB of weights at 4 bits (tables at 8), MB kept of 32,768 tokens in halves.
const SIZES: &[(&str, [u64; 3])] = &[
    ("Qwen__Qwen3-0.6B", [596, 450, 3758]),
    ("Qwen__Qwen3-14B-MLX-4bit", [14_768, 10_009, 5368]),
    ("root-hypercube__qwen3-mlx-root", [1720, 1231, 3758]),
    ("Qwen__Qwen3-30B-A3B", [30_532, 19_394, 3221]),
    ("Qwen__Qwen3.5-27B", [26_895, 17_454, 2304]),
    ("Qwen__Qwen3.5-35B-A3B", [34_660, 21_921, 736]),
    ("microsoft__Phi-3-mini-4k-instruct", [3821, 2487, 1006]),
    ("microsoft__Phi-3-mini-128k-instruct", [3821, 2487, 12_884]),
    ("microsoft__Phi-3-medium-4k-instruct", [13_960, 8890, 524]),
    ("microsoft__phi-2", [2779, 1871, 10_737]),
    ("mistralai__Devstral-Small-2507", [23_572, 15_405, 5368]),
    ("mistralai__Mixtral-8x7B-v0.1", [46_702, 29_321, 4294]),
    ("openai__gpt-oss-20b", [20_914, 13_674, 821]),
    ("deepseek-ai__DeepSeek-V3", [671_026, 420_321, 196_494]),
    ("Supabase__gte-small", [33, 26, 0]),
    ("allenai__OLMoE-1B-7B-0125-Instruct", [6919, 4427, 4294]),
    ("allenai__Olmo-3-7B-Think", [7298, 4973, 6106]),
    ("baidu__ERNIE-4.5-21B-A3B-PT", [21_825, 13_773, 1879]),
    ("google__gemma-4-26B-A4B", [25_233, 16_142, 985]),
    ("ibm-granite__granite-3.1-1b-a400m-instruct", [1334, 859, 1610]),
    ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", [31_577, 19_915, 251]),
    ("tiiuae__Falcon-H1-0.5B-Base", [521, 344, 633]),
    ("zai-org__GLM-4.7-Flash", [29_943, 19_032, 31_541]),
];

/// Those that are refused, and what is said of them.
const REFUSED: &[(&str, &str)] = &[
    ("zai-org__GLM-5.1", "'GlmMoeDsaForCausalLM' is not supported"),
];

#[test]
fn published_configurations_become_graphs_or_are_refused_by_name() {
    let mut folders: Vec<PathBuf> = Vec::new();
    for root in [Some(golden("configs")), std::env::var_os("JERBOA_CONFIGS").map(PathBuf::from)].into_iter().flatten() {
        let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
        folders.extend(entries.map(|e| e.expect("an entry").path()).filter(|p| p.join("config.json").exists()));
    }
    folders.sort();
    let mut wrong = Vec::new();
    for folder in &folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let (expected, refused) = (SIZES.iter().find(|s| s.0 == name), REFUSED.iter().find(|r| r.0 == name));
        match sizes(folder) {
            Ok(found) => {
                let found = [found.parameters as u64, found.weights, found.states].map(|n| n / 1_000_000);
                println!("{name}: {found:?} million parameters, MB of weights, MB of states");
                if expected.is_some_and(|e| e.1 != found) || refused.is_some() {
                    wrong.push(format!("{name}: {found:?}"));
                }
            }
            Err(refusal) => {
                println!("{name}: {refusal}");
                if expected.is_some() || refused.is_some_and(|r| !refusal.contains(r.1)) {
                    wrong.push(format!("{name}: {refusal}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut listed = SIZES.iter().map(|s| s.0).chain(REFUSED.iter().map(|r| r.0));
    let missing = listed.find(|name| !folders.iter().any(|f| f.ends_with(name)));
    assert_eq!(missing, None, "a configuration is not there");
}

/// The files of a family that sees hold the text model under other names.
#[test]
fn nested_text_models_have_the_names_of_those_alone() {
    let config = serde_json::json!({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 8}});
    for (published, canonical) in [
        ("language_model.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.vision_tower.patch.weight", "model.vision_tower.patch.weight"),
    ] {
        assert_eq!(arch::canonical(&config, published), canonical);
    }
    let text = arch::text_config(&config);
    assert_eq!((&text["hidden_size"], &text["model_type"]), (&8.into(), &"gemma3".into()));
}
