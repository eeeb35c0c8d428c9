//! Builds a model's graph from its config.json: one file per model family, and the table of all
//! families. Covers names and structure of checkpoints in every container, but not how their
//! weights are encoded.

mod bert;
mod bitnet;
pub mod blocks;
mod clip;
pub mod config;
mod deepseek;
mod direction;
pub mod encoder;
mod ernie;
mod exaone;
mod falcon_h1;
pub mod family;
mod gemma;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod gpt2;
mod gpt_oss;
mod granite;
mod hunyuan;
pub mod hybrid;
mod inferred;
mod kani;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mamba2;
mod mixtral;
mod modernbert;
pub mod moonshine;
mod nanocodec;
mod neox;
mod nomic;
mod olmo;
mod phi;
mod phi3;
mod qwen;
mod qwen3_5;
pub mod speech;
pub mod standard;
mod starcoder;
mod t5;
pub mod vision;
mod whisper;

use crate::format::Checkpoint;
use crate::ir::{Graph, GraphBuilder, Pooling};
use crate::util::map::SortedSet;
use crate::{Error, Result};
use config::Config;
pub use config::{Container, LoadConfig};
pub use encoder::{DenseLayer, EncoderGraph, EncoderHead, HeadlessEncoder, PositionScheme};
pub use family::{
    Family, JointEmbedding, add_body_prefix, canonical_name, find_gguf, find_mlc, image_mask,
    joint_embedding, load_config, max_positions, mmproj_formats, mrope_sections, row_order,
    sanitize, scalar_tensors, set_row_orders, unknown_architecture, vision_encoder,
};
pub use inferred::{infer_family, is_named};
pub use kani::SPEAKER_PROJECTION;
use serde_json::Value;
pub use speech::SpeechGraphs;

/// All families. Architecture lookup goes from first to last.
pub static FAMILIES: &[&[Family]] = &[
    llama::FAMILIES,
    qwen::FAMILIES,
    phi3::FAMILIES,
    gemma::FAMILIES,
    gemma3::FAMILIES,
    gemma3n::FAMILIES,
    gemma4::FAMILIES,
    phi::FAMILIES,
    granite::FAMILIES,
    lfm2::FAMILIES,
    lfm2_moe::FAMILIES,
    qwen3_5::FAMILIES,
    mamba2::FAMILIES,
    falcon_h1::FAMILIES,
    olmo::FAMILIES,
    exaone::FAMILIES,
    glm::FAMILIES,
    ernie::FAMILIES,
    hunyuan::FAMILIES,
    starcoder::FAMILIES,
    neox::FAMILIES,
    gpt2::FAMILIES,
    bitnet::FAMILIES,
    mixtral::FAMILIES,
    gpt_oss::FAMILIES,
    deepseek::FAMILIES,
    bert::FAMILIES,
    clip::FAMILIES,
    modernbert::FAMILIES,
    nomic::FAMILIES,
    t5::FAMILIES,
];

type DecoderBuilder = fn(Config<'_>) -> Result<Graph>;

type SpeechBuilder = fn(Config<'_>) -> Result<SpeechGraphs>;

/// Speech-to-text models, by their `model_type`.
const SPEECH_MODELS: &[(&str, SpeechBuilder)] = &[
    ("whisper", whisper::whisper),
    ("moonshine", moonshine::moonshine),
    ("moonshine_streaming", moonshine::moonshine_streaming),
];

/// Returns whether the model is a speech-to-text model.
pub fn is_speech_to_text(config: &LoadConfig) -> bool {
    SPEECH_MODELS
        .iter()
        .any(|(name, _)| *name == config.model_type())
}

/// Builds the graphs of a speech-to-text model; `None` for any other `model_type`.
///
/// # Errors
/// `Config` or `UnsupportedOption` from the family.
pub fn speech_graphs(config: &LoadConfig) -> Result<Option<SpeechGraphs>> {
    SPEECH_MODELS
        .iter()
        .find(|(name, _)| *name == config.model_type())
        .map(|(_, build): &(&str, SpeechBuilder)| build(config.fields()))
        .transpose()
}

/// Builds the graph of an audio codec's decoder, from dequantized codes to samples.
///
/// # Errors
/// `UnknownArchitecture` for another codec; `Config` or `UnsupportedOption` from the codec.
pub fn codec_graph(config: &LoadConfig) -> Result<Graph> {
    let config = config.fields();
    match config.string("model_type") {
        Some(CODEC_MODEL_TYPE) => nanocodec::nanocodec(config),
        other => Err(unknown_architecture(
            other.unwrap_or("a codec without model_type"),
            [CODEC_MODEL_TYPE].into_iter(),
        )),
    }
}

/// The `model_type` of the supported codec.
pub const CODEC_MODEL_TYPE: &str = "nanocodec_decoder";

/// Infers a codec's configuration from its tensors and adds the sampling fields of `config`.
///
/// # Errors
/// `UnknownArchitecture` for tensors of another codec.
pub fn codec_config(config: &Value, checkpoint: &Checkpoint) -> Result<Value> {
    nanocodec::infer_config(config, checkpoint)
}

/// Iterates over all families.
pub fn families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// Finds the first family with the configuration's `model_type` that satisfies `what`.
fn find_by_model_type(
    config: Config<'_>,
    what: impl Fn(&Family) -> bool,
) -> Option<&'static Family> {
    let kind = config.string("model_type")?;
    families().find(|f| f.model_types.contains(&kind) && what(f))
}

/// Returns whether the model is a bidirectional encoder, which cannot generate text.
pub fn is_encoder(config: &LoadConfig) -> bool {
    let config = config.fields();
    find_by_model_type(config, |f| f.encoder.is_some()).is_some_and(|f| {
        // Families with both a decoder and an encoder (Gemma 3) name the direction in this field.
        f.decoder.is_none() || config.flag_or("use_bidirectional_attention", false)
    })
}

/// Returns whether attention is bidirectional: of an encoder, or of a decoder for embeddings with
/// `is_causal = false`. Such models cannot generate text.
pub fn is_bidirectional(config: &LoadConfig) -> bool {
    is_encoder(config) || direction::is_bidirectional(config.fields())
}

/// Returns the class that a decoder's repository brings for embedding in code of its own, where the
/// configuration does not say whether it attends to both sides.
pub fn unread_embedding_class(config: &LoadConfig) -> Option<&str> {
    if is_encoder(config) {
        return None;
    }
    direction::unread_class(config.fields())
}

/// Returns the pooling that an embedding model's config.json names, or else the default of
/// sentence-transformers for its attention.
///
/// # Errors
/// `UnsupportedOption` for an unknown name.
pub fn default_pooling(config: &LoadConfig) -> Result<Pooling> {
    let default = match is_bidirectional(config) {
        true => Pooling::Mean,
        false => Pooling::Last,
    };
    match is_encoder(config) {
        true => Ok(default),
        false => Ok(direction::pooling(config.fields())?.unwrap_or(default)),
    }
}

/// Builds the graph of a model as an encoder of packed sequences. A decoder becomes an encoder with
/// causal attention, or with bidirectional attention where `is_causal` is false.
///
/// # Errors
/// `UnknownArchitecture`, `UnsupportedOption` or `Config`, each naming what it refuses.
pub fn encoder_graph(config: &LoadConfig, head: &EncoderHead) -> Result<EncoderGraph> {
    headless_encoder(config)?.with_head(config, head)
}

/// Builds [`encoder_graph`] up to the head.
///
/// # Errors
/// As [`encoder_graph`].
pub fn headless_encoder(config: &LoadConfig) -> Result<HeadlessEncoder> {
    let fields = config.fields();
    if is_encoder(config)
        && let Some(Family {
            encoder: Some(build),
            classification_head,
            ..
        }) = find_by_model_type(fields, |f| f.encoder.is_some())
    {
        let mut builder = GraphBuilder::new(&fields.architecture());
        let body = build(fields, &mut builder)?;
        return Ok(HeadlessEncoder::Encoder {
            builder,
            body,
            classification_head: *classification_head,
        });
    }
    let Some(Family {
        decoder: Some(build),
        ..
    }) = find_by_model_type(fields, |f| f.decoder.is_some())
    else {
        let known = families().flat_map(|f| f.model_types.iter().chain(f.classes).copied());
        return Err(unknown_architecture(&fields.architecture(), known));
    };
    build(fields).map(HeadlessEncoder::Decoder)
}

/// Renames a graph's weights to the checkpoint's names. The prefix of a task model (`bert.`,
/// `model.`) is added or dropped, and old files use `gamma` and `beta` for the norm's weight and
/// bias.
pub fn match_names<'a>(graph: &mut Graph, stored: impl Iterator<Item = &'a str>) {
    let known: SortedSet<&str> = stored.collect();
    let Some(first) = graph
        .weights
        .first()
        .and_then(|w| w.parts.first())
        .map(|p| p.0.clone())
    else {
        return;
    };
    let inside = |long: &str, short: &str| {
        long.strip_suffix(short)
            .filter(|p| p.is_empty() || p.ends_with('.'))
            .is_some()
    };
    let own = known
        .iter()
        .filter(|name| inside(name, &first) || inside(&first, name))
        .min_by_key(|name| name.len());
    let (add, drop) = match own {
        Some(name) if name.len() >= first.len() => {
            (name[..name.len() - first.len()].to_string(), String::new())
        }
        Some(name) => (String::new(), first[..first.len() - name.len()].to_string()),
        None => return,
    };
    for (name, _) in graph.weights.iter_mut().flat_map(|w| w.parts.iter_mut()) {
        let moved = format!("{add}{}", name.strip_prefix(&drop).unwrap_or(name));
        let old = moved
            .replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta");
        if let Some(found) = [moved, old]
            .into_iter()
            .find(|n| !known.contains(name.as_str()) && known.contains(n.as_str()))
        {
            *name = found;
        }
    }
}

/// Builds a model's graph; for a speech-to-text model, the decoder's.
///
/// # Errors
/// `UnknownArchitecture`, `UnsupportedOption` or `Config`, each naming what it refuses.
pub fn graph(config: &LoadConfig) -> Result<Graph> {
    if let Some(speech) = speech_graphs(config)? {
        return Ok(speech.decoder);
    }
    let build = decoder_builder(config)?;
    let fields = config.fields();
    fields.check_layer_types()?;
    let graph = build(fields)?;
    Ok(match family::vision_spec(config) {
        Some(spec) => vision::with_image_tokens(graph, spec, fields),
        None => graph,
    })
}

/// Builds the graph of a checkpoint's multi-token-prediction head; `None` if its family has none
/// that is supported.
///
/// # Errors
/// Configurations that are not supported.
pub fn mtp_graph(config: &LoadConfig) -> Result<Option<Graph>> {
    let fields = config.fields();
    let family = family::find_by_config(fields, |family| family.decoder.is_some());
    let layers = fields.get("mtp_num_hidden_layers");
    let is_single = layers.is_none_or(|count| *count == 1);
    let dedicated = fields.flag_or("mtp_use_dedicated_embeddings", false);
    let build = family.and_then(|family| family.mtp);
    let build = build.filter(|_| is_single && !dedicated);
    build.map(|build| build(fields)).transpose()
}

/// Refuses a model without a causal decoder that is supported, before its graph is built.
///
/// # Errors
/// `UnknownArchitecture` with the nearest known names; `UnsupportedOption` for a bidirectional
/// decoder.
pub fn check_generates(config: &LoadConfig) -> Result<()> {
    if is_speech_to_text(config) {
        return Ok(());
    }
    let has_decoder = find_by_model_type(config.fields(), |f| f.decoder.is_some()).is_some();
    if has_decoder && direction::is_bidirectional(config.fields()) {
        return Err(Error::UnsupportedOption {
            architecture: config.fields().architecture(),
            option: "text generation with is_causal = false".into(),
            hint: "Its attention is bidirectional. Load it with the task 'embed'.".into(),
        });
    }
    decoder_builder(config)?;
    Ok(())
}

fn decoder_builder(config: &LoadConfig) -> Result<DecoderBuilder> {
    let fields = config.fields();
    let family = family::find_by_config(fields, |f| f.decoder.is_some());
    family.and_then(|family| family.decoder).ok_or_else(|| {
        let class = fields.architecture();
        let can_embed = find_by_model_type(fields, |f| f.decoder.is_some()).is_some();
        if can_embed && class.ends_with("Model") && !class.ends_with("LMHeadModel") {
            return Error::UnsupportedOption {
                architecture: class,
                option: "text generation".into(),
                hint: "The class has no language model head. Load it with the task 'embed'.".into(),
            };
        }
        unknown_architecture(&class, supported_architectures())
    })
}

/// Lists the supported decoder architectures.
pub fn supported_architectures() -> impl Iterator<Item = &'static str> {
    families()
        .filter(|f| f.decoder.is_some())
        .flat_map(|f| f.classes.iter().copied())
}
