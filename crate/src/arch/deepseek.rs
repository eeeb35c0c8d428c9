//! DeepSeek-V2, V3 and R1, GLM-4.7-Flash: latent attention (MLA), group-limited experts, shared
//! experts. The KV cache holds expanded heads, not latents. Reference: transformers
//! `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py`, `modeling_glm4_moe_lite.py`.

use super::blocks::DenseDecoder;
use super::blocks::experts::{ExpertsSpec, SharedExpert};
use super::blocks::latent::LatentSpec;
use super::config::Config;
use super::family::Family;
use crate::ir::{Graph, RouterScore};
use crate::{Error, Result};
use serde_json::Value;

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["DeepseekV2ForCausalLM"],
        model_types: &["deepseek_v2"],
        defaults: concat!(
            r#"{"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "q_lora_rank": 1536, "#,
            r#""kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}"#
        ),
        decoder: Some(v2),
        ..Family::EMPTY
    },
    Family {
        classes: &["DeepseekV3ForCausalLM"],
        model_types: &["deepseek_v3"],
        defaults: concat!(
            r#"{"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "q_lora_rank": 1536, "#,
            r#""kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": 8, "#,
            r#""topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5}"#
        ),
        decoder: Some(v3),
        ..Family::EMPTY
    },
    Family {
        classes: &["Glm4MoeLiteForCausalLM"],
        model_types: &["glm4_moe_lite"],
        defaults: concat!(
            r#"{"rms_norm_eps": 1e-5, "n_routed_experts": 64, "n_shared_experts": 1, "moe_intermediate_size": 1536, "#,
            r#""q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "#,
            r#""v_head_dim": 256, "num_experts_per_tok": 4, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8}"#
        ),
        decoder: Some(v3),
        ..Family::EMPTY
    },
];

/// `DeepseekV2ForCausalLM`.
fn v2(config: Config<'_>) -> Result<Graph> {
    let mut experts = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    // The router never normalizes, regardless of `norm_topk_prob`.
    experts.renormalize = false;
    match config.string("topk_method").unwrap_or("greedy") {
        "greedy" => {}
        "group_limited_greedy" => experts.set_groups(config, false)?,
        other => return Err(unsupported(config, &format!("topk_method = {other}"))),
    }
    graph(config, experts, true)
}

/// `DeepseekV3ForCausalLM`, `Glm4MoeLiteForCausalLM`.
fn v3(config: Config<'_>) -> Result<Graph> {
    let mut experts = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    (experts.score, experts.selection_bias, experts.eps) = (
        RouterScore::Sigmoid,
        Some("gate.e_score_correction_bias"),
        1e-20,
    );
    experts.renormalize = config.flag_or("norm_topk_prob", true);
    experts.set_groups(config, true)?;
    graph(config, experts, config.flag_or("rope_interleave", true))
}

fn unsupported(config: Config<'_>, option: &str) -> Error {
    Error::UnsupportedOption {
        architecture: config.architecture(),
        option: option.into(),
        hint: "Supported: greedy, group_limited_greedy.".into(),
    }
}

fn graph(config: Config<'_>, mut experts: ExpertsSpec, interleaved: bool) -> Result<Graph> {
    let score = if experts.score == RouterScore::Sigmoid {
        "sigmoid"
    } else {
        "softmax"
    };
    config.require_values(&[("scoring_func", score)])?;
    let latent = LatentSpec::from_config(config, interleaved)?;
    // Head sizes come from the latent attention fields.
    let mut plain = config.json().clone();
    plain["head_dim"] = latent.head_dim().into();
    plain["num_key_value_heads"] = latent.heads.into();
    plain["rope_parameters"] = Value::Null;
    plain["rope_scaling"] = Value::Null;
    let mut dense = DenseDecoder::from_config(config.with_fields(&plain), false)?;
    experts.scale = config.number_or("routed_scaling_factor", 1.0)? as f32;
    let shared = config
        .get("n_shared_experts")
        .and_then(|n| n.as_u64())
        .unwrap_or(0) as usize;
    let size = shared * experts.inner;
    experts.shared = (shared > 0).then_some(SharedExpert::new("shared_experts", size));
    let first = config
        .get("first_k_dense_replace")
        .and_then(|n| n.as_u64())
        .unwrap_or(0) as usize;
    let every = config.count_or("moe_layer_freq", 1)?;
    let listed = |index| {
        config
            .get("mlp_layer_types")
            .and_then(|list| list.get(index))
            .and_then(Value::as_str)
    };
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        layer.latent = Some(latent.clone());
        let sparse = listed(index).map_or(index >= first && index % every == 0, |kind| {
            kind == "sparse"
        });
        layer.experts = sparse.then(|| experts.clone());
    }
    dense.graph()
}
