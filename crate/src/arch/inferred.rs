//! Infers the family of a checkpoint from its tensor names if config.json names none.

use super::config::Config;
use super::config::LoadConfig;
use super::encoder::EncoderHead;
use super::{
    SPEECH_MODELS, canonical_name, encoder_graph, families, graph, is_encoder, match_names,
    speech_graphs,
};
use crate::Result;
use crate::ir::{Graph, WeightKind};
use crate::util::map::{SortedMap, SortedSet};
use serde_json::{Value, json};

/// Tests whether a configuration's fields indicate a model type.
type FieldTest = fn(Config<'_>) -> bool;

/// Model types with the same tensor names as another family, and the fields that only their files
/// have.
const FIELD_TESTS: [(&str, FieldTest); 8] = [
    ("mistral", |config| config.get("sliding_window").is_some()),
    ("granite", |config| config.get("logits_scaling").is_some()),
    ("smollm3", |config| {
        config
            .get("no_rope_layers")
            .or(config.get("no_rope_layer_interval"))
            .is_some()
    }),
    ("ernie4_5", |config| config.get("use_bias").is_some()),
    ("gemma", |config| {
        config.get("hidden_activation").is_some()
            || config
                .string("hidden_act")
                .is_some_and(|act| act.starts_with("gelu"))
    }),
    ("olmo3", |config| config.get("sliding_window").is_some()),
    ("glm4_moe_lite", |config| {
        config.get("mlp_layer_types").is_some()
    }),
    ("roberta", |config| {
        config.get("pad_token_id").and_then(Value::as_u64) == Some(1)
    }),
];

/// Returns whether a configuration names its architecture.
pub fn is_named(config: &Value) -> bool {
    config.get("model_type").is_some_and(Value::is_string)
        || config
            .get("architectures")
            .is_some_and(|a| a.get(0).is_some())
}

/// Names the first family whose tensors match in name and number of elements; returns the completed
/// configuration. A family that the fields indicate wins over one that only matches.
pub fn infer_family(config: &Value, tensors: &[(&str, usize)]) -> Option<Value> {
    let named = |model_type: &str, class: Option<&&str>| {
        let mut named = config.clone();
        named["model_type"] = model_type.into();
        if let Some(class) = class {
            named["architectures"] = json!([class]);
        }
        named
    };
    let of_families =
        families().filter_map(|f| Some(named(f.model_types.first()?, f.classes.first())));
    let all: Vec<Value> = of_families
        .chain(SPEECH_MODELS.iter().map(|(kind, _)| named(kind, None)))
        .collect();
    let unnamed = LoadConfig::from(config);
    let signed = |named: &Value| {
        let sign = FIELD_TESTS
            .iter()
            .find(|(kind, _)| named["model_type"] == *kind);
        sign.map(|(_, sign)| sign(unnamed.fields()))
    };
    let fits = |wanted: Option<bool>| {
        all.iter()
            .find(|named| signed(named) == wanted && tensors_match(named, tensors))
            .cloned()
    };
    fits(Some(true)).or_else(|| fits(None))
}

/// Returns whether a model of this configuration has exactly these tensors in its layers.
fn tensors_match(config: &Value, tensors: &[(&str, usize)]) -> bool {
    let mut config = LoadConfig::from(config);
    config.set_tensor_layout(tensors.iter().map(|(name, _)| *name));
    let config = &config;
    let stored: SortedMap<String, usize> = tensors
        .iter()
        .map(|(name, size)| (canonical_name(config, name), *size))
        .collect();
    let Ok(graphs) = all_graphs(config, &stored) else {
        return false;
    };
    let mut wanted: SortedSet<&str> = SortedSet::new();
    for weight in graphs.iter().flat_map(|graph| &graph.weights) {
        for (name, rows) in &weight.parts {
            wanted.insert(name);
            // Matrices may be packed, so only vector sizes count. Without `lm_head` the head is the
            // embedding table.

            if !stored
                .get(name)
                .map_or(name == "lm_head.weight", |size: &usize| {
                    weight.kind != WeightKind::Vector || *size == *rows
                })
            {
                return false;
            }
        }
    }
    let known =
        |name: &str| !name.contains("layer") || name.contains("inv_freq") || wanted.contains(name);
    stored.keys().all(|name| known(name))
}

fn all_graphs(config: &LoadConfig, stored: &SortedMap<String, usize>) -> Result<Vec<Graph>> {
    if let Some(speech) = speech_graphs(config)? {
        return Ok(vec![
            speech.encoder,
            speech.keys,
            speech.values,
            speech.decoder,
        ]);
    }
    let mut graph = match is_encoder(config) {
        true => encoder_graph(config, &EncoderHead::Hidden)?.graph,
        false => graph(config)?,
    };
    // A checkpoint of the body alone has no prefix.
    match_names(&mut graph, stored.keys().map(String::as_str));
    Ok(vec![graph])
}
