//! Qwen3.5 (text, dense or with experts) and Qwen3-Next: Gated DeltaNets, with gated attention in
//! every fourth layer. Reference: transformers `modeling_qwen3_5.py`, `modeling_qwen3_5_moe.py`,
//! `modeling_qwen3_next.py`.

use super::blocks::experts::{ExpertsSpec, SharedExpert};
use super::blocks::{DenseDecoder, NormSpec};
use super::config::Config;
use super::config::Container;
use super::family::{Family, RowOrderFn};
use super::hybrid::{DeltaSpec, HybridDecoder, Mixer, Sublayer};
use super::qwen::{head_norm, set_experts};
use super::vision::qwen::QWEN3;
use crate::format::RowOrder;
use crate::format::gguf::{Gguf, GgufSpec, set_common_fields, set_layer_types};
use crate::ir::{Graph, Recurrent, ShortConv};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// Weights whose rows are stored in another order than the graph's.
type RowOrders = &'static [(&'static str, RowOrderFn)];

const GATED_Q_ORDERS: RowOrders = &[
    ("self_attn.q_proj.weight", separate_gate),
    ("self_attn.q_proj.bias", separate_gate),
];

const fn in_gguf(name: &'static str, model_type: &'static str, class: &'static str) -> GgufSpec {
    GgufSpec {
        names: &[
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_beta", "linear_attn.in_proj_b"),
            ("ssm_alpha", "linear_attn.in_proj_a"),
            ("ssm_in", "linear_attn.in_proj_qkvz"),
            ("ssm_ba", "linear_attn.in_proj_ba"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_a", "linear_attn.A_log"),
            ("ssm_dt.bias", "linear_attn.dt_bias"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
        ],
        original_row_orders: true,
        norm_plus_one: true,
        extra_fields: &[
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("ssm.state_size", "linear_key_head_dim"),
            ("ssm.group_count", "linear_num_key_heads"),
            ("ssm.time_step_rank", "linear_num_value_heads"),
        ],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new(name, model_type, class)
    }
}

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
        model_types: &["qwen3_5", "qwen3_5_text"],
        defaults: r#"{"num_key_value_heads": 4, "head_dim": 256, "partial_rotary_factor": 0.25}"#,
        decoder: Some(|config| qwen3_5(config)?.graph()),
        mtp: Some(|config| mtp_graph(&qwen3_5(config)?)),
        vision: Some(QWEN3),
        row_orders: GATED_Q_ORDERS,
        mlx_norms_plus_one: true,
        gguf: &[in_gguf("qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM")],
        ..Family::EMPTY
    },
    Family {
        classes: &[
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
        ],
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        defaults: r#"{"num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}"#,
        decoder: Some(|config| qwen3_5_moe(config)?.graph()),
        mtp: Some(|config| mtp_graph(&qwen3_5_moe(config)?)),
        vision: Some(QWEN3),
        row_orders: GATED_Q_ORDERS,
        mlx_norms_plus_one: true,
        gguf: &[GgufSpec {
            has_experts: true,
            ..in_gguf("qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")
        }],
        ..Family::EMPTY
    },
    Family {
        classes: &["Qwen3NextForCausalLM"],
        model_types: &["qwen3_next"],
        defaults: r#"{"num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}"#,
        decoder: Some(|config| qwen3_next(config)?.graph()),
        mtp: Some(|config| mtp_graph(&qwen3_next(config)?)),
        row_orders: &[
            GATED_Q_ORDERS[0],
            GATED_Q_ORDERS[1],
            ("linear_attn.in_proj_qkvz.weight", |config| {
                separate_by_key_head(config, true)
            }),
            ("linear_attn.in_proj_ba.weight", |config| {
                separate_by_key_head(config, false)
            }),
        ],
        mlx_norms_plus_one: true,
        gguf: &[GgufSpec {
            has_experts: true,
            ..in_gguf("qwen3next", "qwen3_next", "Qwen3NextForCausalLM")
        }],
        ..Family::EMPTY
    },
];

/// Sets what llama.cpp's conversion implies: `A_log` holds the negative rates, and except for
/// Qwen3-Next value heads are interleaved over key heads.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    set_common_fields(file, out);
    set_layer_types(file, out, "ssm_a", ["linear_attention", "full_attention"]);
    if let Some(head_dim) = file.ssm_head_dim() {
        out.insert("linear_value_head_dim".into(), json!(head_dim));
    }
}

/// Separates queries and gates, which are interleaved by head.
pub(super) fn separate_gate(config: Config<'_>) -> Result<RowOrder> {
    let (heads, _) = config.heads()?;
    let head = config.count_or("head_dim", 256)?;
    Ok(RowOrder::Grouped {
        groups: heads,
        group_rows: [head, head, 0, 0],
    })
}

/// Separates queries, keys, values and gates (or beta and dt), which are grouped by key head.
fn separate_by_key_head(config: Config<'_>, values: bool) -> Result<RowOrder> {
    let DeltaSpec {
        key_heads,
        heads,
        key_dim,
        value_dim,
        ..
    } = delta_spec(config, true, 0.0)?;
    let each = heads / key_heads;
    let runs = if values {
        [key_dim, key_dim, each * value_dim, each * value_dim]
    } else {
        [each, each, 0, 0]
    };
    Ok(RowOrder::Grouped {
        groups: key_heads,
        group_rows: runs,
    })
}

/// `Qwen3_5ForCausalLM`.
fn qwen3_5(config: Config<'_>) -> Result<HybridDecoder> {
    hybrid(config, false, None)
}

/// `Qwen3_5MoeForCausalLM`; its router always normalizes the weights.
fn qwen3_5_moe(config: Config<'_>) -> Result<HybridDecoder> {
    let experts = ExpertsSpec {
        renormalize: true,
        ..experts(config)?
    };
    hybrid(config, false, Some(&experts))
}

/// `Qwen3NextForCausalLM`.
fn qwen3_next(config: Config<'_>) -> Result<HybridDecoder> {
    let experts = ExpertsSpec {
        renormalize: config.flag_or("norm_topk_prob", true),
        ..experts(config)?
    };
    hybrid(config, true, Some(&experts))
}

/// The head `mtp`, whose layer is like the last one with attention.
fn mtp_graph(decoder: &HybridDecoder) -> Result<Graph> {
    let attends = |layer: &&Vec<Sublayer>| matches!(layer[0].mixer, Mixer::Attention(_));
    let layer = decoder.layers.iter().rfind(attends);
    let without = || Error::Internal("no layer has attention".into());
    decoder.mtp_graph(layer.ok_or_else(without)?)
}

/// Reads the experts, including a shared one.
fn experts(config: Config<'_>) -> Result<ExpertsSpec> {
    let size = config.count_or("shared_expert_intermediate_size", 512)?;
    let shared = Some(SharedExpert {
        gate: Some("shared_expert_gate"),
        ..SharedExpert::new("shared_expert", size)
    });
    Ok(ExpertsSpec {
        shared,
        ..ExpertsSpec::from_config(config, "moe_intermediate_size")?
    })
}

/// Builds the decoder, optionally with experts; `fused` for Qwen3-Next's fused DeltaNet
/// projections.
fn hybrid(config: Config<'_>, fused: bool, experts: Option<&ExpertsSpec>) -> Result<HybridDecoder> {
    config.require_values(&[("attn_output_gate", "true")])?;
    // Models with experts in every layer have no other width.
    let mut own = config.json().clone();
    if config.get("intermediate_size").is_none() {
        own["intermediate_size"] = config
            .get("moe_intermediate_size")
            .filter(|_| experts.is_some())
            .cloned()
            .unwrap_or_default();
    }
    let mut dense = DenseDecoder::from_config(config.with_fields(&own), false)?;
    dense.norm = NormSpec {
        offset: 1.0,
        ..dense.norm
    };
    if let Some(experts) = experts {
        set_experts(&mut dense, config, experts)?;
    }
    let norm = dense.norm;
    let bias = config.flag_or("attention_bias", false);

    dense.map_attention(|a| {
        a.qkv.norm = Some(head_norm(norm));
        a.qkv.gated = true;
        a.set_bias(bias);
    });
    let delta = delta_spec(config, fused, norm.eps)?;
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
        let read = Sublayer {
            norm: "input_layernorm",
            path,
            mixer,
        };
        vec![
            read,
            Sublayer {
                norm: "post_attention_layernorm",
                path: "mlp",
                mixer: Mixer::from_layer(layer),
            },
        ]
    });
    Ok(HybridDecoder {
        name: dense.name.clone(),
        embed: "model.embed_tokens",
        path: "model.layers",
        final_norm: "model.norm",
        hidden: dense.hidden,
        vocab: dense.vocab,
        embed_scale: 1.0,
        logits_scale: 1.0,
        norm,
        tied: dense.tied,
        layers: layers.collect(),
    })
}

fn delta_spec(config: Config<'_>, fused: bool, eps: f32) -> Result<DeltaSpec> {
    let raw = config.load().container() == Container::Gguf;
    let spec = DeltaSpec {
        key_heads: config.count_or("linear_num_key_heads", 16)?,
        heads: config.count_or("linear_num_value_heads", 32)?,
        key_dim: config.count_or("linear_key_head_dim", 128)?,
        value_dim: config.count_or("linear_value_head_dim", 128)?,
        kernel_size: config.count_or("linear_conv_kernel_dim", 4)?,
        fused: [fused && !config.load().separate_delta_gate, fused],
        interleaved: raw && !fused,
        negative_rates: raw,
        eps,
    };
    let known = Recurrent::supports(Recurrent::MAX_DELTA_KEY_DIM, spec.key_dim, spec.value_dim)
        && ShortConv::KERNEL_SIZES.contains(&spec.kernel_size)
        && spec.heads.is_multiple_of(spec.key_heads);
    if !known {
        let DeltaSpec {
            key_heads,
            heads,
            key_dim,
            value_dim,
            kernel_size: taps,
            ..
        } = spec;
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: format!(
                "linear attention with {heads} value heads of {value_dim}, {key_heads} key heads of {key_dim}, convolution {taps}"
            ),
            hint: format!(
                "The kernels support keys of up to 128 columns, dimensions that are multiples of 4, convolutions of 2 to {}.",
                ShortConv::KERNEL_SIZES.end()
            ),
        });
    }
    Ok(spec)
}
