//! Qwen2, Qwen2.5 and Qwen2.5-Coder (biases of q, k, v), Qwen3 (norms of the heads of q and k), and
//! Qwen3-MoE. Reference: transformers `modeling_qwen2.py`, `modeling_qwen3.py`,
//! `modeling_qwen3_moe.py`.

use super::blocks::experts::ExpertsSpec;
use super::blocks::{DenseDecoder, NormSpec, QkNorm, QkNormScope};
use super::config::Config;
use super::family::Family;
use super::llama;
use super::vision::qwen::{QWEN2_5, QWEN3};
use crate::Result;
use crate::format::{gguf, mlc};
use crate::ir::Graph;

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["Qwen2ForCausalLM"],
        model_types: &["qwen2"],
        decoder: Some(qwen2),
        gguf: &[gguf::GgufSpec::new("qwen2", "qwen2", "Qwen2ForCausalLM")],
        mlc: &[mlc::MlcSpec::new("qwen2", "qwen2", "Qwen2ForCausalLM")],
        ..Family::EMPTY
    },
    Family {
        classes: &["Qwen3ForCausalLM"],
        model_types: &["qwen3"],
        defaults: r#"{"head_dim": 128}"#,
        decoder: Some(qwen3),
        gguf: &[gguf::GgufSpec::new("qwen3", "qwen3", "Qwen3ForCausalLM")],
        mlc: &[mlc::MlcSpec::new("qwen3", "qwen3", "Qwen3ForCausalLM")],
        ..Family::EMPTY
    },
    Family {
        classes: &["Qwen3MoeForCausalLM"],
        model_types: &["qwen3_moe"],
        defaults: r#"{"num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768}"#,
        decoder: Some(qwen3_moe),
        gguf: &[gguf::GgufSpec {
            has_experts: true,
            set_fixed_fields: |gguf, out| {
                gguf::set_common_fields(gguf, out);
                out.insert("norm_topk_prob".into(), true.into());
            },
            ..gguf::GgufSpec::new("qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM")
        }],
        ..Family::EMPTY
    },
    Family {
        classes: &["Qwen2_5_VLForConditionalGeneration"],
        model_types: &["qwen2_5_vl"],
        defaults: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6}"#,
        decoder: Some(qwen2),
        vision: Some(QWEN2_5),
        gguf: &[gguf::GgufSpec::new(
            "qwen2vl",
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
        )],
        ..Family::EMPTY
    },
    Family {
        classes: &["Qwen3VLForConditionalGeneration"],
        model_types: &["qwen3_vl"],
        defaults: r#"{"num_key_value_heads": 32, "head_dim": 128, "rope_theta": 5e5}"#,
        decoder: Some(qwen3),
        vision: Some(QWEN3),
        gguf: &[gguf::GgufSpec::new(
            "qwen3vl",
            "qwen3_vl",
            "Qwen3VLForConditionalGeneration",
        )],
        ..Family::EMPTY
    },
];

/// `Qwen2ForCausalLM`.
fn qwen2(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.map_attention(|a| a.qkv.bias = true);
    set_windows(&mut dense, config)?;
    dense.graph()
}

/// `Qwen3ForCausalLM`.
fn qwen3(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    dense.map_mlp(|m| m.bias = false);
    let spec = dense.norm;
    dense.map_attention(|a| a.qkv.norm = Some(head_norm(spec)));
    set_windows(&mut dense, config)?;
    dense.graph()
}

/// `Qwen3MoeForCausalLM`.
fn qwen3_moe(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    let spec = dense.norm;
    dense.map_attention(|a| a.qkv.norm = Some(head_norm(spec)));
    // Unlike Qwen2 and Qwen3, it has no layers without a window.
    if let Some(window) = sliding_window(config)? {
        dense.set_windows(|_| window);
    }
    let experts = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    set_experts(&mut dense, config, &experts)?;
    dense.graph()
}

/// Adds experts to every `decoder_sparse_step`th layer except those in `mlp_only_layers`.
pub(super) fn set_experts(
    dense: &mut DenseDecoder,
    config: Config<'_>,
    experts: &ExpertsSpec,
) -> Result<()> {
    let step = config.count_or("decoder_sparse_step", 1)?;
    let only = config.get("mlp_only_layers").and_then(|l| l.as_array());
    let plain =
        |index: usize| only.is_some_and(|l| l.iter().any(|v| v.as_u64() == Some(index as u64)));
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        layer.experts = (!plain(index) && (index + 1) % step == 0).then(|| experts.clone());
    }
    Ok(())
}

/// Returns the norm of each head of q and k before RoPE, with the common names.
pub(super) fn head_norm(spec: NormSpec) -> QkNorm {
    QkNorm {
        names: ["q_norm", "k_norm"],
        spec,
        scope: QkNormScope::Head,
    }
}

/// Reads the sliding window, if enabled.
fn sliding_window(config: Config<'_>) -> Result<Option<usize>> {
    let enabled =
        config.flag_or("use_sliding_window", false) && config.get("sliding_window").is_some();
    enabled.then(|| config.count("sliding_window")).transpose()
}

/// Sets a sliding window for the layers from `max_window_layers` on, if enabled.
fn set_windows(dense: &mut DenseDecoder, config: Config<'_>) -> Result<()> {
    let Some(window) = sliding_window(config)? else {
        return Ok(());
    };
    let first = config.number_or("max_window_layers", 28.0)? as usize;
    dense.set_windows(|index| {
        let sliding = config
            .layer_type(index)
            .map_or(index >= first, |t| t == "sliding_attention");
        if sliding { window } else { 0 }
    });
    Ok(())
}
