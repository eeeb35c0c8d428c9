//! Mixtral and PhiMoE: Mistral's attention with experts. PhiMoE has LayerNorm, biases and the sparse mixer as router.
//! Reference: transformers `modeling_mixtral.py`, `modeling_phimoe.py`.

use super::blocks::experts::{ExpertsSpec, First};
use super::blocks::{Dense, NormSpec};
use super::config::Config;
use super::family::Family;
use crate::format::gguf;
use crate::ir::{Graph, RopeScaling, Score};
use crate::{Error, Result};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["MixtralForCausalLM"],
        model_types: &["mixtral"],
        silent: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
        decoder: Some(mixtral),
        gguf: &[gguf::Architecture {
            experts: true,
            interleaved: true,
            names: &[
                ("ffn_gate_inp", "block_sparse_moe.gate"),
                ("ffn_gate_exps", "block_sparse_moe.experts.{e}.w1"),
                ("ffn_up_exps", "block_sparse_moe.experts.{e}.w3"),
                ("ffn_down_exps", "block_sparse_moe.experts.{e}.w2"),
            ],
            ..gguf::Architecture::new("llama", "mixtral", "MixtralForCausalLM")
        }],
        ..Family::NONE
    },
    Family {
        classes: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
        model_types: &["phimoe"],
        silent: r#"{"num_key_value_heads": 8, "rope_theta": 1e6, "num_local_experts": 16, "num_experts_per_tok": 2}"#,
        decoder: Some(phimoe),
        ..Family::NONE
    },
];

/// Returns the common parts: experts named w1, w3 and w2, and a sliding window.
fn body(config: Config<'_>) -> Result<(Dense, ExpertsSpec)> {
    let mut dense = Dense::from_config(config, false)?;
    dense.names.mlp = "block_sparse_moe";
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.windows(|_| window);
    let mut experts = ExpertsSpec::from_config(config, "intermediate_size")?;
    (experts.first, experts.second) = (First::Apart(["w1", "w3"]), "w2");
    Ok((dense, experts))
}

/// `MixtralForCausalLM`.
fn mixtral(config: Config<'_>) -> Result<Graph> {
    let (mut dense, mut experts) = body(config)?;
    experts.renormalize = true;
    dense.layers.iter_mut().for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}

/// `PhimoeForCausalLM`.
fn phimoe(config: Config<'_>) -> Result<Graph> {
    let (mut dense, mut experts) = body(config)?;
    let bias = config.flag_or("attention_bias", false);
    dense.attentions(|a| (a.qkv_bias, a.out_bias) = (bias, bias));
    dense.head_bias = config.flag_or("lm_head_bias", false);
    dense.norm = NormSpec::layer(config.number_or("rms_norm_eps", 1e-5)?);
    (experts.score, experts.eps) = (Score::Mixer, config.number_or("router_jitter_noise", 0.01)? as f32);
    if experts.each != 2 {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: format!("num_experts_per_tok = {}", experts.each),
            hint: "The sparse mixer selects two experts; the only supported value is 2.".into(),
        });
    }
    let scaling = config.get("rope_scaling").or_else(|| config.get("rope_parameters")).map(Config);
    let factor = scaling.map_or(Ok(1.0), |s| s.number_or("short_mscale", 1.0))?;
    if scaling.map_or(Ok(factor), |s| s.number_or("long_mscale", factor))? != factor {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "long_mscale other than short_mscale".into(),
            hint: "Set both to the same number, as in the published models.".into(),
        });
    }
    for rope in dense.layers.iter_mut().filter_map(|l| l.attention.rope.as_mut()) {
        if let RopeScaling::LongRope { attention_factor, .. } = &mut rope.scaling {
            *attention_factor = factor;
        }
    }
    dense.layers.iter_mut().for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}
