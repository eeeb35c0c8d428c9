//! Phi-1, 1.5 and 2: LayerNorm, parallel attention and MLP, partial RoPE, biases everywhere
//! including the output head. Reference: transformers `modeling_phi.py`.

use super::blocks::{DenseDecoder, MlpKind, NormSpec, TensorNames};
use super::config::Config;
use super::family::Family;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::Graph;
use crate::{Error, Result};
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["PhiForCausalLM"],
    model_types: &["phi"],
    defaults: r#"{"partial_rotary_factor": 0.5}"#,
    decoder: Some(phi),
    gguf: &[GgufSpec {
        names: &[
            ("attn_output", "self_attn.dense"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
            ("output_norm", "model.final_layernorm"),
        ],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("phi2", "phi", "PhiForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(_: &Gguf, out: &mut Map<String, Value>) {
    out.insert("hidden_act".into(), json!("gelu_new"));
}

/// `PhiForCausalLM`.
fn phi(config: Config<'_>) -> Result<Graph> {
    if config.flag_or("qk_layernorm", false) {
        return Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: "qk_layernorm = true".into(),
            hint: "The only supported value is false, as in the published models.".into(),
        });
    }
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.norm = NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)?);
    dense.names = TensorNames {
        before_mlp: "",
        final_norm: "model.final_layernorm",
        ..TensorNames::PRE
    };
    (dense.parallel, dense.head_bias) = (true, true);
    dense.map_attention(|a| {
        a.output.projection = "dense";
        a.set_bias(true);
    });
    let act = config.activation("hidden_act", "gelu_new")?;
    dense
        .map_mlp(|m| (m.kind, m.down, m.bias, m.act) = (MlpKind::Ungated("fc1"), "fc2", true, act));
    dense.graph()
}
