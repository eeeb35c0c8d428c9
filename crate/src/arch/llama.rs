//! Llama 1 to 3, TinyLlama, SmolLM 1 and 2, DeepSeek-R1-Distill (`LlamaForCausalLM`); Mistral with
//! its sliding window, Nemo and Ministral; SmolLM3 with RoPE-free layers. Reference: transformers
//! `modeling_llama.py`, `modeling_mistral.py`, `modeling_smollm3.py`.

use super::blocks::DenseDecoder;
use super::config::Config;
use super::family::Family;
use super::vision::siglip::IDEFICS3;
use crate::Result;
use crate::format::{gguf, mlc};
use crate::ir::Graph;
use serde_json::Value;

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["LlamaForCausalLM"],
        model_types: &["llama"],
        decoder: Some(llama),
        gguf: &[
            gguf::GgufSpec {
                interleaved_rope: true,
                ..gguf::GgufSpec::new("llama", "llama", "LlamaForCausalLM")
            },
            // llama.cpp's architecture for `LlamaBidirectionalModel`, which has no causal mask.
            gguf::GgufSpec {
                interleaved_rope: true,
                set_fixed_fields: |file, out| {
                    gguf::set_common_fields(file, out);
                    out.insert("is_causal".into(), false.into());
                },
                ..gguf::GgufSpec::new("llama-embed", "llama", "LlamaBidirectionalModel")
            },
        ],
        mlc: &[mlc::MlcSpec::new("llama", "llama", "LlamaForCausalLM")],
        ..Family::EMPTY
    },
    Family {
        classes: &["MistralForCausalLM", "MinistralForCausalLM"],
        model_types: &["mistral", "ministral"],
        defaults: r#"{"num_key_value_heads": 8, "sliding_window": 4096}"#,
        decoder: Some(mistral),
        mlc: &[mlc::MlcSpec::new(
            "mistral",
            "mistral",
            "MistralForCausalLM",
        )],
        ..Family::EMPTY
    },
    Family {
        classes: &[
            "SmolVLMForConditionalGeneration",
            "Idefics3ForConditionalGeneration",
        ],
        model_types: &["smolvlm", "idefics3"],
        defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}"#,
        decoder: Some(llama),
        // Names of mlx-vlm, whose language model has no `model` level.
        prefixes: &[
            ("language_model.model.", "model."),
            ("language_model.lm_head.", "lm_head."),
            ("language_model.", "model."),
            ("vision_model.", "model.vision_model."),
            ("connector.", "model.connector."),
        ],
        vision: Some(IDEFICS3),
        ..Family::EMPTY
    },
    Family {
        classes: &["SmolLM3ForCausalLM"],
        model_types: &["smollm3"],
        defaults: r#"{"num_key_value_heads": 4, "rope_theta": 2e6}"#,
        decoder: Some(smollm3),
        gguf: &[gguf::GgufSpec {
            interleaved_rope: true,
            ..gguf::GgufSpec::new("smollm3", "smollm3", "SmolLM3ForCausalLM")
        }],
        mlc: &[mlc::MlcSpec::new(
            "smollm3",
            "smollm3",
            "SmolLM3ForCausalLM",
        )],
        ..Family::EMPTY
    },
];

/// `LlamaForCausalLM`.
pub(super) fn llama(config: Config<'_>) -> Result<Graph> {
    dense(config, false)?.graph()
}

/// Returns the Llama decoder with optional biases; other families start from it.
pub(super) fn dense(config: Config<'_>, tied_by_default: bool) -> Result<DenseDecoder> {
    let mut dense = DenseDecoder::from_config(config, tied_by_default)?;
    let attention = config.flag_or("attention_bias", false);
    let mlp = config.flag_or("mlp_bias", false);

    dense.map_attention(|a| a.set_bias(attention));
    dense.map_mlp(|m| m.bias = mlp);
    Ok(dense)
}

/// `MistralForCausalLM`, `MinistralForCausalLM`.
fn mistral(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    let window = config.count_or("sliding_window", 0).unwrap_or(0);
    dense.set_windows(|index| {
        if config.layer_type(index) == Some("full_attention") {
            0
        } else {
            window
        }
    });
    dense.graph()
}

/// `SmolLM3ForCausalLM`.
fn smollm3(config: Config<'_>) -> Result<Graph> {
    let mut dense = dense(config, true)?;
    let interval = config.count_or("no_rope_layer_interval", 4)?;
    let listed = config.get("no_rope_layers").and_then(Value::as_array);
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        // In `no_rope_layers`, 1 means that the layer has RoPE.
        let listed = listed.and_then(|l| l.get(index)).and_then(Value::as_u64);
        let rotated = listed.map_or((index + 1) % interval != 0, |r| r == 1);
        if !rotated {
            layer.attention.rope = None;
        }
    }
    let window = if config.flag_or("use_sliding_window", false) {
        config.count_or("sliding_window", 0)?
    } else {
        0
    };
    dense.set_windows(|index| {
        if config.layer_type(index) == Some("sliding_attention") {
            window
        } else {
            0
        }
    });
    dense.graph()
}
