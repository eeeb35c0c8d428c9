//! Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused projections, a sliding window, partial RoPE,
//! LongRoPE factors. Reference: transformers `modeling_phi3.py`.

use super::blocks::{DenseDecoder, MlpKind, QkvProjections};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::{gguf, mlc};
use crate::ir::Graph;

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Phi3ForCausalLM"],
    model_types: &["phi3"],
    defaults: r#"{"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}"#,
    decoder: Some(phi3),
    gguf: &[gguf::GgufSpec {
        names: &[
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        ..gguf::GgufSpec::new("phi3", "phi3", "Phi3ForCausalLM")
    }],
    mlc: &[mlc::MlcSpec {
        fused_projections: true,
        names: &[
            ("transformer.embd.", "model.embed_tokens."),
            ("transformer.h.", "model.layers."),
            ("transformer.", "model."),
            (".ln.", ".input_layernorm."),
            (".mixer.out_proj.", ".self_attn.o_proj."),
            (".mixer.", ".self_attn."),
        ],
        ..mlc::MlcSpec::new("phi3", "phi3", "Phi3ForCausalLM")
    }],
    ..Family::EMPTY
}];

/// `Phi3ForCausalLM`.
fn phi3(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.map_attention(|a| a.qkv.projections = QkvProjections::Fused("qkv_proj"));
    dense.map_mlp(|m| m.kind = MlpKind::GatedFused("gate_up_proj"));
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.set_windows(|_| window);
    dense.graph()
}
