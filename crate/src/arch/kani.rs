//! What Kani-TTS-2 adds to LFM2: layers with attention that stretch their rotation, each by a number that was learned.
//! Reference: tests/golden/scripts/make_kani.py.

use super::config::Config;
use crate::Result;

/// The tensor that turns a speaker's vector into a row of the prompt.
pub const SPEAKER_PROJECTION: &str = "model.speaker_emb_projection.weight";

/// Layers that multiply their rotation's frequencies by a learned number, as the tensors that tell it.
pub(super) fn learned(config: Config<'_>) -> Vec<String> {
    let layers =
        if config.flag_or("use_learnable_rope", false) { config.count_or("num_hidden_layers", 0) } else { Ok(0) };
    (0..layers.unwrap_or(0).min(1024))
        .filter(|layer| config.layer_type(*layer) == Some("full_attention"))
        .map(|layer| format!("model.learnable_rope_layers.{layer}.alpha_weight"))
        .collect()
}

/// What a layer multiplies its rotation's frequencies by: a sigmoid of the tensor's number between two ends.
pub(super) fn stretch(config: Config<'_>, layer: usize) -> Result<f64> {
    let name = format!("model.learnable_rope_layers.{layer}.alpha_weight");
    let Some(number) = config.get("numbers").and_then(|all| all.get(&name)?.as_f64()) else { return Ok(1.0) };
    let (least, most) = (config.number_or("alpha_min", 0.1)?, config.number_or("alpha_max", 2.0)?);
    Ok(least + (most - least) / (1.0 + (-number).exp()))
}
