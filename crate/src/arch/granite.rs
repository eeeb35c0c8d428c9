//! Granite 3: Llama with multipliers of embeddings, residuals, scores and logits; also its
//! mixture-of-experts models, with an optional shared expert. Reference: transformers
//! `modeling_granite.py`, `modeling_granitemoe.py`, `modeling_granitemoeshared.py`.

use super::blocks::experts::{ExpertsSpec, SharedExpert};
use super::blocks::{DenseDecoder, MlpKind};
use super::config::Config;
use super::config::Container;
use super::family::Family;
use super::llama;
use crate::Result;
use crate::format::gguf::GgufSpec;
use crate::ir::Graph;

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["GraniteForCausalLM"],
        model_types: &["granite"],
        decoder: Some(granite),
        gguf: &[GgufSpec {
            interleaved_rope: true,
            ..GgufSpec::new("granite", "granite", "GraniteForCausalLM")
        }],
        ..Family::EMPTY
    },
    Family {
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        model_types: &["granitemoe", "granitemoeshared"],
        defaults: r#"{"num_local_experts": 8, "num_experts_per_tok": 2}"#,
        decoder: Some(granite_moe),
        gguf: &[GgufSpec {
            has_experts: true,
            interleaved_rope: true,
            names: &[
                ("ffn_gate_inp", "block_sparse_moe.router.layer"),
                ("ffn_gate_exps", "block_sparse_moe.experts.{e}.gate_proj"),
                ("ffn_up_exps", "block_sparse_moe.experts.{e}.up_proj"),
                ("ffn_down_exps", "block_sparse_moe.experts.{e}.down_proj"),
                ("ffn_gate_shexp", "shared_mlp.gate_proj"),
                ("ffn_up_shexp", "shared_mlp.up_proj"),
                ("ffn_down_shexp", "shared_mlp.output_linear"),
            ],
            extra_fields: &[(
                "expert_shared_feed_forward_length",
                "shared_intermediate_size",
            )],
            ..GgufSpec::new(
                "granitemoe",
                "granitemoeshared",
                "GraniteMoeSharedForCausalLM",
            )
        }],
        ..Family::EMPTY
    },
];

/// `GraniteForCausalLM`.
fn granite(config: Config<'_>) -> Result<Graph> {
    dense(config)?.graph()
}

/// `GraniteMoeForCausalLM`, `GraniteMoeSharedForCausalLM`.
fn granite_moe(config: Config<'_>) -> Result<Graph> {
    let mut dense = dense(config)?;
    dense.names.mlp = "block_sparse_moe";
    let shared = config.number_or("shared_intermediate_size", 0.0)? as usize;
    let experts = experts(config, shared)?;
    dense
        .layers
        .iter_mut()
        .for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}

/// Returns Llama with Granite's multipliers.
fn dense(config: Config<'_>) -> Result<DenseDecoder> {
    let mut dense = llama::dense(config, false)?;
    let number = |field: &str| Ok::<_, crate::Error>(config.number_or(field, 1.0)? as f32);
    let residual = number("residual_multiplier")?;
    let scale = number("attention_multiplier")?;

    dense.embed_scale = number("embedding_multiplier")?;
    dense.logits_scale = 1.0 / number("logits_scaling")?;
    dense.map_attention(|a| {
        a.scores.scale = scale;
        a.output.scale = residual;
    });
    dense.map_mlp(|m| m.out_scale = residual);
    Ok(dense)
}

/// Reads the experts under `block_sparse_moe`, weighted by the softmax over the top-k. A shared
/// expert of `shared` inner columns is next to them; 0 for none.
pub(super) fn experts(config: Config<'_>, shared: usize) -> Result<ExpertsSpec> {
    let mut experts = ExpertsSpec::from_config(config, "intermediate_size")?;
    (experts.router, experts.renormalize) = (("router.layer", false), true);
    experts.out_scale = config.number_or("residual_multiplier", 1.0)? as f32;
    experts.shared = (shared > 0).then_some(SharedExpert {
        projections: (shared_mlp(config), "output_linear"),
        in_layer: true,
        ..SharedExpert::new("shared_mlp", shared)
    });
    Ok(experts)
}

/// Returns the input projections of the shared MLP: one tensor, in GGUF and MLX files two.
pub(super) fn shared_mlp(config: Config<'_>) -> MlpKind {
    if config.load().container() == Container::Gguf || config.load().separate_shared_mlp {
        MlpKind::Gated(["gate_proj", "up_proj"])
    } else {
        MlpKind::GatedFused("input_linear")
    }
}
