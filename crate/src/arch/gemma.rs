//! Gemma 1 and 2, and the parts shared with Gemma 3: norms of 1 + weight and scaled embeddings. From Gemma 2 on: norms
//! before and after each part, softcaps, sliding windows in every other layer. Reference: transformers
//! `modeling_gemma.py`, `modeling_gemma2.py`.

use super::blocks::{Dense, Names};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::gguf::{Architecture, Gguf};
use crate::format::mlc;
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) const fn in_gguf(name: &'static str, model_type: &'static str, class: &'static str) -> Architecture {
    Architecture {
        names: &[("ffn_norm", "pre_feedforward_layernorm")],
        norm_plus_one: true,
        fixed,
        ..Architecture::new(name, model_type, class)
    }
}

pub(super) const fn in_mlc(name: &'static str, model_type: &'static str, class: &'static str) -> mlc::Architecture {
    let activation = ("hidden_activation", "gelu_pytorch_tanh");
    mlc::Architecture { activation, tied: true, norm_plus_one: true, ..mlc::Architecture::new(name, model_type, class) }
}

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["GemmaForCausalLM"],
        model_types: &["gemma"],
        silent: r#"{"head_dim": 256}"#,
        decoder: Some(gemma),
        gguf: &[Architecture { names: &[], ..in_gguf("gemma", "gemma", "GemmaForCausalLM") }],
        mlc: &[in_mlc("gemma", "gemma", "GemmaForCausalLM")],
        ..Family::NONE
    },
    Family {
        classes: &["Gemma2ForCausalLM"],
        model_types: &["gemma2"],
        silent: r#"{"num_key_value_heads": 4, "head_dim": 256}"#,
        decoder: Some(gemma2),
        gguf: &[in_gguf("gemma2", "gemma2", "Gemma2ForCausalLM")],
        mlc: &[in_mlc("gemma2", "gemma2", "Gemma2ForCausalLM")],
        ..Family::NONE
    },
];

/// Sets the fields that the conversion to GGUF drops.
pub(super) fn fixed(file: &Gguf, out: &mut Map<String, Value>) {
    let (layers, hidden) = (file.number("block_count"), file.number("embedding_length"));
    let (heads, key) = (file.number("attention.head_count"), file.number("attention.key_length"));
    // The 27B models scale by hidden size / heads, the others by the head dimension.
    let large = matches!(layers, Some(46.0 | 62.0));
    let scalar = if large { hidden.zip(heads).map(|(h, n)| h / n) } else { key };
    let mut set = |key: &str, value: Value| drop(out.insert(key.into(), value));
    set("hidden_activation", json!("gelu_pytorch_tanh"));
    set("hidden_act", json!("gelu_pytorch_tanh"));
    if let Some(scalar) = scalar.filter(|s| s.is_finite()) {
        set("query_pre_attn_scalar", json!(scalar));
    }
}

/// Returns the decoder common to all Gemma models.
fn base(config: Config<'_>) -> Result<Dense> {
    if config.text("model_type") != Some("gemma3_text") {
        config.only(&[("use_bidirectional_attention", "false")])?;
    }
    let mut dense = Dense::from_config(config, true)?;
    let act = config.activation("hidden_activation", "gelu_pytorch_tanh")?;
    let bias = config.flag_or("attention_bias", false);
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.norm.offset = 1.0;
    dense.mlps(|m| m.act = act);
    dense.attentions(|a| (a.qkv_bias, a.out_bias) = (bias, bias));
    Ok(dense)
}

/// Returns the decoder common to Gemma 2 and 3.
pub(super) fn capped(config: Config<'_>, logits_cap: f64) -> Result<Dense> {
    let mut dense = base(config)?;
    dense.names = Names::SANDWICH;
    dense.logits_softcap = cap(config, "final_logit_softcapping", logits_cap)?;
    let scale = (config.number_or("query_pre_attn_scalar", 256.0)? as f32).powf(-0.5);
    dense.attentions(|a| a.scale = scale);
    Ok(dense)
}

/// Returns a softcap. Null means no cap; only an absent field gets the default.
pub(super) fn cap(config: Config<'_>, field: &str, default: f64) -> Result<f32> {
    let off = config.0.get(field).is_some_and(Value::is_null);
    Ok(if off { 0.0 } else { config.number_or(field, default)? as f32 })
}

/// `GemmaForCausalLM`.
fn gemma(config: Config<'_>) -> Result<Graph> {
    base(config)?.graph()
}

/// `Gemma2ForCausalLM`.
fn gemma2(config: Config<'_>) -> Result<Graph> {
    let mut dense = capped(config, 30.0)?;
    let softcap = cap(config, "attn_logit_softcapping", 50.0)?;
    dense.attentions(|a| a.softcap = softcap);
    let window = config.count_or("sliding_window", 4096)?;
    dense.windows(|index| {
        let sliding = config.layer_type(index).map_or(index % 2 == 0, |t| t == "sliding_attention");
        if sliding { window } else { 0 }
    });
    dense.graph()
}
