//! Tensor names of families: in GGUF files of llama.cpp's converter, and in checkpoints of vision
//! models.

use jerboa::arch::{self, LoadConfig};
use jerboa::format::{Checkpoint, CheckpointFile, Dtype, TensorInfo, detect};
use jerboa_tests::golden::golden;
use serde_json::Value;
use std::path::Path;

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// tests/golden/scripts/make_gguf_names.py; BitNet's names include those that its authors'
/// converter adds.
#[test]
fn gguf_names_are_those_of_the_converter() {
    for (model, case) in json(&golden("gguf_names.json"))
        .as_object()
        .expect("models")
    {
        let config = LoadConfig::from(json(&golden(&format!("models/{model}/config.json"))));
        let name = case["architecture"].as_str().expect("a name");
        let family = arch::families()
            .flat_map(|f| f.gguf)
            .find(|a| a.name == name);
        let family = family.unwrap_or_else(|| panic!("{name} is not mapped"));
        assert_eq!(config["model_type"], family.model_type, "{model}");
        for (gguf, original) in case["names"].as_object().expect("names") {
            let original = arch::canonical_name(&config, original.as_str().expect("a name"));
            let found = family
                .original_name(gguf)
                .unwrap_or_else(|| panic!("{model}: {gguf} has no name"));
            // A model without a head has no prefix.
            assert_eq!(
                found.strip_prefix("model.").unwrap_or(&found),
                original.trim_start_matches("model."),
                "{model}"
            );
        }
    }
}

/// Files of a vision model have other names for the text model.
#[test]
fn nested_text_models_use_standalone_names() {
    let config = serde_json::json!({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 8}});
    let config = LoadConfig::from(config);
    for (published, canonical) in [
        (
            "language_model.model.layers.3.mlp.up_proj.weight",
            "model.layers.3.mlp.up_proj.weight",
        ),
        (
            "model.language_model.embed_tokens.weight",
            "model.embed_tokens.weight",
        ),
        ("language_model.lm_head.weight", "lm_head.weight"),
        (
            "model.vision_tower.patch.weight",
            "model.vision_tower.patch.weight",
        ),
    ] {
        assert_eq!(arch::canonical_name(&config, published), canonical);
    }
    let text = &config;
    assert_eq!(
        (&text["hidden_size"], &text["model_type"]),
        (&8.into(), &"gemma3".into())
    );
}

/// A layer's experts are stored in one tensor under three names; graphs have separate experts.
#[test]
fn stacked_experts_have_the_names_of_single_ones() {
    for (stored, single) in [
        (
            "m.mlp.switch_mlp.up_proj.weight",
            "m.mlp.experts.1.up_proj.weight",
        ),
        (
            "m.experts.switch_glu.up_proj.weight",
            "m.experts.1.up_proj.weight",
        ),
        ("m.experts.gate_up_proj", "m.experts.1.gate_up_proj.weight"),
    ] {
        let mut checkpoint = Checkpoint::default();
        let name = stored.to_string();
        let shape = vec![2, 3, 8];

        let info = TensorInfo {
            name: name.clone(),
            dtype: Dtype::BF16,
            shape,
            file: 0,
            range: 0..96,
        };
        checkpoint.tensors.insert(name, info);
        checkpoint.files.push(CheckpointFile {
            name: "x".into(),
            size: 96,
        });
        let weights = detect(&Value::Null, &checkpoint, &jerboa::SortedMap::new());
        let found = weights
            .iter()
            .find(|w| w.name == single)
            .unwrap_or_else(|| panic!("{stored}"));
        assert_eq!(found.shape, [3, 8], "{stored}");
    }
}
