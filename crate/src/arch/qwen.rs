//! Qwen2 and Qwen2.5 (biases on q, k, v), Qwen3 (norms on the heads of q and k).
//! Reference: transformers `modeling_qwen2.py`, `modeling_qwen3.py`.

use super::blocks::Dense;
use super::config::Config;
use crate::Result;
use crate::ir::Graph;

/// `Qwen2ForCausalLM`.
pub fn qwen2(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, false)?;
    dense.qkv_bias = true;
    windows(&mut dense, config)?;
    dense.graph()
}

/// `Qwen3ForCausalLM`.
pub fn qwen3(config: Config<'_>) -> Result<Graph> {
    let mut dense = Dense::from_config(config, false)?;
    let bias = config.flag_or("attention_bias", false);
    (dense.qkv_bias, dense.o_bias) = (bias, bias);
    dense.head_norm = true;
    windows(&mut dense, config)?;
    dense.graph()
}

/// The layers from `max_window_layers` on have a window where the configuration switches it on.
fn windows(dense: &mut Dense, config: Config<'_>) -> Result<()> {
    if !config.flag_or("use_sliding_window", false) || config.get("sliding_window").is_none() {
        return Ok(());
    }
    let window = config.count("sliding_window")?;
    let first = config.number_or("max_window_layers", 28.0)? as usize;
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        let sliding = config.layer_type(index).map_or(index >= first, |t| t == "sliding_attention");
        layer.window = if sliding { window } else { 0 };
    }
    Ok(())
}
