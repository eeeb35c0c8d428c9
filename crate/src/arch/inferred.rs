//! The family of a checkpoint whose config.json names none, by the names of its tensors. Knows no structure of any family.

use super::config::Config;
use super::encoder::Head;
use super::{HEARING, canonical, encoder, families, graph, is_encoder, match_names, speech};
use crate::Result;
use crate::ir::Graph;
use crate::util::map::SortedSet;
use serde_json::{Value, json};

/// Model types whose tensors are called as another family's, with a field that their files alone have.
const SIGNS: [(&str, &str); 4] = [
    ("mistral", "sliding_window"),
    ("granite", "logits_scaling"),
    ("smollm3", "no_rope_layer_interval"),
    ("ernie4_5", "use_bias"),
];

/// Whether a configuration names its architecture.
pub fn is_named(config: &Value) -> bool {
    Config(config).text("model_type").is_some() || config.get("architectures").is_some_and(|a| a.get(0).is_some())
}

/// The configuration with the names of the first family that has just these tensors; one that its fields speak for comes
/// before those that merely fit.
pub fn inferred(config: &Value, names: &[&str]) -> Option<Value> {
    let named = |model_type: &str, class: Option<&&str>| {
        let mut named = config.clone();
        named["model_type"] = model_type.into();
        if let Some(class) = class {
            named["architectures"] = json!([class]);
        }
        named
    };
    let of_families = families().filter_map(|f| Some(named(f.model_types.first()?, f.classes.first())));
    let all: Vec<Value> = of_families.chain(HEARING.iter().map(|(kind, _)| named(kind, None))).collect();
    let fits: Vec<Value> = all.into_iter().filter(|named| fit(named, names)).collect();
    let signed = |named: &&Value| {
        let sign = SIGNS.iter().find(|(kind, _)| named["model_type"] == *kind);
        sign.map(|(_, field)| config.get(*field).is_some())
    };
    let spoken = fits.iter().find(|named| signed(named) == Some(true));
    spoken.or_else(|| fits.iter().find(|named| signed(named).is_none())).cloned()
}

/// Whether a model of this configuration has these tensors and no other ones in its layers.
fn fit(config: &Value, names: &[&str]) -> bool {
    let Ok(graphs) = graphs(config, names) else { return false };
    let stored: SortedSet<String> = names.iter().map(|name| canonical(config, name)).collect();
    let parts = || graphs.iter().flat_map(|g| g.weights.iter().flat_map(|w| w.parts.iter().map(|p| p.0.as_str())));
    let wanted: SortedSet<&str> = parts().collect();
    // A head that is not stored is the embedding.
    parts().all(|name| stored.contains(name) || name == "lm_head.weight")
        && stored.iter().all(|name| !name.contains("layer") || name.contains("inv_freq") || wanted.contains(name.as_str()))
}

fn graphs(config: &Value, names: &[&str]) -> Result<Vec<Graph>> {
    if let Some(speech) = speech(config)? {
        return Ok(vec![speech.encoder, speech.keys, speech.values, speech.decoder]);
    }
    if !is_encoder(config) {
        return Ok(vec![graph(config)?]);
    }
    let mut graph = encoder(config, &Head::Hidden)?.graph;
    match_names(&mut graph, names.iter().copied());
    Ok(vec![graph])
}
