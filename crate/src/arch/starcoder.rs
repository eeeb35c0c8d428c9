//! StarCoder2: LayerNorm, biases everywhere, an MLP without gate, a sliding window. Reference:
//! transformers `modeling_starcoder2.py`.

use super::blocks::{DenseDecoder, MlpKind, NormSpec};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Starcoder2ForCausalLM"],
    model_types: &["starcoder2"],
    defaults: r#"{"num_key_value_heads": 2}"#,
    decoder: Some(starcoder2),
    gguf: &[GgufSpec {
        names: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        extra_fields: &[("attention.layer_norm_epsilon", "norm_epsilon")],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("starcoder2", "starcoder2", "Starcoder2ForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    out.insert("hidden_act".into(), json!("gelu_pytorch_tanh"));
    out.insert("use_bias".into(), json!(file.has_qkv_bias()));
}

/// `Starcoder2ForCausalLM`.
fn starcoder2(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, true)?;
    dense.norm = NormSpec::layer(config.number_or("norm_epsilon", 1e-5)?);
    let bias = config.flag_or("use_bias", true);
    dense.map_attention(|a| a.set_bias(bias));
    let act = config.activation("hidden_act", "gelu_pytorch_tanh")?;
    dense.map_mlp(|m| {
        (m.kind, m.down, m.bias, m.act) = (MlpKind::Ungated("c_fc"), "c_proj", bias, act);
    });
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.set_windows(|_| window);
    dense.graph()
}
