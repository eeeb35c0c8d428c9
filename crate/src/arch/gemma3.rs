//! Gemma 3 and EmbeddingGemma: Gemma 2 without softcaps, with norms of q and k and a separate RoPE
//! in sliding-window layers. Reference: transformers `modeling_gemma3.py`.

use super::blocks::{DenseDecoder, TensorNames};
use super::config::Config;
use super::encoder::{EncoderBody, PositionScheme};
use super::family::Family;
use super::gemma::{gemma_gguf_fields, gemma2_dense, in_gguf, in_mlc};
use super::qwen::head_norm;
use super::standard::RopeByType;
use super::vision::siglip::GEMMA3;
use crate::Result;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::{Graph, GraphBuilder, Mask};
use serde_json::{Map, Value, json};

/// RoPE bases of Gemma 3 and 3n.
pub(super) const ROPES: RopeByType = RopeByType {
    full: ("rope_theta", 1_000_000.0),
    sliding: ("rope_local_base_freq", 10_000.0),
    scales_sliding: false,
};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_types: &["gemma3_text", "gemma3"],
    defaults: r#"{"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}"#,
    rope_kinds: Some(ROPES),
    decoder: Some(gemma3),
    vision: Some(GEMMA3),
    encoder: Some(embeddinggemma),
    gguf: &[
        GgufSpec {
            set_fixed_fields: gguf_fields,
            ..in_gguf("gemma3", "gemma3_text", "Gemma3ForCausalLM")
        },
        GgufSpec {
            set_fixed_fields: gguf_fields,
            ..in_gguf("gemma-embedding", "gemma3_text", "Gemma3TextModel")
        },
    ],
    mlc: &[
        in_mlc("gemma3", "gemma3_text", "Gemma3ForCausalLM"),
        in_mlc("gemma3_text", "gemma3_text", "Gemma3ForCausalLM"),
    ],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    gemma_gguf_fields(file, out);
    out.entry("sliding_window_pattern").or_insert(json!(6));
    let mut set = |key: &str, value: Value| drop(out.insert(key.into(), value));
    if file.architecture() == "gemma-embedding" {
        set("use_bidirectional_attention", json!(true));
    }
    if file.field("rope.freq_base").is_none() {
        set("rope_theta", json!(1_000_000.0));
    }
    if file.field("rope.freq_base_swa").is_none() {
        set("rope_local_base_freq", json!(10_000.0));
    }
}

/// `Gemma3ForCausalLM`, and the text part of `Gemma3ForConditionalGeneration`.
fn gemma3(config: Config<'_>) -> Result<Graph> {
    gemma3_dense(
        config,
        |window| Mask::Causal { window },
        Mask::Causal { window: 0 },
    )?
    .graph()
}

/// Returns Gemma 3 with the given masks: `local` for sliding-window layers, `global` for full
/// attention.
fn gemma3_dense(
    config: Config<'_>,
    local: impl Fn(usize) -> Mask,
    global: Mask,
) -> Result<DenseDecoder> {
    // Scores have no softcap, regardless of `attn_logit_softcapping`.
    let mut dense = gemma2_dense(config, 0.0)?;
    let window = config.count_or("sliding_window", 4096)?;
    let published = config.count_or("sliding_window_pattern", 6)?;
    let pattern = config.count_or("_sliding_window_pattern", published)?;
    let head_dim = dense.layers[0].attention.heads.dim;
    let spec = dense.norm;

    let full = config.rope_for_type("full_attention", head_dim, 1_000_000.0)?;
    let slid = config.rope_for_type("sliding_attention", head_dim, 10_000.0)?;
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        let is_global = config
            .layer_type(index)
            .map_or((index + 1) % pattern == 0, |t| t == "full_attention");
        let attention = &mut layer.attention;
        attention.qkv.norm = Some(head_norm(spec));
        (attention.rope, attention.mask) = if is_global {
            (Some(full.clone()), global)
        } else {
            (Some(slid.clone()), local(window))
        };
    }
    Ok(dense)
}

/// `Gemma3TextModel` with `use_bidirectional_attention`: EmbeddingGemma.
fn embeddinggemma(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    // The window in config.json counts both sides and the token itself.

    let mut dense = gemma3_dense(
        config,
        |window: usize| Mask::Packed {
            before: window / 2,
            after: window / 2,
        },
        Mask::Packed {
            before: usize::MAX,
            after: usize::MAX,
        },
    )?;
    dense.names = TensorNames {
        embed: "embed_tokens",
        layers: "layers",
        final_norm: "norm",
        ..dense.names
    };
    Ok(EncoderBody {
        hidden: dense.hidden_states(b),
        positions: PositionScheme::UNBOUNDED,
    })
}
