//! Falcon-H1: a Mamba-2 mixer parallel to attention in every layer. The multipliers of nearly all
//! projections are folded into existing scales. MLX's converter has folded most into the weights
//! (mlx_lm's `falcon_h1.py`). Reference: transformers `modeling_falcon_h1.py`.

use super::blocks::MlpSpec;
use super::config::Config;
use super::family::Family;
use super::hybrid::{HybridDecoder, Mixer, SsmGate, SsmSpec, Sublayer};
use super::llama;
use super::mamba2::{check_ssm, ssm_from_config, ssm_gguf_fields};
use crate::format::gguf::GgufSpec;
use crate::ir::Graph;
use crate::{Error, Result};
use serde_json::json;

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["FalconH1ForCausalLM"],
    model_types: &["falcon_h1"],
    defaults: r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "mamba_d_ssm": 1024}"#,
    decoder: Some(falcon_h1),
    gguf: &[GgufSpec {
        names: &[
            ("output_norm", "model.final_layernorm"),
            // Some converted files lack the suffix `.weight`.
            ("ffn_norm", "pre_ff_layernorm.weight"),
            ("ffn_norm.weight", "pre_ff_layernorm.weight"),
            ("ffn_gate", "feed_forward.gate_proj"),
            ("ffn_up", "feed_forward.up_proj"),
            ("ffn_down", "feed_forward.down_proj"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_a", "mamba.A_log"),
            ("ssm_d", "mamba.D"),
            ("ssm_dt.bias", "mamba.dt_bias"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
        ],
        // The conversion folds the multipliers into the weights.
        set_fixed_fields: |file, out| {
            ssm_gguf_fields(file, out);
            out.insert(
                "mamba_d_ssm".into(),
                json!(file.float_field("ssm.inner_size").map(|n| n as u64)),
            );
            out.insert(
                "mamba_rms_norm".into(),
                json!(file.has_tensor("blk.0.ssm_norm.weight")),
            );
            out.insert("mamba_norm_before_gate".into(), json!(false));
        },
        ..GgufSpec::new("falcon-h1", "falcon_h1", "FalconH1ForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Reads a multiplier; one if absent.
fn number(config: Config<'_>, field: &str) -> Result<f32> {
    Ok(config.number_or(field, 1.0)? as f32)
}

/// Reads a multiplier that the weights of MLX files include; one if they do, or if absent.
fn multiplier(config: Config<'_>, field: &str) -> Result<f32> {
    match config.load().is_mlx_conversion {
        true => Ok(1.0),
        false => number(config, field),
    }
}

/// Reads a list of `N` such multipliers.
fn multipliers<const N: usize>(config: Config<'_>, field: &str) -> Result<[f32; N]> {
    let list = config.get(field);
    let Some(list) = list.filter(|_| !config.load().is_mlx_conversion) else {
        return Ok([1.0; N]);
    };
    let values: Option<Vec<f32>> = list
        .as_array()
        .and_then(|l| l.iter().map(|v| v.as_f64().map(|v| v as f32)).collect());
    // The other multipliers are divided by the first, which must not be zero.
    values
        .and_then(|v| v.try_into().ok())
        .filter(|v: &[f32; N]| v[0] != 0.0)
        .ok_or_else(|| Error::Config {
            file: "config.json".into(),
            reason: format!("'{field}' is not a list of {N} numbers with a nonzero first one"),
        })
}

/// `FalconH1ForCausalLM`.
fn falcon_h1(config: Config<'_>) -> Result<Graph> {
    config.require_values(&[("attention_bias", "false"), ("mlp_bias", "false")])?;
    let mut dense = llama::dense(config, false)?;
    let queries_and_keys = multiplier(config, "attention_in_multiplier")?;
    let values = number(config, "attention_in_multiplier")?;
    let kept = multiplier(config, "attention_out_multiplier")?;
    let key = number(config, "key_multiplier")?;
    dense.map_attention(|a| {
        a.scores.scale = a.scores.scale * queries_and_keys * queries_and_keys * key;
        a.output.scale = values * kept;
    });
    let [gate, down] = multipliers(config, "mlp_multipliers")?;
    let ssm = ssm(config, dense.hidden, dense.norm.eps)?;
    let logits_scale = match config.load().is_mlx_conversion && dense.tied {
        // The head is the embedding with its multiplier.
        true => number(config, "lm_head_multiplier")? / number(config, "embedding_multiplier")?,
        false => multiplier(config, "lm_head_multiplier")?,
    };
    let layers = dense.layers.iter().map(|layer| {
        let mixers = vec![
            ("mamba", Mixer::Ssm(ssm.clone())),
            ("self_attn", Mixer::Attention(layer.attention.clone())),
        ];
        let mlp = MlpSpec {
            gate_scale: gate,
            out_scale: down,
            ..layer.mlp.clone()
        };
        vec![
            Sublayer {
                norm: "input_layernorm",
                path: "",
                mixer: Mixer::Parallel(mixers),
            },
            Sublayer {
                norm: "pre_ff_layernorm",
                path: "feed_forward",
                mixer: Mixer::Mlp(mlp),
            },
        ]
    });
    HybridDecoder {
        name: dense.name.clone(),
        embed: "model.embed_tokens",
        path: "model.layers",
        final_norm: "model.final_layernorm",
        hidden: dense.hidden,
        vocab: dense.vocab,
        embed_scale: multiplier(config, "embedding_multiplier")?,
        logits_scale,
        norm: dense.norm,
        tied: dense.tied,
        layers: layers.collect(),
    }
    .graph()
}

/// Reads the Mamba-2 mixer of every layer.
fn ssm(config: Config<'_>, hidden: usize, eps: f32) -> Result<SsmSpec> {
    let given = multiplier(config, "ssm_in_multiplier")?;
    let inner = config.count_or("mamba_d_ssm", config.count_or("mamba_expand", 2)? * hidden)?;
    let gate = match (
        config.flag_or("mamba_rms_norm", false),
        config.flag_or("mamba_norm_before_gate", true),
    ) {
        (false, _) => SsmGate::WithoutNorm,
        (true, false) => SsmGate::BeforeNorm,
        (true, true) => SsmGate::AfterNorm,
    };
    let spec = SsmSpec {
        out_bias: config.flag_or("projectors_bias", false),
        gate,
        scales: multipliers(config, "ssm_multipliers")?,
        out_scale: multiplier(config, "ssm_out_multiplier")?,
        ..ssm_from_config(config, inner, eps)?
    };
    if given != 1.0 && spec.bias {
        let hint = "Set mamba_proj_bias to false, as in the published models.";
        let option = "ssm_in_multiplier with mamba_proj_bias".into();
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option,
            hint: hint.into(),
        });
    }
    check_ssm(
        config,
        SsmSpec {
            scales: spec.scales.map(|s| s * given),
            ..spec
        },
    )
}
