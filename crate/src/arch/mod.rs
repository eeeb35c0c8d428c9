//! From config.json to a graph: one file per family, a table of architectures. Knows names and structure of
//! checkpoints, not how their weights are encoded.

mod bert;
pub mod blocks;
pub mod config;
mod embeddinggemma;
pub mod encoder;
mod llama;
mod modernbert;
pub mod moonshine;
mod nanocodec;
mod nomic;
mod phi3;
mod qwen;
pub mod speech;
pub mod vision;
mod whisper;

use crate::ir::{Builder, Graph};
use crate::{Error, Result};
use config::Config;
pub use encoder::{DenseLayer, Encoder, Head, Positions};
use serde_json::Value;
pub use speech::Speech;

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

type Hear = fn(Config<'_>) -> Result<Speech>;

/// Models that hear, by their `model_type`.
const HEARING: &[(&str, Hear)] = &[
    ("whisper", whisper::whisper),
    ("moonshine", moonshine::moonshine),
    ("moonshine_streaming", moonshine::moonshine_streaming),
];

/// The graphs of a model that hears; none where config.json names no such model.
///
/// # Errors
/// What the family refuses.
pub fn speech(config: &Value) -> Result<Option<Speech>> {
    let kind = Config(config).text("model_type").unwrap_or_default();
    HEARING.iter().find(|(name, _)| *name == kind).map(|(_, hear)| hear(Config(config))).transpose()
}

/// The graph of a codec's decoder, from the values of its codes to samples.
///
/// # Errors
/// `UnknownArchitecture`, or what the codec refuses.
pub fn codec(config: &Value) -> Result<Graph> {
    let config = Config(config);
    match config.text("model_type") {
        Some("nanocodec_decoder") => nanocodec::nanocodec(config),
        other => Err(Error::UnknownArchitecture {
            name: other.unwrap_or("a codec without model_type").into(),
            supported: "nanocodec_decoder".into(),
        }),
    }
}

type Encode = fn(Config<'_>, &mut Builder) -> Result<encoder::Body>;

/// Encoders by their `model_type`: what ends in ForMaskedLM and the like has the same body.
const ENCODERS: &[(&str, Encode, Option<encoder::Score>)] = &[
    ("bert", bert::bert, Some(bert::bert_score)),
    ("roberta", bert::roberta, Some(bert::roberta_score)),
    ("xlm-roberta", bert::roberta, Some(bert::roberta_score)),
    ("camembert", bert::roberta, Some(bert::roberta_score)),
    ("distilbert", bert::distilbert, Some(bert::distilbert_score)),
    ("mpnet", bert::mpnet, Some(bert::roberta_score)),
    ("modernbert", modernbert::modernbert, Some(modernbert::score)),
    ("nomic_bert", nomic::nomic_bert, None),
    ("gemma3_text", embeddinggemma::embeddinggemma, None),
];

/// Whether the model reads texts both ways and so cannot generate any.
pub fn is_encoder(config: &Value) -> bool {
    let config = Config(config);
    match config.text("model_type") {
        Some("gemma3_text") => config.flag_or("use_bidirectional_attention", false),
        kind => ENCODERS.iter().any(|e| Some(e.0) == kind),
    }
}

/// The graph of a model as an encoder of packed texts; decoders become one that looks back only.
///
/// # Errors
/// `UnknownArchitecture`, `UnsupportedOption` or `Config`, each naming what it refuses.
pub fn encoder(config: &Value, head: &Head) -> Result<Encoder> {
    let (value, config) = (config, Config(config));
    let kind = config.text("model_type").unwrap_or("");
    if is_encoder(value)
        && let Some((_, body, score)) = ENCODERS.iter().find(|e| e.0 == kind)
    {
        let mut b = Builder::new(&config.architecture());
        let body = body(config, &mut b)?;
        return encoder::with_head(config, b, &body, head, *score);
    }
    let Some((_, _, build)) = FAMILIES.iter().find(|f| f.1 == kind) else {
        let supported = ENCODERS.iter().map(|e| e.0).chain(FAMILIES.iter().map(|f| f.1)).collect::<Vec<_>>();
        return Err(Error::UnknownArchitecture { name: config.architecture(), supported: supported.join(", ") });
    };
    let mut encoder = encoder::of_decoder(config, build(config)?, head)?;
    encoder.graph.name = config.architecture();
    Ok(encoder)
}

/// Gives weights the names that the checkpoint has: with or without the prefix of a task's model (`bert.`, `model.`), and
/// `gamma` and `beta` of old files for a norm's gain and bias.
pub fn match_names<'a>(graph: &mut Graph, stored: impl Iterator<Item = &'a str>) {
    let known: std::collections::BTreeSet<&str> = stored.collect();
    let Some(first) = graph.weights.first().and_then(|w| w.parts.first()).map(|p| p.0.clone()) else { return };
    let inside =
        |long: &str, short: &str| long.strip_suffix(short).filter(|p| p.is_empty() || p.ends_with('.')).is_some();
    let own = known.iter().filter(|name| inside(name, &first) || inside(&first, name)).min_by_key(|name| name.len());
    let (add, drop) = match own {
        Some(name) if name.len() >= first.len() => (name[..name.len() - first.len()].to_string(), String::new()),
        Some(name) => (String::new(), first[..first.len() - name.len()].to_string()),
        None => return,
    };
    for (name, _) in graph.weights.iter_mut().flat_map(|w| w.parts.iter_mut()) {
        let moved = format!("{add}{}", name.strip_prefix(&drop).unwrap_or(name));
        let old = moved.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        if let Some(found) =
            [moved, old].into_iter().find(|n| !known.contains(name.as_str()) && known.contains(n.as_str()))
        {
            *name = found;
        }
    }
}

/// The graph of a model.
///
/// # Errors
/// `UnknownArchitecture`, `UnsupportedOption` or `Config`, each naming what it refuses.
pub fn graph(config: &Value) -> Result<Graph> {
    let whole = config;
    let config = vision::language(config);
    let config = Config(&config);
    let name = config.architecture();
    let by_name = FAMILIES.iter().find(|f| f.0 == name);
    // Files without `architectures` still have a model_type.
    let by_type = || FAMILIES.iter().find(|f| config.get("architectures").is_none() && f.1 == name);
    let Some((_, _, build)) = by_name.or_else(by_type) else {
        return Err(Error::UnknownArchitecture { name, supported: supported().collect::<Vec<_>>().join(", ") });
    };
    Ok(vision::with_pictures(build(config)?, whole))
}

/// The names of the architectures that can be loaded.
pub fn supported() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|f| f.0)
}
