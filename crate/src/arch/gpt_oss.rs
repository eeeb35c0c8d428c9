//! GPT-OSS: attention with sinks and alternating sliding windows; experts with a clamped gate and
//! biases. The published files interleave gate and up rows. Reference: transformers
//! `modeling_gpt_oss.py`.

use super::blocks::DenseDecoder;
use super::blocks::experts::{ExpertTensors, ExpertsSpec};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::RowOrder;
use crate::format::gguf::{Gguf, GgufSpec, set_common_fields};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["GptOssForCausalLM"],
    model_types: &["gpt_oss"],
    defaults: concat!(
        r#"{"num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 15e4, "sliding_window": 128, "#,
        r#""num_experts_per_tok": 4, "rope_parameters": {"rope_type": "yarn", "factor": 32, "truncate": false, "#,
        r#""original_max_position_embeddings": 4096}}"#
    ),
    decoder: Some(gpt_oss),
    row_orders: &[
        (".gate_up_proj.weight", expert_rows),
        (".down_proj.weight", expert_rows),
    ],
    // GGUF and MLX files have separate gate and up tensors, as [outputs, inputs].
    gguf: &[GgufSpec {
        has_experts: true,
        names: &[
            ("attn_sinks.weight", "self_attn.sinks"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        extra_fields: &[("expert_feed_forward_length", "intermediate_size")],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("gpt-oss", "gpt_oss", "GptOssForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Returns the row order of experts: 16-bit ones with fused gate and up are [inputs, outputs].
fn expert_rows(config: Config<'_>) -> Result<RowOrder> {
    Ok(match config.load().fused_experts {
        Some(false) => RowOrder::Stored,
        _ => RowOrder::Transposed,
    })
}

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    set_common_fields(file, out);
    if let Some(scaling) = out.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("truncate".into(), json!(false));
    }
}

/// `GptOssForCausalLM`.
fn gpt_oss(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    let bias = config.flag_or("attention_bias", true);
    dense.map_attention(|a| {
        a.set_bias(bias);
        a.scores.sinks = Some("sinks");
    });
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.set_windows(|index| {
        let sliding = config
            .layer_type(index)
            .map_or(index % 2 == 0, |t| t == "sliding_attention");
        if sliding { window } else { 0 }
    });
    let mut experts = ExpertsSpec::from_config(config, "intermediate_size")?;
    let limit = config.number_or("swiglu_limit", 7.0)? as f32;
    experts.clamp = Some([config.number_or("swiglu_alpha", 1.702)? as f32, limit]);
    (experts.router, experts.bias, experts.renormalize) = (("router", true), true, true);
    if config.load().fused_experts.unwrap_or(true) {
        experts.up = ExpertTensors::Interleaved("gate_up_proj");
    }
    dense
        .layers
        .iter_mut()
        .for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}
