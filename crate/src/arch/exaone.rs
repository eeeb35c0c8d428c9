//! EXAONE 4: norms after each part, norms of the heads of q and k, no RoPE in full-attention
//! layers. Reference: transformers `modeling_exaone4.py`.

use super::blocks::{DenseDecoder, TensorNames};
use super::config::Config;
use super::family::Family;
use super::qwen::head_norm;
use crate::Result;
use crate::format::gguf::{self, Gguf, GgufSpec};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["Exaone4ForCausalLM"],
    model_types: &["exaone4"],
    defaults: r#"{"rms_norm_eps": 1e-5, "sliding_window": 4096}"#,
    decoder: Some(exaone4),
    gguf: &[GgufSpec {
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("exaone4", "exaone4", "Exaone4ForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops: with sliding windows, every fourth layer has
/// full attention.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    gguf::set_common_fields(file, out);
    out.entry("sliding_window_pattern").or_insert(json!(4));
}

/// `Exaone4ForCausalLM`.
fn exaone4(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.names = TensorNames::POST;
    let spec = dense.norm;
    dense.map_attention(|a| a.qkv.norm = Some(head_norm(spec)));
    if config.get("sliding_window").is_none() {
        return dense.graph();
    }
    let window = config.count("sliding_window")?;
    let last = dense.layers.len() - 1;

    // The pattern is a number, or a string with L for each sliding-window layer and G for each
    // full-attention layer.
    let word = config
        .string("sliding_window_pattern")
        .filter(|w| !w.is_empty());
    let every = if word.is_some() {
        4
    } else {
        config.count_or("sliding_window_pattern", 4)?
    };
    let sliding = |index: usize| match (config.layer_type(index), word) {
        (Some(kind), _) => kind == "sliding_attention",
        (None, Some(word)) => index != last && word.as_bytes()[index % word.len()] == b'L',
        (None, None) => !(index + 1).is_multiple_of(every),
    };
    dense.set_windows(|index| if sliding(index) { window } else { 0 });
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        if !sliding(index) {
            layer.attention.rope = None;
        }
    }
    dense.graph()
}
