//! LFM2 and LFM2.5: gated short convolutions, with attention in some layers. Reference:
//! transformers `modeling_lfm2.py`.

use super::blocks::experts::ExpertsSpec;
use super::blocks::{DenseDecoder, MlpKind, QkNorm, QkNormScope};
use super::config::Config;
use super::family::Family;
use super::hybrid::{ConvSpec, HybridDecoder, Mixer, Sublayer};
use super::kani;
use super::vision::{self, siglip::LFM2};
use crate::format::gguf::{Gguf, GgufSpec, set_common_fields, set_layer_types};
use crate::ir::{Graph, RopeScaling, ShortConv};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// Module names in GGUF files, extended by those of experts.
macro_rules! names {
    ($($more:expr),*) => {
        &[
            ("token_embd_norm", "model.embedding_norm"),
            ("output_norm", "model.embedding_norm"),
            ("attn_norm", "operator_norm"),
            ("ffn_norm", "ffn_norm"),
            ("attn_output", "self_attn.out_proj"),
            ("attn_q_norm", "self_attn.q_layernorm"),
            ("attn_k_norm", "self_attn.k_layernorm"),
            ("ffn_gate", "feed_forward.w1"),
            ("ffn_up", "feed_forward.w3"),
            ("ffn_down", "feed_forward.w2"),
            ("shortconv.conv", "conv.conv"),
            ("shortconv.in_proj", "conv.in_proj"),
            ("shortconv.out_proj", "conv.out_proj"),
            $($more),*
        ]
    };
}
pub(super) use names;

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &[
        "Lfm2ForCausalLM",
        "KaniTTS2ForCausalLM",
        "Lfm2VlForConditionalGeneration",
    ],
    model_types: &["lfm2", "lfm2_vl"],
    defaults: r#"{"num_key_value_heads": 8}"#,
    decoder: Some(lfm2),
    vision: Some(LFM2),
    scalar_tensors: kani::rope_factor_tensors,
    gguf: &[GgufSpec {
        names: names!(),
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("lfm2", "lfm2", "Lfm2ForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that a GGUF file implies: the layers with attention, and that its MLP width is
/// exact.
pub(super) fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    set_common_fields(file, out);
    set_layer_types(
        file,
        out,
        "shortconv.conv.weight",
        ["conv", "full_attention"],
    );
    out.insert("block_auto_adjust_ff_dim".into(), json!(false));
    out.insert(
        "conv_bias".into(),
        json!(file.has_tensor("blk.0.shortconv.conv.bias")),
    );
    if let Some(eps) = out.get("rms_norm_eps").cloned() {
        out.insert("norm_eps".into(), eps);
    }
}

/// Returns the MLP width. Older files name it block_ff_dim, and the width can be two thirds of the
/// value.
fn mlp_width(config: Config<'_>) -> Result<usize> {
    let named = if config.get("block_ff_dim").is_some() {
        "block_ff_dim"
    } else {
        "intermediate_size"
    };
    let named = config.count(named)?;
    if !config.flag_or("block_auto_adjust_ff_dim", true) {
        return Ok(named);
    }
    let share = (2 * named / 3) as f64 * config.number_or("block_ffn_dim_multiplier", 1.0)?;
    Ok((share as usize).next_multiple_of(config.count_or("block_multiple_of", 256)?))
}

/// `Lfm2ForCausalLM`, and Kani-TTS-2, whose vocabulary continues with codec tokens.
fn lfm2(config: Config<'_>) -> Result<Graph> {
    graph(config, mlp_width(config)?, |_| None)
}

/// Builds the decoder with MLPs of `width` columns, and experts in the layers that have them.
pub(super) fn graph(
    config: Config<'_>,
    width: usize,
    experts: impl Fn(usize) -> Option<ExpertsSpec>,
) -> Result<Graph> {
    // Maps field names to those of dense families.
    let mut own = config.json().clone();
    let theta = config
        .get("theta")
        .or(config.get("rope_theta"))
        .cloned()
        .unwrap_or(json!(1e6));
    let eps = config
        .get("norm_eps")
        .or(config.get("block_norm_eps"))
        .cloned()
        .unwrap_or(json!(1e-5));
    for (field, value) in [
        ("intermediate_size", json!(width)),
        ("rope_theta", theta),
        ("rms_norm_eps", eps),
    ] {
        own[field] = value;
    }
    let dense = DenseDecoder::from_config(config.with_fields(&own), true)?;
    let tied = config.load().tied_head;
    let tied = tied.unwrap_or(config.flag_or("tie_embedding", dense.tied));
    let conv = ConvSpec {
        kernel_size: config.count_or("conv_L_cache", 3)?,
        bias: config.flag_or("conv_bias", false),
    };
    if !ShortConv::KERNEL_SIZES.contains(&conv.kernel_size) {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: format!("conv_L_cache = {}", conv.kernel_size),
            hint: format!(
                "The kernels support 2 to {}.",
                ShortConv::KERNEL_SIZES.end()
            ),
        });
    }
    let listed = config.get("full_attn_idxs").and_then(Value::as_array);
    let attends = |layer: usize| match (config.layer_type(layer), listed) {
        (Some(kind), _) => kind == "full_attention",
        (None, Some(list)) => list.iter().any(|l| l.as_u64() == Some(layer as u64)),
        (None, None) => true,
    };
    let norm = dense.norm;
    let stretches = (0..dense.layers.len())
        .map(|layer| kani::rope_factor(config, layer))
        .collect::<Result<Vec<f64>>>()?;
    let layers = dense
        .layers
        .into_iter()
        .enumerate()
        .map(|(index, mut layer)| {
            if let Some(rope) = layer
                .attention
                .rope
                .as_mut()
                .filter(|_| stretches[index] != 1.0)
            {
                rope.scaling = RopeScaling::Linear {
                    factor: 1.0 / stretches[index],
                };
            }
            layer.attention.output.projection = "out_proj";
            layer.attention.qkv.norm = Some(QkNorm {
                names: ["q_layernorm", "k_layernorm"],
                spec: norm,
                scope: QkNormScope::Head,
            });
            (layer.mlp.kind, layer.mlp.down) = (MlpKind::Gated(["w1", "w3"]), "w2");
            let mixer = if attends(index) {
                Sublayer {
                    norm: "operator_norm",
                    path: "self_attn",
                    mixer: Mixer::Attention(layer.attention.clone()),
                }
            } else {
                Sublayer {
                    norm: "operator_norm",
                    path: "conv",
                    mixer: Mixer::Conv(conv.clone()),
                }
            };
            layer.experts = experts(index);
            vec![
                mixer,
                Sublayer {
                    norm: "ffn_norm",
                    path: "feed_forward",
                    mixer: Mixer::from_layer(&layer),
                },
            ]
        });
    HybridDecoder {
        name: dense.name,
        embed: "model.embed_tokens",
        path: "model.layers",
        final_norm: "model.embedding_norm",
        hidden: dense.hidden,
        vocab: dense.vocab,
        embed_scale: 1.0,
        logits_scale: 1.0,
        norm,
        tied,
        layers: layers.collect(),
    }
    .graph()
    .map(|graph| {
        if config.get("speaker_emb_dim").is_some() {
            vision::with_soft_tokens(graph)
        } else {
            graph
        }
    })
}
