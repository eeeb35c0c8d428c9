//! Granite 3: Llama with multipliers of embeddings, residuals, scores and logits.
//! Reference: transformers `modeling_granite.py`.

use super::config::Config;
use super::family::Family;
use super::llama;
use crate::Result;
use crate::format::gguf::Architecture;
use crate::ir::Graph;

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["GraniteForCausalLM"],
    model_types: &["granite"],
    decoder: Some(granite),
    gguf: &[Architecture { interleaved: true, ..Architecture::new("granite", "granite", "GraniteForCausalLM") }],
    ..Family::NONE
}];

/// `GraniteForCausalLM`.
fn granite(config: Config<'_>) -> Result<Graph> {
    let mut dense = llama::dense(config, false)?;
    let number = |field: &str| Ok::<_, crate::Error>(config.number_or(field, 1.0)? as f32);
    let (residual, scale) = (number("residual_multiplier")?, number("attention_multiplier")?);
    dense.embed_scale = number("embedding_multiplier")?;
    dense.logits_scale = 1.0 / number("logits_scaling")?;
    dense.attentions(|a| (a.scale, a.out_scale) = (scale, residual));
    dense.mlps(|m| m.out_scale = residual);
    dense.graph()
}
