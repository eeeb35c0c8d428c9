//! OLMo 2: norms after each part only, norms over whole projections of q and k. OLMo 3: the same
//! with sliding windows, and a separate RoPE in full-attention layers. OLMoE: those norms of q and
//! k, norms before each part, and experts. Reference: transformers `modeling_olmo2.py`,
//! `modeling_olmo3.py`, `modeling_olmoe.py`.

use super::blocks::experts::ExpertsSpec;
use super::blocks::{DenseDecoder, QkNorm, QkNormScope, TensorNames};
use super::config::Config;
use super::family::Family;
use super::{llama, qwen};
use crate::Result;
use crate::format::gguf::{self, Gguf};
use crate::format::mlc;
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["Olmo2ForCausalLM"],
        model_types: &["olmo2"],
        defaults: r#"{"rms_norm_eps": 1e-5}"#,
        decoder: Some(olmo2),
        gguf: &[gguf::GgufSpec {
            set_fixed_fields: gguf_fields,
            ..gguf::GgufSpec::new("olmo2", "olmo2", "Olmo2ForCausalLM")
        }],
        mlc: &[mlc::MlcSpec::new("olmo2", "olmo2", "Olmo2ForCausalLM")],
        ..Family::EMPTY
    },
    Family {
        classes: &["Olmo3ForCausalLM"],
        model_types: &["olmo3"],
        defaults: r#"{"rms_norm_eps": 1e-5}"#,
        decoder: Some(olmo3),
        ..Family::EMPTY
    },
    Family {
        classes: &["OlmoeForCausalLM"],
        model_types: &["olmoe"],
        defaults: r#"{"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8}"#,
        decoder: Some(olmoe),
        gguf: &[gguf::GgufSpec {
            has_experts: true,
            ..gguf::GgufSpec::new("olmoe", "olmoe", "OlmoeForCausalLM")
        }],
        ..Family::EMPTY
    },
];

/// Default RoPE base of OLMo 3.
const ROPE_BASE: f64 = 500_000.0;

/// Detects OLMo 3, whose GGUF files have OLMo 2's name, by its sliding window.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    gguf::set_common_fields(file, out);
    if file
        .float_field("attention.sliding_window")
        .is_none_or(|window| window < 1.0)
    {
        return;
    }
    let fields = [
        ("model_type", json!("olmo3")),
        ("architectures", json!(["Olmo3ForCausalLM"])),
    ];
    out.extend(fields.map(|(key, value)| (key.to_string(), value)));
}

/// Returns the common decoder: Llama with norms over whole projections of q and k.
fn olmo_dense(config: Config<'_>) -> Result<DenseDecoder> {
    let mut dense = llama::dense(config, false)?;
    dense.map_mlp(|m| m.bias = false);
    let spec = dense.norm;
    dense.map_attention(|a| {
        a.qkv.norm = Some(QkNorm {
            scope: QkNormScope::Projection,
            ..qwen::head_norm(spec)
        });
    });
    Ok(dense)
}

/// `Olmo2ForCausalLM`.
fn olmo2(config: Config<'_>) -> Result<Graph> {
    DenseDecoder {
        names: TensorNames::POST,
        ..olmo_dense(config)?
    }
    .graph()
}

/// `Olmo3ForCausalLM`: three layers with a window, then one without.
fn olmo3(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder {
        names: TensorNames::POST,
        ..olmo_dense(config)?
    };
    let window = config.count_or("sliding_window", 4096)?;
    let head_dim = dense.layers[0].attention.heads.dim;
    // Older files have one set of parameters, whose scaling applies to full-attention layers.
    let by_kind = config
        .get("rope_parameters")
        .is_some_and(|p| p.get("full_attention").is_some());
    let full = match by_kind {
        true => config.rope_for_type("full_attention", head_dim, ROPE_BASE)?,
        false => config.rope(head_dim, ROPE_BASE)?,
    };
    let slid = config.rope_for_type("sliding_attention", head_dim, ROPE_BASE)?;
    dense.set_windows(|index| {
        let slides = config
            .layer_type(index)
            .map_or((index + 1) % 4 != 0, |t| t == "sliding_attention");
        if slides { window } else { 0 }
    });
    dense.map_attention(|a| {
        let slides = a.mask != crate::ir::Mask::Causal { window: 0 };
        a.rope = Some(if slides { slid.clone() } else { full.clone() });
    });
    dense.graph()
}

/// `OlmoeForCausalLM`.
fn olmoe(config: Config<'_>) -> Result<Graph> {
    config.require_values(&[("clip_qkv", "null")])?;
    let mut dense = olmo_dense(config)?;
    let experts = ExpertsSpec::from_config(config, "intermediate_size")?;
    dense
        .layers
        .iter_mut()
        .for_each(|l| l.experts = Some(experts.clone()));
    dense.graph()
}
