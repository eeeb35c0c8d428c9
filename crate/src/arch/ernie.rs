//! Ernie 4.5 without experts, and Helium: Llama with rotation of neighbouring columns.
//! Reference: transformers `modeling_ernie4_5.py`, `modeling_helium.py`.

use super::config::Config;
use super::family::Family;
use super::llama;
use crate::Result;
use crate::format::gguf::{self, Architecture, Gguf};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["Ernie4_5ForCausalLM"],
        model_types: &["ernie4_5"],
        silent: r#"{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 5e5}"#,
        decoder: Some(ernie),
        gguf: &[Architecture { fixed, ..Architecture::new("ernie4_5", "ernie4_5", "Ernie4_5ForCausalLM") }],
        ..Family::NONE
    },
    Family {
        classes: &["HeliumForCausalLM"],
        model_types: &["helium"],
        silent: r#"{"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 1e5}"#,
        decoder: Some(helium),
        ..Family::NONE
    },
];

/// What the conversion to GGUF leaves out.
fn fixed(file: &Gguf, out: &mut Map<String, Value>) {
    gguf::usual(file, out);
    out.insert("use_bias".into(), json!(file.has("blk.0.attn_q.bias")));
}

/// `Ernie4_5ForCausalLM`.
fn ernie(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, true)?;
    let bias = config.flag_or("use_bias", false);
    dense.attentions(|a| (a.qkv_bias, a.out_bias) = (bias, bias));
    dense.mlps(|m| m.bias = bias);
    dense.interleave();
    dense.graph()
}

/// `HeliumForCausalLM`.
fn helium(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    dense.attentions(|a| a.out_bias = false);
    dense.interleave();
    dense.graph()
}
