//! Llama 1 to 3, SmolLM 1 and 2 (`LlamaForCausalLM`), Mistral with its sliding window, SmolLM3 with layers without
//! rotation. Reference: transformers `modeling_llama.py`, `modeling_mistral.py`, `modeling_smollm3.py`.

use super::blocks::Dense;
use super::config::Config;
use crate::Result;
use crate::ir::Graph;
use serde_json::Value;

/// `LlamaForCausalLM`.
pub fn llama(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, false)?;
    let bias = config.flag_or("attention_bias", false);
    (dense.qkv_bias, dense.o_bias) = (bias, bias);
    dense.mlp_bias = config.flag_or("mlp_bias", false);
    dense.graph()
}

/// `MistralForCausalLM`.
pub fn mistral(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, false)?;
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.layers.iter_mut().for_each(|l| l.window = window);
    dense.graph()
}

/// `SmolLM3ForCausalLM`.
pub fn smollm3(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, true)?;
    let bias = config.flag_or("attention_bias", false);
    (dense.qkv_bias, dense.o_bias) = (bias, bias);
    dense.mlp_bias = config.flag_or("mlp_bias", false);
    let interval = config.count_or("no_rope_layer_interval", 4)?;
    let listed = config.get("no_rope_layers").and_then(Value::as_array);
    let window = if config.flag_or("use_sliding_window", false) { config.count_or("sliding_window", 0)? } else { 0 };
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        // The list's 1 means "with rotation", whatever its name says.
        let listed = listed.and_then(|l| l.get(index)).and_then(Value::as_u64);
        let rotated = listed.map_or((index + 1) % interval != 0, |r| r == 1);
        if !rotated {
            layer.rope = None;
        }
        layer.window = if config.layer_type(index) == Some("sliding_attention") { window } else { 0 };
    }
    dense.graph()
}
