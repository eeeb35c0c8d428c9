//! Kani-TTS-2's additions to LFM2: attention layers scale their RoPE frequencies by a learned
//! factor. Reference: tests/golden/scripts/make_kani.py.

use super::config::Config;
use crate::Result;

/// The tensor that projects a speaker embedding to a prompt row.
pub const SPEAKER_PROJECTION: &str = "model.speaker_emb_projection.weight";

/// Lists the scalar tensors with the learned RoPE factors, one per attention layer.
pub(super) fn rope_factor_tensors(config: Config<'_>) -> Vec<String> {
    let layers = if config.flag_or("use_learnable_rope", false) {
        config.count_or("num_hidden_layers", 0)
    } else {
        Ok(0)
    };
    (0..layers.unwrap_or(0).min(1024))
        .filter(|layer| config.layer_type(*layer) == Some("full_attention"))
        .map(|layer| format!("model.learnable_rope_layers.{layer}.alpha_weight"))
        .collect()
}

/// Returns a layer's factor of the RoPE frequencies: a sigmoid of the learned scalar, mapped to
/// `alpha_min`..`alpha_max`.
pub(super) fn rope_factor(config: Config<'_>, layer: usize) -> Result<f64> {
    let name = format!("model.learnable_rope_layers.{layer}.alpha_weight");
    let Some(number) = config.load().scalars.get(&name) else {
        return Ok(1.0);
    };
    let least = config.number_or("alpha_min", 0.1)?;
    let most = config.number_or("alpha_max", 2.0)?;

    Ok(least + (most - least) / (1.0 + (-number).exp()))
}
