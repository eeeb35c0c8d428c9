//! GLM-4 (0414): norms before and after each part, interleaved RoPE over half a head, gate and up
//! in one tensor. Reference: transformers `modeling_glm4.py`.

use super::blocks::{DenseDecoder, MlpKind, TensorNames};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::gguf::GgufSpec;
use crate::ir::Graph;

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Glm4ForCausalLM"],
    model_types: &["glm4"],
    defaults: r#"{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-7, "attention_bias": true, "partial_rotary_factor": 0.5}"#,
    decoder: Some(glm4),
    gguf: &[GgufSpec {
        names: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        ..GgufSpec::new("glm4", "glm4", "Glm4ForCausalLM")
    }],
    ..Family::EMPTY
}];

/// `Glm4ForCausalLM`.
fn glm4(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.names = TensorNames {
        after_attention: "post_self_attn_layernorm",
        after_mlp: "post_mlp_layernorm",
        ..TensorNames::PRE
    };
    let bias = config.flag_or("attention_bias", false);
    dense.map_attention(|a| a.qkv.bias = bias);
    dense.interleave_rope();
    dense.map_mlp(|m| m.kind = MlpKind::GatedFused("gate_up_proj"));
    dense.graph()
}
