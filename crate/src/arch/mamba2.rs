//! Mamba-2 with attention in some layers: Granite 4 (`GraniteMoeHybridForCausalLM`, dense or with
//! experts), Nemotron-H and Nemotron 3, whose layers have one sublayer each. Reference:
//! transformers `modeling_granitemoehybrid.py`, `modeling_nemotron_h.py`.

use super::blocks::experts::{ExpertTensors, ExpertsSpec, LatentProjection, SharedExpert};
use super::blocks::{DenseDecoder, MlpKind, MlpSpec, NormSpec};
use super::config::Config;
use super::config::Container;
use super::family::Family;
use super::granite;
use super::hybrid::{HybridDecoder, Mixer, SsmGate, SsmSpec, Sublayer};
use crate::format::gguf::{Gguf, GgufSpec, set_common_fields, set_layer_types};
use crate::ir::{Graph, Recurrent, RouterScore, ShortConv};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["GraniteMoeHybridForCausalLM"],
        model_types: &["granitemoehybrid"],
        defaults: r#"{"num_local_experts": 8, "num_experts_per_tok": 2}"#,
        decoder: Some(granite_hybrid),
        mlx_names: &[
            (".mlp.gate_proj.", ".shared_mlp.gate_proj."),
            (".mlp.up_proj.", ".shared_mlp.up_proj."),
            (".mlp.down_proj.", ".shared_mlp.output_linear."),
        ],
        gguf: &[
            granite_in_gguf(
                false,
                &[("feed_forward_length", "shared_intermediate_size")],
            ),
            granite_in_gguf(
                true,
                &[(
                    "expert_shared_feed_forward_length",
                    "shared_intermediate_size",
                )],
            ),
        ],
        ..Family::EMPTY
    },
    Family {
        classes: &["NemotronHForCausalLM"],
        model_types: &["nemotron_h"],
        defaults: concat!(
            r#"{"num_key_value_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688, "#,
            r#""moe_shared_expert_intermediate_size": 7688}"#
        ),
        decoder: Some(nemotron),
        prefixes: &[("backbone.", "model.")],
        gguf: &[
            nemotron_in_gguf("nemotron_h", false),
            nemotron_in_gguf("nemotron_h_moe", true),
        ],
        ..Family::EMPTY
    },
];

/// Returns the GGUF description of Granite 4, dense or with experts; `shared` names the width of
/// the shared MLP.
const fn granite_in_gguf(
    experts: bool,
    shared: &'static [(&'static str, &'static str)],
) -> GgufSpec {
    GgufSpec {
        has_experts: experts,
        interleaved_rope: true,
        names: &[
            ("ffn_gate", "shared_mlp.gate_proj"),
            ("ffn_up", "shared_mlp.up_proj"),
            ("ffn_down", "shared_mlp.output_linear"),
            ("ffn_gate_inp", "block_sparse_moe.router.layer"),
            ("ffn_gate_exps", "block_sparse_moe.experts.{e}.gate_proj"),
            ("ffn_up_exps", "block_sparse_moe.experts.{e}.up_proj"),
            ("ffn_down_exps", "block_sparse_moe.experts.{e}.down_proj"),
            ("ffn_gate_shexp", "shared_mlp.gate_proj"),
            ("ffn_up_shexp", "shared_mlp.up_proj"),
            ("ffn_down_shexp", "shared_mlp.output_linear"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_a", "mamba.A_log"),
            ("ssm_d", "mamba.D"),
            ("ssm_dt.bias", "mamba.dt_bias"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
        ],
        extra_fields: shared,
        set_fixed_fields: granite_gguf_fields,
        ..GgufSpec::new(
            "granitehybrid",
            "granitemoehybrid",
            "GraniteMoeHybridForCausalLM",
        )
    }
}

/// Sets what llama.cpp's conversion implies: the layers with attention, `A_log` as the negative
/// rates, separate gate and up.
fn granite_gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    ssm_gguf_fields(file, out);
    set_layer_types(file, out, "ssm_a", ["mamba", "attention"]);
    if file
        .float_field("rope.dimension_count")
        .is_some_and(|n| n > 0.0)
    {
        out.insert("position_embedding_type".into(), json!("rope"));
    }
}

/// Sets the Mamba-2 sizes of GGUF files.
pub(super) fn ssm_gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    set_common_fields(file, out);
    for (field, key) in [
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.time_step_rank", "mamba_n_heads"),
    ] {
        if let Some(value) = file.float_field(field) {
            out.insert(key.into(), json!(value as u64));
        }
    }
    if let Some(head_dim) = file.ssm_head_dim() {
        out.insert("mamba_d_head".into(), json!(head_dim));
    }
}

/// Sets the fields of Nemotron-H: layer types by tensors, sizes by the names of its config.json.
fn nemotron_gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    ssm_gguf_fields(file, out);
    let layers = out
        .get("num_hidden_layers")
        .and_then(Value::as_u64)
        .unwrap_or(0)
        .min(1024);
    let kinds = [
        ("ssm_a", "mamba"),
        ("attn_q.weight", "attention"),
        ("ffn_gate_inp.weight", "moe"),
    ];
    let kind = |layer| {
        kinds
            .iter()
            .find(|k| file.has_tensor(&format!("blk.{layer}.{}", k.0)))
            .map_or("mlp", |k| k.1)
    };
    out.insert(
        "layers_block_type".into(),
        json!((0..layers).map(kind).collect::<Vec<_>>()),
    );
    for (ours, theirs) in [
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_d_state", "ssm_state_size"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_n_heads", "mamba_num_heads"),
        ("mamba_d_head", "mamba_head_dim"),
    ] {
        out.get(ours)
            .cloned()
            .map(|value| out.insert(theirs.into(), value));
    }
}

/// Returns the GGUF description of Nemotron-H, dense or with experts, which has a separate name.
const fn nemotron_in_gguf(name: &'static str, experts: bool) -> GgufSpec {
    GgufSpec {
        has_experts: experts,
        names: &[
            ("token_embd", "model.embeddings"),
            ("output_norm", "model.norm_f"),
            ("attn_norm", "norm"),
            ("attn_q", "mixer.q_proj"),
            ("attn_k", "mixer.k_proj"),
            ("attn_v", "mixer.v_proj"),
            ("attn_output", "mixer.o_proj"),
            ("ffn_up", "mixer.up_proj"),
            ("ffn_down", "mixer.down_proj"),
            ("ffn_gate_inp", "mixer.gate"),
            ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
            ("ffn_up_exps", "mixer.experts.{e}.up_proj"),
            ("ffn_down_exps", "mixer.experts.{e}.down_proj"),
            ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
            ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
            ("ffn_latent_down", "mixer.fc1_latent_proj"),
            ("ffn_latent_up", "mixer.fc2_latent_proj"),
            ("ssm_in", "mixer.in_proj"),
            ("ssm_conv1d", "mixer.conv1d"),
            ("ssm_a", "mixer.A_log"),
            ("ssm_d", "mixer.D"),
            ("ssm_dt.bias", "mixer.dt_bias"),
            ("ssm_norm", "mixer.norm"),
            ("ssm_out", "mixer.out_proj"),
        ],
        extra_fields: &[
            (
                "expert_shared_feed_forward_length",
                "moe_shared_expert_intermediate_size",
            ),
            ("expert_weights_norm", "norm_topk_prob"),
            ("expert_weights_scale", "routed_scaling_factor"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
            ("moe_latent_size", "moe_latent_size"),
        ],
        set_fixed_fields: nemotron_gguf_fields,
        ..GgufSpec::new(name, "nemotron_h", "NemotronHForCausalLM")
    }
}

fn unsupported<T>(config: Config<'_>, option: String, hint: &str) -> Result<T> {
    Err(Error::UnsupportedOption {
        architecture: config.architecture(),
        option,
        hint: hint.into(),
    })
}

/// Refuses sizes that the kernels do not support.
pub(super) fn check_ssm(config: Config<'_>, spec: SsmSpec) -> Result<SsmSpec> {
    let SsmSpec {
        heads,
        head_dim,
        groups,
        state,
        kernel_size: taps,
        ..
    } = spec;
    let known =
        Recurrent::supports(Recurrent::MAX_SSM_KEY_DIM, state, head_dim) && heads % groups == 0;
    if !known || !ShortConv::KERNEL_SIZES.contains(&taps) {
        let hint = "The kernels support states of up to 256 columns, head dimensions that are multiples of 4, and convolutions of 2 to 8.";
        return unsupported(
            config,
            format!(
                "Mamba-2 with {heads} heads of {head_dim}, {groups} groups, state {state}, convolution {taps}"
            ),
            hint,
        );
    }
    Ok(spec)
}

/// Returns one end of `time_step_limit`; `default` replaces infinity, which JSON lacks.
fn dt_limit(config: Config<'_>, index: usize, default: f32) -> f32 {
    let found = config
        .get("time_step_limit")
        .and_then(|l| l.get(index))
        .and_then(Value::as_f64);
    found.map_or(default, |v| v as f32)
}

/// Reads the `mamba_*` fields of Granite 4 and Falcon-H1; `inner` is the width of the mixer.
pub(super) fn ssm_from_config(config: Config<'_>, inner: usize, eps: f32) -> Result<SsmSpec> {
    let heads = config.count_or("mamba_n_heads", 128)?;
    let bias = config.flag_or("mamba_proj_bias", false);
    Ok(SsmSpec {
        heads,
        head_dim: config
            .get("mamba_d_head")
            .and_then(Value::as_u64)
            .map_or(inner / heads, |d| d as usize),
        groups: config.count_or("mamba_n_groups", 1)?,
        state: config.count_or("mamba_d_state", 256)?,
        kernel_size: config.count_or("mamba_d_conv", 4)?,
        conv_bias: config.flag_or("mamba_conv_bias", true),
        bias,
        out_bias: bias,
        dt_limits: [dt_limit(config, 0, 0.0), dt_limit(config, 1, f32::MAX)],
        negative_rates: config.load().container() == Container::Gguf,
        eps,
        gate: SsmGate::BeforeNorm,
        scales: [1.0; 5],
        out_scale: 1.0,
    })
}

/// Returns a layer's type from any of the fields that name it.
fn layer_type<'a>(config: Config<'a>, layer: usize) -> &'a str {
    let listed = |field: &str| {
        config
            .get(field)
            .and_then(|t| t.get(layer))
            .and_then(Value::as_str)
    };
    let letter = config
        .string("hybrid_override_pattern")
        .and_then(|p| p.get(layer..=layer));
    match listed("layers_block_type")
        .or(listed("layer_types"))
        .or(letter)
    {
        None | Some("linear_attention" | "mamba" | "M") => "mamba",
        Some("full_attention" | "attention" | "*") => "attention",
        Some("mlp" | "-") => "mlp",
        Some("moe" | "E") => "moe",
        Some(other) => other,
    }
}

/// `GraniteMoeHybridForCausalLM`.
fn granite_hybrid(config: Config<'_>) -> Result<Graph> {
    let shared = config.count_or("shared_intermediate_size", 1024)?;
    let sparse = config.number_or("num_local_experts", 0.0)? > 0.0;
    let experts = if sparse {
        Some(granite::experts(config, shared)?)
    } else {
        None
    };
    let mut own = config.json().clone();
    own["intermediate_size"] = json!(shared);
    let mut dense = DenseDecoder::from_config(config.with_fields(&own), false)?;
    let number = |field: &str| Ok::<_, Error>(config.number_or(field, 1.0)? as f32);
    let residual = number("residual_multiplier")?;
    let scale = number("attention_multiplier")?;

    let rotated = config.string("position_embedding_type") == Some("rope");
    let bias = config.flag_or("attention_bias", false);

    dense.map_attention(|a| {
        a.scores.scale = scale;
        a.output.scale = residual;
        a.set_bias(bias);
        if !rotated {
            a.rope = None;
        }
    });
    dense.map_mlp(|m| {
        (m.kind, m.down, m.out_scale) = (granite::shared_mlp(config), "output_linear", residual);
    });
    let inner = config.count_or("mamba_expand", 2)? * dense.hidden;
    let ssm = check_ssm(
        config,
        SsmSpec {
            out_scale: residual,
            ..ssm_from_config(config, inner, dense.norm.eps)?
        },
    )?;
    let layers = dense.layers.iter().enumerate().map(|(index, layer)| {
        let (path, mixer) = match layer_type(config, index) {
            "mamba" => ("mamba", Mixer::Ssm(ssm.clone())),
            _ => ("self_attn", Mixer::Attention(layer.attention.clone())),
        };
        let (below, mlp) = match &experts {
            Some(experts) => ("block_sparse_moe", Mixer::Experts(experts.clone())),
            None => ("shared_mlp", Mixer::Mlp(layer.mlp.clone())),
        };
        vec![
            Sublayer {
                norm: "input_layernorm",
                path,
                mixer,
            },
            Sublayer {
                norm: "post_attention_layernorm",
                path: below,
                mixer: mlp,
            },
        ]
    });
    HybridDecoder {
        name: dense.name.clone(),
        embed: "model.embed_tokens",
        path: "model.layers",
        final_norm: "model.norm",
        hidden: dense.hidden,
        vocab: dense.vocab,
        embed_scale: number("embedding_multiplier")?,
        logits_scale: 1.0 / number("logits_scaling")?,
        norm: dense.norm,
        tied: dense.tied,
        layers: layers.collect(),
    }
    .graph()
}

/// Reads the experts of Nemotron 3: MLPs without gates, a sigmoid router with a selection bias, a
/// wider shared expert, and optionally a latent space.
fn nemotron_experts(config: Config<'_>) -> Result<ExpertsSpec> {
    config.require_values(&[("mlp_bias", "false")])?;
    let mut experts = ExpertsSpec::from_config(config, "moe_intermediate_size")?;
    experts.act = config.activation("mlp_hidden_act", "relu2")?;
    (experts.score, experts.selection_bias, experts.eps) = (
        RouterScore::Sigmoid,
        Some("gate.e_score_correction_bias"),
        1e-20,
    );
    experts.renormalize = config.flag_or("norm_topk_prob", true);
    experts.scale = config.number_or("routed_scaling_factor", 1.0)? as f32;
    experts.set_groups(config, true)?;
    experts.up = ExpertTensors::Ungated("up_proj");
    let shared = SharedExpert::new(
        "shared_experts",
        config.count("moe_shared_expert_intermediate_size")?,
    );
    experts.shared = Some(SharedExpert {
        projections: (MlpKind::Ungated("up_proj"), "down_proj"),
        ..shared
    });
    if config.get("moe_latent_size").is_some() {
        let names = ["fc1_latent_proj", "fc2_latent_proj"];
        experts.latent = Some(LatentProjection {
            names,
            cols: config.count("moe_latent_size")?,
        });
    }
    Ok(experts)
}

/// `NemotronHForCausalLM`.
fn nemotron(config: Config<'_>) -> Result<Graph> {
    let listed = config
        .get("layers_block_type")
        .or(config.get("layer_types"))
        .and_then(Value::as_array)
        .map(Vec::len);
    let count = listed.or(config.string("hybrid_override_pattern").map(str::len));
    let mut own = config.json().clone();
    if let Some(count) = count {
        own["num_hidden_layers"] = json!(count);
    }
    if config.get("head_dim").is_none() {
        own["head_dim"] = config
            .get("attention_head_dim")
            .cloned()
            .unwrap_or(json!(128));
    }
    let dense = DenseDecoder::from_config(config.with_fields(&own), false)?;
    let norm = NormSpec::rms(config.number_or(
        "layer_norm_epsilon",
        config.number_or("rms_norm_eps", 1e-5)?,
    )?);
    let groups = config.count_or("n_groups", 8)?;
    let ssm = check_ssm(
        config,
        SsmSpec {
            heads: config.count_or("mamba_num_heads", 128)?,
            head_dim: config.count_or("mamba_head_dim", 64)?,
            groups,
            state: config.count_or("ssm_state_size", 128)?,
            kernel_size: config.count_or("conv_kernel", 4)?,
            conv_bias: config.flag_or("use_conv_bias", true),
            bias: config.flag_or("use_bias", false),
            out_bias: config.flag_or("use_bias", false),
            dt_limits: [config.number_or("time_step_min", 0.001)? as f32, f32::MAX],
            negative_rates: config.load().container() == Container::Gguf,
            eps: norm.eps,
            gate: SsmGate::BeforeNorm,
            scales: [1.0; 5],
            out_scale: 1.0,
        },
    )?;
    let mut layers = Vec::new();
    for (index, layer) in dense.layers.iter().enumerate() {
        let mixer = match layer_type(config, index) {
            "mamba" => Mixer::Ssm(ssm.clone()),
            "attention" => {
                let mut attention = layer.attention.clone();
                attention.rope = None;
                Mixer::Attention(attention)
            }
            "mlp" => Mixer::Mlp(MlpSpec {
                act: config.activation("mlp_hidden_act", "relu2")?,
                kind: MlpKind::Ungated("up_proj"),
                bias: config.flag_or("mlp_bias", false),
                ..layer.mlp.clone()
            }),
            "moe" => Mixer::Experts(nemotron_experts(config)?),
            other => {
                let hint =
                    "Supported layer types: Mamba-2 (M), attention (*), MLP (-), experts (E).";
                return unsupported(config, format!("layer type '{other}'"), hint);
            }
        };
        layers.push(vec![Sublayer {
            norm: "norm",
            path: "mixer",
            mixer,
        }]);
    }
    HybridDecoder {
        name: dense.name.clone(),
        embed: "model.embeddings",
        path: "model.layers",
        final_norm: "model.norm_f",
        hidden: dense.hidden,
        vocab: dense.vocab,
        embed_scale: 1.0,
        logits_scale: 1.0,
        norm,
        // The output head is always a separate tensor, regardless of `tie_word_embeddings`.
        tied: false,
        layers,
    }
    .graph()
}
