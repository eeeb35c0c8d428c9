//! Mixtral and PhiMoE: Mistral's attention with experts. PhiMoE has LayerNorm, biases and the
//! sparse mixer as router. Reference: transformers `modeling_mixtral.py`, `modeling_phimoe.py`.

use super::blocks::experts::{ExpertTensors, ExpertsSpec};
use super::blocks::{DenseDecoder, NormSpec};
use super::config::Config;
use super::family::Family;
use crate::format::gguf;
use crate::ir::{Graph, RopeScaling, RouterScore};
use crate::{Error, Result};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["MixtralForCausalLM"],
        model_types: &["mixtral"],
        defaults: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
        decoder: Some(mixtral),
        mlx_names: MLX_NAMES,
        gguf: &[gguf::GgufSpec {
            has_experts: true,
            interleaved_rope: true,
            names: &[
                ("ffn_gate_inp", "block_sparse_moe.gate"),
                ("ffn_gate_exps", "block_sparse_moe.experts.{e}.w1"),
                ("ffn_up_exps", "block_sparse_moe.experts.{e}.w3"),
                ("ffn_down_exps", "block_sparse_moe.experts.{e}.w2"),
            ],
            ..gguf::GgufSpec::new("llama", "mixtral", "MixtralForCausalLM")
        }],
        ..Family::EMPTY
    },
    Family {
        classes: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
        model_types: &["phimoe"],
        defaults: r#"{"num_key_value_heads": 8, "rope_theta": 1e6, "num_local_experts": 16, "num_experts_per_tok": 2}"#,
        decoder: Some(phimoe),
        mlx_names: MLX_NAMES,
        ..Family::EMPTY
    },
];

/// Projections of MLPs in files of mlx_lm (`mixtral.py`, `lfm2_moe.py`).
pub(super) const MLX_NAMES: &[(&str, &str)] = &[
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
];

/// Returns the common parts: experts named w1, w3 and w2, and a sliding window.
fn dense_and_experts(config: Config<'_>) -> Result<(DenseDecoder, ExpertsSpec)> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.names.mlp = "block_sparse_moe";
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.set_windows(|_| window);
    let mut experts = ExpertsSpec::from_config(config, "intermediate_size")?;
    (experts.up, experts.down) = (ExpertTensors::Separate(["w1", "w3"]), "w2");
    Ok((dense, experts))
}

/// `MixtralForCausalLM`.
fn mixtral(config: Config<'_>) -> Result<Graph> {
    let (mut dense, mut experts) = dense_and_experts(config)?;
    experts.renormalize = true;
    dense
        .layers
        .iter_mut()
        .for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}

/// `PhimoeForCausalLM`.
fn phimoe(config: Config<'_>) -> Result<Graph> {
    let (mut dense, mut experts) = dense_and_experts(config)?;
    let bias = config.flag_or("attention_bias", false);
    dense.map_attention(|a| a.set_bias(bias));
    dense.head_bias = config.flag_or("lm_head_bias", false);
    dense.norm = NormSpec::layer(config.number_or("rms_norm_eps", 1e-5)?);
    (experts.score, experts.eps) = (
        RouterScore::Mixer,
        config.number_or("router_jitter_noise", 0.01)? as f32,
    );
    if experts.top_k != 2 {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: format!("num_experts_per_tok = {}", experts.top_k),
            hint: "The sparse mixer selects two experts; the only supported value is 2.".into(),
        });
    }
    let scaling = config
        .nested("rope_scaling")
        .or_else(|| config.nested("rope_parameters"));
    let factor = scaling.map_or(Ok(1.0), |s| s.number_or("short_mscale", 1.0))?;
    if scaling.map_or(Ok(factor), |s| s.number_or("long_mscale", factor))? != factor {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "long_mscale other than short_mscale".into(),
            hint: "Set both to the same number, as in the published models.".into(),
        });
    }
    for rope in dense
        .layers
        .iter_mut()
        .filter_map(|l| l.attention.rope.as_mut())
    {
        if let RopeScaling::LongRope {
            attention_factor, ..
        } = &mut rope.scaling
        {
            *attention_factor = factor;
        }
    }
    dense
        .layers
        .iter_mut()
        .for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}
