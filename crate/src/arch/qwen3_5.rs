//! Qwen3.5 (dense, the text part of the one that sees) and the layers of Qwen3-Next: Gated DeltaNets, with gated attention in
//! every fourth layer. Reference: transformers `modeling_qwen3_5.py`, `modeling_qwen3_next.py`.

use super::blocks::{Dense, Layer, NormSpec};
use super::config::Config;
use super::family::Family;
use super::hybrid::{DeltaSpec, Hybrid, Mixer, Part};
use super::qwen::head_norm;
use super::vision::qwen::QWEN3;
use crate::format::RowOrder;
use crate::format::gguf::{Architecture, Gguf, usual};
use crate::ir::Graph;
use crate::kernels::conv::MAX_TAPS;
use crate::kernels::recurrent::Recurrent;
use crate::{Error, Result};
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    model_types: &["qwen3_5", "qwen3_5_text"],
    decoder: Some(qwen3_5),
    sees: Some(QWEN3),
    rows: &[("self_attn.q_proj.weight", gate_apart), ("self_attn.q_proj.bias", gate_apart)],
    gguf: &[Architecture {
        names: &[
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_beta", "linear_attn.in_proj_b"),
            ("ssm_alpha", "linear_attn.in_proj_a"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_a", "linear_attn.A_log"),
            ("ssm_dt.bias", "linear_attn.dt_bias"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
        ],
        gated: true,
        norm_plus_one: true,
        fields: &[
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("ssm.state_size", "linear_key_head_dim"),
            ("ssm.group_count", "linear_num_key_heads"),
            ("ssm.time_step_rank", "linear_num_value_heads"),
        ],
        fixed: of_gguf,
        ..Architecture::new("qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM")
    }],
    ..Family::NONE
}];

/// What llama.cpp's conversion did: rates lie as they are used, heads of values take turns with the keys.
fn of_gguf(file: &Gguf, out: &mut Map<String, Value>) {
    usual(file, out);
    let layers = out.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0).min(1024);
    let kind = |layer| if file.has(&format!("blk.{layer}.ssm_a")) { "linear_attention" } else { "full_attention" };
    out.insert("layer_types".into(), json!((0..layers).map(kind).collect::<Vec<_>>()));
    if let (Some(inner), Some(heads)) = (file.number("ssm.inner_size"), file.number("ssm.time_step_rank")) {
        out.insert("linear_value_head_dim".into(), json!((inner / heads.max(1.0)) as u64));
    }
    // Not a field of any config.json: what only such files do.
    out.insert("linear_as_in_gguf".into(), json!(true));
}

/// Queries and gates take turns, head by head.
pub(super) fn gate_apart(config: Config<'_>) -> Result<RowOrder> {
    let (heads, _) = config.heads()?;
    let head = config.count_or("head_dim", 256)?;
    Ok(RowOrder::Apart { groups: heads, runs: [head, head, 0, 0] })
}

/// `Qwen3_5ForCausalLM`.
fn qwen3_5(config: Config<'_>) -> Result<Graph> {
    hybrid(config, false, |layer| Mixer::Mlp(layer.mlp.clone()))
}

/// The decoder with what a layer has for an MLP; `fused` as Qwen3-Next keeps the projections of its DeltaNets.
pub(super) fn hybrid(config: Config<'_>, fused: bool, mlp: impl Fn(&Layer) -> Mixer) -> Result<Graph> {
    // What transformers takes where the file is silent.
    let mut own = config.0.clone();
    if let Some(rope) = own.get_mut("rope_parameters").and_then(Value::as_object_mut) {
        rope.entry("partial_rotary_factor").or_insert(json!(0.25));
    }
    for (field, value) in [("head_dim", json!(256)), ("partial_rotary_factor", json!(0.25))] {
        if config.get(field).is_none() {
            own[field] = value;
        }
    }
    let mut dense = Dense::from_config(Config(&own), false)?;
    dense.norm = NormSpec { offset: 1.0, ..dense.norm };
    let (norm, bias) = (dense.norm, config.flag_or("attention_bias", false));
    dense.attentions(|a| {
        a.qk_norm = Some(head_norm(norm));
        (a.gated, a.qkv_bias, a.out_bias) = (true, bias, bias);
    });
    let delta = delta(config, fused, norm.eps)?;
    let interval = config.count_or("full_attention_interval", 4)?;
    let linear = |index: usize| match config.layer_type(index) {
        Some(kind) => kind == "linear_attention",
        None => !(index + 1).is_multiple_of(interval),
    };
    let layers = dense.layers.iter().enumerate().map(|(index, layer)| {
        let (path, mixer) = if linear(index) {
            ("linear_attn", Mixer::Delta(delta.clone()))
        } else {
            ("self_attn", Mixer::Attention(layer.attention.clone()))
        };
        let read = Part { norm: "input_layernorm", path, mixer };
        vec![read, Part { norm: "post_attention_layernorm", path: "mlp", mixer: mlp(layer) }]
    });
    Hybrid {
        name: dense.name.clone(),
        embed: "model.embed_tokens",
        path: "model.layers",
        last: "model.norm",
        hidden: dense.hidden,
        vocab: dense.vocab,
        embed_scale: 1.0,
        logits_scale: 1.0,
        norm,
        tied: dense.tied,
        layers: layers.collect(),
    }
    .graph()
}

fn delta(config: Config<'_>, fused: bool, eps: f32) -> Result<DeltaSpec> {
    let spec = DeltaSpec {
        key_heads: config.count_or("linear_num_key_heads", 16)?,
        heads: config.count_or("linear_num_value_heads", 32)?,
        key_dim: config.count_or("linear_key_head_dim", 128)?,
        value_dim: config.count_or("linear_value_head_dim", 128)?,
        taps: config.count_or("linear_conv_kernel_dim", 4)?,
        fused,
        turns: config.flag_or("linear_as_in_gguf", false),
        raw: config.flag_or("linear_as_in_gguf", false),
        eps,
    };
    let known = Recurrent::<()>::fits(spec.key_dim as u32, spec.value_dim as u32)
        && (2..=MAX_TAPS as usize).contains(&spec.taps)
        && spec.heads.is_multiple_of(spec.key_heads);
    if !known {
        let DeltaSpec { key_heads, heads, key_dim, value_dim, taps, .. } = spec;
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: format!(
                "linear attention with {heads} heads of {value_dim} over {key_heads} of {key_dim}, kernel {taps}"
            ),
            hint: format!(
                "The engine has keys of up to 128 columns, heads whose columns are multiples of 4, kernels of 2 to {MAX_TAPS}."
            ),
        });
    }
    Ok(spec)
}
