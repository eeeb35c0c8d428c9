//! From config.json to a graph: one file per family, a table of architectures. Knows names and structure of
//! checkpoints, not how their weights are encoded.

pub mod blocks;
pub mod config;
mod llama;
mod phi3;
mod qwen;

use crate::ir::Graph;
use crate::{Error, Result};
use config::Config;
use serde_json::Value;

type Build = fn(Config<'_>) -> Result<Graph>;

/// Architectures by their name in `architectures`, with their `model_type`.
const FAMILIES: &[(&str, &str, Build)] = &[
    ("LlamaForCausalLM", "llama", llama::llama),
    ("MistralForCausalLM", "mistral", llama::mistral),
    ("SmolLM3ForCausalLM", "smollm3", llama::smollm3),
    ("Qwen2ForCausalLM", "qwen2", qwen::qwen2),
    ("Qwen3ForCausalLM", "qwen3", qwen::qwen3),
    ("Phi3ForCausalLM", "phi3", phi3::phi3),
];

/// The graph of a model.
///
/// # Errors
/// `UnknownArchitecture`, `UnsupportedOption` or `Config`, each naming what it refuses.
pub fn graph(config: &Value) -> Result<Graph> {
    let config = Config(config);
    let name = config.architecture();
    let by_name = FAMILIES.iter().find(|f| f.0 == name);
    // Files without `architectures` still have a model_type.
    let by_type = || FAMILIES.iter().find(|f| config.get("architectures").is_none() && f.1 == name);
    let Some((_, _, build)) = by_name.or_else(by_type) else {
        return Err(Error::UnknownArchitecture { name, supported: supported().collect::<Vec<_>>().join(", ") });
    };
    build(config)
}

/// The names of the architectures that can be loaded.
pub fn supported() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|f| f.0)
}
