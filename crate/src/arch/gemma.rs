//! Gemma 1 and 2, and the parts shared with Gemma 3: norms of 1 + weight and scaled embeddings.
//! From Gemma 2 on: norms before and after each part, softcaps, sliding windows in every other
//! layer. Reference: transformers `modeling_gemma.py`, `modeling_gemma2.py`.

use super::blocks::{DenseDecoder, TensorNames};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::format::mlc;
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) const fn in_gguf(
    name: &'static str,
    model_type: &'static str,
    class: &'static str,
) -> GgufSpec {
    GgufSpec {
        names: &[("ffn_norm", "pre_feedforward_layernorm")],
        norm_plus_one: true,
        set_fixed_fields: gemma_gguf_fields,
        ..GgufSpec::new(name, model_type, class)
    }
}

pub(super) const fn in_mlc(
    name: &'static str,
    model_type: &'static str,
    class: &'static str,
) -> mlc::MlcSpec {
    let activation = ("hidden_activation", "gelu_pytorch_tanh");
    mlc::MlcSpec {
        activation,
        tied_head: true,
        norm_plus_one: true,
        ..mlc::MlcSpec::new(name, model_type, class)
    }
}

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["GemmaForCausalLM"],
        model_types: &["gemma"],
        defaults: r#"{"head_dim": 256}"#,
        decoder: Some(gemma),
        gguf: &[GgufSpec {
            names: &[],
            ..in_gguf("gemma", "gemma", "GemmaForCausalLM")
        }],
        mlc: &[in_mlc("gemma", "gemma", "GemmaForCausalLM")],
        ..Family::EMPTY
    },
    Family {
        classes: &["Gemma2ForCausalLM"],
        model_types: &["gemma2"],
        defaults: r#"{"num_key_value_heads": 4, "head_dim": 256}"#,
        decoder: Some(gemma2),
        gguf: &[in_gguf("gemma2", "gemma2", "Gemma2ForCausalLM")],
        mlc: &[in_mlc("gemma2", "gemma2", "Gemma2ForCausalLM")],
        ..Family::EMPTY
    },
];

/// Sets the fields that the conversion to GGUF drops.
pub(super) fn gemma_gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    let layers = file.float_field("block_count");
    let hidden = file.float_field("embedding_length");

    let heads = file.float_field("attention.head_count");
    let key = file.float_field("attention.key_length");

    // The 27B models scale by hidden size / heads, the others by the head dimension.
    let large = matches!(layers, Some(46.0 | 62.0));
    let scalar = if large {
        hidden.zip(heads).map(|(h, n)| h / n)
    } else {
        key
    };
    let mut set = |key: &str, value: Value| drop(out.insert(key.into(), value));
    set("hidden_activation", json!("gelu_pytorch_tanh"));
    set("hidden_act", json!("gelu_pytorch_tanh"));
    if let Some(scalar) = scalar.filter(|s| s.is_finite()) {
        set("query_pre_attn_scalar", json!(scalar));
    }
}

/// Returns the decoder common to all Gemma models.
fn gemma_dense(config: Config<'_>) -> Result<DenseDecoder> {
    if config.string("model_type") != Some("gemma3_text") {
        config.require_values(&[("use_bidirectional_attention", "false")])?;
    }
    let mut dense = DenseDecoder::from_config(config, true)?;
    let act = config.activation("hidden_activation", "gelu_pytorch_tanh")?;
    let bias = config.flag_or("attention_bias", false);
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.norm.offset = 1.0;
    dense.map_mlp(|m| m.act = act);
    dense.map_attention(|a| a.set_bias(bias));
    Ok(dense)
}

/// Returns the decoder common to Gemma 2 and 3.
pub(super) fn gemma2_dense(config: Config<'_>, logits_cap: f64) -> Result<DenseDecoder> {
    let mut dense = gemma_dense(config)?;
    dense.names = TensorNames::SANDWICH;
    dense.logits_softcap = read_softcap(config, "final_logit_softcapping", logits_cap)?;
    let scale = (config.number_or("query_pre_attn_scalar", 256.0)? as f32).powf(-0.5);
    dense.map_attention(|a| a.scores.scale = scale);
    Ok(dense)
}

/// Returns a softcap. Null means no cap; only an absent field gets the default.
pub(super) fn read_softcap(config: Config<'_>, field: &str, default: f64) -> Result<f32> {
    let off = config.json().get(field).is_some_and(Value::is_null);
    Ok(if off {
        0.0
    } else {
        config.number_or(field, default)? as f32
    })
}

/// `GemmaForCausalLM`.
fn gemma(config: Config<'_>) -> Result<Graph> {
    gemma_dense(config)?.graph()
}

/// `Gemma2ForCausalLM`.
fn gemma2(config: Config<'_>) -> Result<Graph> {
    let mut dense = gemma2_dense(config, 30.0)?;
    let softcap = read_softcap(config, "attn_logit_softcapping", 50.0)?;
    dense.map_attention(|a| a.scores.softcap = softcap);
    let window = config.count_or("sliding_window", 4096)?;
    dense.set_windows(|index| {
        let sliding = config
            .layer_type(index)
            .map_or(index % 2 == 0, |t| t == "sliding_attention");
        if sliding { window } else { 0 }
    });
    dense.graph()
}
