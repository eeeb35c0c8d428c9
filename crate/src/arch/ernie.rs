//! Ernie 4.5, dense or with experts, and Helium: Llama with interleaved RoPE. Reference:
//! transformers `modeling_ernie4_5.py`, `modeling_ernie4_5_moe.py`, `modeling_helium.py`.

use super::blocks::experts::{ExpertsSpec, SharedExpert};
use super::config::Config;
use super::family::Family;
use super::llama;
use crate::Result;
use crate::format::gguf::{self, Gguf, GgufSpec};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
        model_types: &["ernie4_5"],
        defaults: r#"{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 5e5}"#,
        decoder: Some(ernie),
        gguf: &[GgufSpec {
            set_fixed_fields: gguf_fields,
            ..GgufSpec::new("ernie4_5", "ernie4_5", "Ernie4_5ForCausalLM")
        }],
        ..Family::EMPTY
    },
    Family {
        classes: &["Ernie4_5_MoeForCausalLM"],
        model_types: &["ernie4_5_moe"],
        defaults: concat!(
            r#"{"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "moe_num_experts": 64, "moe_k": 6, "#,
            r#""moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}"#
        ),
        decoder: Some(moe),
        gguf: &[GgufSpec {
            has_experts: true,
            names: &[
                (
                    "exp_probs_b.bias",
                    "mlp.moe_statics.e_score_correction_bias",
                ),
                ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
                ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
                ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
            ],
            extra_fields: &[
                ("expert_shared_count", "moe_num_shared_experts"),
                ("leading_dense_block_count", "moe_layer_start_index"),
                ("interleave_moe_layer_step", "moe_layer_interval"),
            ],
            set_fixed_fields: gguf_fields,
            ..GgufSpec::new("ernie4_5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM")
        }],
        ..Family::EMPTY
    },
    Family {
        classes: &["HeliumForCausalLM"],
        model_types: &["helium"],
        defaults: r#"{"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 1e5}"#,
        decoder: Some(helium),
        ..Family::EMPTY
    },
];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    gguf::set_common_fields(file, out);
    out.insert("use_bias".into(), json!(file.has_qkv_bias()));
}

/// `Ernie4_5ForCausalLM`.
fn ernie(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, true)?;
    let bias = config.flag_or("use_bias", false);
    dense.map_attention(|a| a.set_bias(bias));
    dense.map_mlp(|m| m.bias = bias);
    dense.interleave_rope();
    dense.graph()
}

/// `Ernie4_5_MoeForCausalLM`: a softmax router with a selection bias, and shared experts.
fn moe(config: Config<'_>) -> Result<Graph> {
    config.require_values(&[("use_bias", "false")])?;
    let mut dense = llama::dense(config, true)?;
    dense.interleave_rope();
    let mut experts = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    // mlx_lm's conversion drops the bias, and its model routes without it.
    let is_dropped = config.load().fused_experts.is_some() && !config.load().has_selection_bias;
    experts.selection_bias = (!is_dropped).then_some("moe_statics.e_score_correction_bias");
    experts.renormalize = true;
    // `moe_norm_min` bounds the sum from below; it is added instead, far below any real sum.
    experts.eps = config.number_or("moe_norm_min", 1e-12)? as f32;
    let whole = |field: &str, default: f64| config.number_or(field, default).map(|n| n as i64);
    let size = whole("moe_num_shared_experts", 0.0)?.max(0) as usize * experts.inner;
    experts.shared = (size > 0).then_some(SharedExpert::new("shared_experts", size));
    let first = whole("moe_layer_start_index", 0.0)?;
    let last = whole("moe_layer_end_index", -1.0)?;

    let every = config.count_or("moe_layer_interval", 1)?;
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        let within = index as i64 >= first && (last == -1 || index as i64 <= last);
        layer.experts = (within && (index + 1).is_multiple_of(every)).then(|| experts.clone());
    }
    dense.graph()
}

/// `HeliumForCausalLM`.
fn helium(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    dense.map_attention(|a| a.output.bias = false);
    dense.interleave_rope();
    dense.graph()
}
