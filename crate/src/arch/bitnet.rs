//! BitNet b1.58: Llama with ternary weights, norms before the output projections, and activations
//! quantized to 8 bits. Reference: transformers `modeling_bitnet.py`, `integrations/bitnet.py`.

use super::config::Config;
use super::family::Family;
use super::llama;
use crate::Result;
use crate::format::gguf::{self, Gguf, GgufSpec};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["BitNetForCausalLM", "BitnetForCausalLM"],
    model_types: &["bitnet"],
    defaults: r#"{"num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "hidden_act": "relu2"}"#,
    decoder: Some(bitnet),
    gguf: &[
        GgufSpec {
            set_fixed_fields: old_gguf_fields,
            ..GgufSpec::new("bitnet", "bitnet", "BitNetForCausalLM")
        },
        GgufSpec {
            set_fixed_fields: gguf_fields,
            ..GgufSpec::new("bitnet-b1.58", "bitnet", "BitNetForCausalLM")
        },
    ],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    out.insert("hidden_act".into(), json!("relu2"));
    gguf::set_common_fields(file, out);
    // Activations are quantized to 8 bits, as with the packed safetensors.
    let how = json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"});
    out.insert("quantization_config".into(), how);
}

/// Like [`fixed`], for the first models, which are Llama with SiLU.
fn old_gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    gguf_fields(file, out);
    out.insert("hidden_act".into(), json!("silu"));
}

/// `BitNetForCausalLM`.
fn bitnet(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, true)?;
    let spec = dense.norm;
    dense.map_attention(|a| a.output.norm = Some(("attn_sub_norm", spec)));
    dense.map_mlp(|m| m.sub_norm = Some(("ffn_sub_norm", spec)));
    dense.graph()
}
