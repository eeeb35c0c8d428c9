//! What families are called: names of tensors in GGUF files as llama.cpp's converter gives them, and in published
//! checkpoints; graphs of published configurations. JERBOA_CONFIGS names a folder with more of these.

use jerboa::arch;
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

/// The number of parameters of a published configuration whose names all are where they are looked for; or the refusal.
fn parameters(folder: &Path) -> Result<usize, String> {
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
    Ok(parts().map(|(_, numbers)| numbers).sum())
}

/// Millions of parameters of those that run.
const SIZES: &[(&str, usize)] = &[
    ("Qwen__Qwen3-0.6B", 596),
    ("Qwen__Qwen3-14B-MLX-4bit", 14_768),
    ("root-hypercube__qwen3-mlx-root", 1_720),
    ("microsoft__Phi-3-mini-4k-instruct", 3_821),
    ("microsoft__Phi-3-mini-128k-instruct", 3_821),
    ("microsoft__Phi-3-medium-4k-instruct", 13_960),
    ("microsoft__phi-2", 2_779),
    ("mistralai__Devstral-Small-2507", 23_572),
    ("Supabase__gte-small", 33),
];

#[test]
fn published_configurations_become_graphs_or_are_refused_by_name() {
    let mut folders: Vec<PathBuf> = Vec::new();
    for root in [Some(golden("configs")), std::env::var_os("JERBOA_CONFIGS").map(PathBuf::from)].into_iter().flatten() {
        let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
        folders.extend(entries.map(|e| e.expect("an entry").path()).filter(|p| p.join("config.json").exists()));
    }
    folders.sort();
    for folder in &folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let found = parameters(folder);
        match &found {
            Ok(count) => println!("{name}: {} million parameters", count / 1_000_000),
            Err(refusal) => println!("{name}: {refusal}"),
        }
        if let Some((_, millions)) = SIZES.iter().find(|s| s.0 == name) {
            assert_eq!(found.map(|n| n / 1_000_000), Ok(*millions), "{name}");
        }
    }
    let missing = SIZES.iter().find(|s| !folders.iter().any(|f| f.ends_with(s.0)));
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
