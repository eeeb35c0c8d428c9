//! Gemma 1 to 3 and EmbeddingGemma: norms of 1 + weight, scaled embeddings; from Gemma 2 on norms before and after each
//! part, soft caps and windows in most layers; from Gemma 3 on norms of q and k, and another rotation where there is a window.
//! Reference: transformers `modeling_gemma.py`, `modeling_gemma2.py`, `modeling_gemma3.py`.

use super::blocks::{Dense, Names};
use super::config::Config;
use super::encoder::{self, Body, Positions};
use super::family::Family;
use super::qwen::head_norm;
use super::vision::siglip::GEMMA3;
use crate::Result;
use crate::format::gguf::{Architecture, Gguf};
use crate::format::mlc;
use crate::ir::{Builder, Graph, Mask};
use serde_json::{Map, Value, json};

const fn in_gguf(name: &'static str, model_type: &'static str, class: &'static str) -> Architecture {
    Architecture {
        names: &[("ffn_norm", "pre_feedforward_layernorm")],
        norm_plus_one: true,
        fixed,
        ..Architecture::new(name, model_type, class)
    }
}

const fn in_mlc(name: &'static str, model_type: &'static str, class: &'static str) -> mlc::Architecture {
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
    Family {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        model_types: &["gemma3_text", "gemma3"],
        silent: r#"{"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}"#,
        decoder: Some(gemma3),
        sees: Some(GEMMA3),
        encoder: Some(embeddinggemma),
        gguf: &[
            in_gguf("gemma3", "gemma3_text", "Gemma3ForCausalLM"),
            in_gguf("gemma-embedding", "gemma3_text", "Gemma3TextModel"),
        ],
        mlc: &[
            in_mlc("gemma3", "gemma3_text", "Gemma3ForCausalLM"),
            in_mlc("gemma3_text", "gemma3_text", "Gemma3ForCausalLM"),
        ],
        ..Family::NONE
    },
];

/// What the conversion to GGUF leaves out.
fn fixed(file: &Gguf, out: &mut Map<String, Value>) {
    let (layers, hidden) = (file.number("block_count"), file.number("embedding_length"));
    let (heads, key) = (file.number("attention.head_count"), file.number("attention.key_length"));
    // The 27B models scale by the width per head, the others by the head's own width.
    let large = matches!(layers, Some(46.0 | 62.0));
    let scalar = if large { hidden.zip(heads).map(|(h, n)| h / n) } else { key };
    let mut set = |key: &str, value: Value| drop(out.insert(key.into(), value));
    set("hidden_activation", json!("gelu_pytorch_tanh"));
    set("hidden_act", json!("gelu_pytorch_tanh"));
    if let Some(scalar) = scalar.filter(|s| s.is_finite()) {
        set("query_pre_attn_scalar", json!(scalar));
    }
    if file.architecture() != "gemma3" && file.architecture() != "gemma-embedding" {
        return;
    }
    set("sliding_window_pattern", json!(6));
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

/// What all have.
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

/// What Gemma 2 and 3 have beyond.
fn capped(config: Config<'_>, logits_cap: f64) -> Result<Dense> {
    let mut dense = base(config)?;
    dense.names = Names::SANDWICH;
    dense.logits_softcap = cap(config, "final_logit_softcapping", logits_cap)?;
    let scale = (config.number_or("query_pre_attn_scalar", 256.0)? as f32).powf(-0.5);
    dense.attentions(|a| a.scale = scale);
    Ok(dense)
}

/// A null switches a cap off, so that only an absent field means the default.
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

/// `Gemma3ForCausalLM`, and the text part of `Gemma3ForConditionalGeneration`.
fn gemma3(config: Config<'_>) -> Result<Graph> {
    gemma3_dense(config, |window| Mask::Causal { window }, Mask::Causal { window: 0 })?.graph()
}

/// Gemma 3 with its masks: `local` of the window, and `global`.
fn gemma3_dense(config: Config<'_>, local: impl Fn(usize) -> Mask, global: Mask) -> Result<Dense> {
    // Its scores have no cap, whatever `attn_logit_softcapping` says.
    let mut dense = capped(config, 0.0)?;
    let window = config.count_or("sliding_window", 4096)?;
    let spelled = config.count_or("sliding_window_pattern", 6)?;
    let pattern = config.count_or("_sliding_window_pattern", spelled)?;
    let (head_dim, spec) = (dense.layers[0].attention.head_dim, dense.norm);
    let by_kind = config.get("rope_parameters").is_some_and(|p| p.get("full_attention").is_some());
    let full = match by_kind {
        true => config.rope_of_kind("full_attention", head_dim, 1_000_000.0)?,
        false => config.rope(head_dim, 1_000_000.0)?,
    };
    let slid = encoder::rope_of(config, "sliding_attention", "rope_local_base_freq", 10_000.0, head_dim)?;
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        let is_global = config.layer_type(index).map_or((index + 1) % pattern == 0, |t| t == "full_attention");
        let attention = &mut layer.attention;
        attention.qk_norm = Some(head_norm(spec));
        (attention.rope, attention.mask) =
            if is_global { (Some(full.clone()), global) } else { (Some(slid.clone()), local(window)) };
    }
    Ok(dense)
}

/// `Gemma3TextModel` with `use_bidirectional_attention`: EmbeddingGemma.
fn embeddinggemma(config: Config<'_>, b: &mut Builder) -> Result<Body> {
    // The file's window counts both sides and the token itself.
    let local = |window: usize| Mask::Segment { before: window / 2, after: window / 2 };
    let mut dense = gemma3_dense(config, local, Mask::Segment { before: usize::MAX, after: usize::MAX })?;
    dense.names = Names { embed: "embed_tokens", layers: "layers", last: "norm", ..dense.names };
    let positions = Positions { first: 0, padding: None, most: usize::MAX, types: 0 };
    Ok(Body { hidden: dense.body(b), positions })
}
