//! Hunyuan (dense): Llama with norms of the heads of q and k after RoPE, and a scaled RoPE base.
//! Reference: transformers `modeling_hunyuan_v1_dense.py`.

use super::blocks::{QkNorm, QkNormScope};
use super::config::Config;
use super::family::Family;
use super::llama;
use crate::Result;
use crate::format::gguf::GgufSpec;
use crate::ir::{Graph, RopeScaling};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["HunYuanDenseV1ForCausalLM"],
    model_types: &["hunyuan_v1_dense"],
    defaults: r#"{"rms_norm_eps": 1e-5}"#,
    decoder: Some(hunyuan),
    gguf: &[GgufSpec {
        names: &[
            ("attn_q_norm", "self_attn.query_layernorm"),
            ("attn_k_norm", "self_attn.key_layernorm"),
        ],
        ..GgufSpec::new(
            "hunyuan-dense",
            "hunyuan_v1_dense",
            "HunYuanDenseV1ForCausalLM",
        )
    }],
    ..Family::EMPTY
}];

/// `HunYuanDenseV1ForCausalLM`.
fn hunyuan(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    dense.map_mlp(|m| m.bias = false);
    // The norm after RoPE cancels RoPE's attention factor, except for epsilon, which is divided by
    // its square.
    let names = ["query_layernorm", "key_layernorm"];
    let mut spec = dense.norm;

    for rope in dense
        .layers
        .iter_mut()
        .filter_map(|l| l.attention.rope.as_mut())
    {
        if let RopeScaling::Yarn {
            attention_factor: by,
            ..
        }
        | RopeScaling::LongRope {
            attention_factor: by,
            ..
        } = &mut rope.scaling
        {
            spec.eps = dense.norm.eps / (*by * *by) as f32;
            *by = 1.0;
        }
    }
    dense.map_attention(|a| {
        a.qkv.norm = Some(QkNorm {
            names,
            spec,
            scope: QkNormScope::HeadAfterRope,
        });
    });
    // "dynamic" with `alpha` means one base for all lengths here.
    let scaling = config
        .nested("rope_parameters")
        .or(config.nested("rope_scaling"));
    let alpha = scaling.map_or(Ok(0.0), |s| s.number_or("alpha", 0.0))?;
    if alpha > 0.0 {
        for rope in dense
            .layers
            .iter_mut()
            .filter_map(|l| l.attention.rope.as_mut())
        {
            let dim = rope.dim as f64;
            (rope.base, rope.scaling) = (
                rope.base * alpha.powf(dim / (dim - 2.0)),
                RopeScaling::Default,
            );
        }
    }
    dense.graph()
}
