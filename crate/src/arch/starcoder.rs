//! StarCoder2: LayerNorm, biases everywhere, an MLP without gate, a sliding window. Reference: transformers
//! `modeling_starcoder2.py`.

use super::blocks::{Dense, Inner, NormSpec};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::gguf::{Architecture, Gguf};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Starcoder2ForCausalLM"],
    model_types: &["starcoder2"],
    silent: r#"{"num_key_value_heads": 2}"#,
    decoder: Some(starcoder2),
    gguf: &[Architecture {
        names: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        fields: &[("attention.layer_norm_epsilon", "norm_epsilon")],
        fixed,
        ..Architecture::new("starcoder2", "starcoder2", "Starcoder2ForCausalLM")
    }],
    ..Family::NONE
}];

/// Sets the fields that the conversion to GGUF drops.
fn fixed(file: &Gguf, out: &mut Map<String, Value>) {
    out.insert("hidden_act".into(), json!("gelu_pytorch_tanh"));
    out.insert("use_bias".into(), json!(file.has("blk.0.attn_q.bias")));
}

/// `Starcoder2ForCausalLM`.
fn starcoder2(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, true)?;
    dense.norm = NormSpec::layer(config.number_or("norm_epsilon", 1e-5)?);
    let bias = config.flag_or("use_bias", true);
    dense.attentions(|a| (a.qkv_bias, a.out_bias) = (bias, bias));
    let act = config.activation("hidden_act", "gelu_pytorch_tanh")?;
    dense.mlps(|m| (m.inner, m.down, m.bias, m.act) = (Inner::Plain("c_fc"), "c_proj", bias, act));
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.windows(|_| window);
    dense.graph()
}
