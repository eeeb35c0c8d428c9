//! LFM2 with experts in all but the first layers; the router is a sigmoid with a selection bias.
//! Reference: transformers `modeling_lfm2_moe.py`.

use super::blocks::experts::{ExpertTensors, ExpertsSpec};
use super::config::Config;
use super::family::Family;
use super::lfm2::{gguf_fields, graph, names};
use super::mixtral::MLX_NAMES;
use crate::Result;
use crate::format::gguf::GgufSpec;
use crate::ir::{Graph, RouterScore};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Lfm2MoeForCausalLM"],
    model_types: &["lfm2_moe"],
    defaults: r#"{"num_key_value_heads": 8, "num_experts": 32, "num_experts_per_tok": 4}"#,
    decoder: Some(lfm2_moe),
    mlx_names: MLX_NAMES,
    gguf: &[GgufSpec {
        has_experts: true,
        names: names!(
            ("ffn_gate_inp", "feed_forward.gate"),
            ("exp_probs_b.bias", "feed_forward.expert_bias"),
            ("ffn_gate_exps", "feed_forward.experts.{e}.w1"),
            ("ffn_up_exps", "feed_forward.experts.{e}.w3"),
            ("ffn_down_exps", "feed_forward.experts.{e}.w2")
        ),
        extra_fields: &[("leading_dense_block_count", "num_dense_layers")],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM")
    }],
    ..Family::EMPTY
}];

/// `Lfm2MoeForCausalLM`.
fn lfm2_moe(config: Config<'_>) -> Result<Graph> {
    let mut experts = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    experts.selection_bias = config
        .flag_or("use_expert_bias", true)
        .then_some("expert_bias");
    (experts.score, experts.eps, experts.renormalize) = (
        RouterScore::Sigmoid,
        1e-6,
        config.flag_or("norm_topk_prob", true),
    );
    experts.scale = config.number_or("routed_scaling_factor", 1.0)? as f32;
    experts.down = "w2";
    if !config.load().fused_experts.unwrap_or(false) {
        experts.up = ExpertTensors::Separate(["w1", "w3"]);
    }
    let first = config.number_or("num_dense_layers", 2.0)? as usize;
    graph(config, config.count("intermediate_size")?, |layer| {
        (layer >= first).then(|| experts.clone())
    })
}
