//! GPT-2: LayerNorm, learned positions, an MLP without gate, weights stored as `[in, out]`.
//! Reference: transformers `modeling_gpt2.py`.

use super::blocks::{DenseDecoder, MlpKind, NormSpec, QkvProjections, TensorNames};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::RowOrder;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["GPT2LMHeadModel"],
    model_types: &["gpt2"],
    decoder: Some(gpt2),
    prefixes: &[("transformer.", "")],
    row_orders: &[
        ("attn.c_attn.weight", transposed),
        ("attn.c_proj.weight", transposed),
        ("mlp.c_fc.weight", transposed),
        ("mlp.c_proj.weight", transposed),
    ],
    gguf: &[GgufSpec {
        layer_prefix: "h",
        names: &[
            ("token_embd", "wte"),
            ("position_embd", "wpe"),
            ("output_norm", "ln_f"),
            ("attn_norm", "ln_1"),
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_norm", "ln_2"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ],
        extra_fields: &[
            ("embedding_length", "n_embd"),
            ("attention.head_count", "n_head"),
            ("block_count", "n_layer"),
            ("context_length", "n_positions"),
            ("feed_forward_length", "n_inner"),
            ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        ],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("gpt2", "gpt2", "GPT2LMHeadModel")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(_: &Gguf, out: &mut Map<String, Value>) {
    out.insert("activation_function".into(), json!("gelu_new"));
}

/// Transposes the weights, which are those of `Conv1D`.
fn transposed(_: Config<'_>) -> Result<RowOrder> {
    Ok(RowOrder::Transposed)
}

/// `GPT2LMHeadModel`.
fn gpt2(config: Config<'_>) -> Result<Graph> {
    config.require_values(&[("add_cross_attention", "false")])?;
    let hidden = config.count("n_embd")?;
    // Maps GPT-2's field names to the common ones.
    let usual = json!({
        "architectures": [config.architecture()],
        "hidden_size": hidden,
        "num_attention_heads": config.count("n_head")?,
        "num_hidden_layers": config.count("n_layer")?,
        "intermediate_size": config.count_or("n_inner", 4 * hidden)?,
        "vocab_size": config.count("vocab_size")?,
        "hidden_act": config.string("activation_function").unwrap_or("gelu_new"),
        "tie_word_embeddings": config.flag_or("tie_word_embeddings", true),
    });
    let mut dense = DenseDecoder::from_config(config.with_fields(&usual), true)?;
    dense.norm = NormSpec::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    dense.names = TensorNames {
        embed: "wte",
        layers: "h",
        attention: "attn",
        before_attention: "ln_1",
        before_mlp: "ln_2",
        final_norm: "ln_f",
        ..TensorNames::PRE
    };
    dense.positions = Some(("wpe", config.count_or("n_positions", 1024)?));
    let scaled = config.flag_or("scale_attn_weights", true);
    let by_layer = config.flag_or("scale_attn_by_inverse_layer_idx", false);
    for (index, layer) in dense.layers.iter_mut().enumerate() {
        let attention = &mut layer.attention;
        attention.rope = None;
        attention.qkv.projections = QkvProjections::Fused("c_attn");
        attention.output.projection = "c_proj";
        attention.set_bias(true);
        let by = if by_layer { index as f32 + 1.0 } else { 1.0 };
        attention.scores.scale = if scaled {
            attention.scores.scale / by
        } else {
            1.0 / by
        };
    }
    dense.map_mlp(|m| (m.kind, m.down, m.bias) = (MlpKind::Ungated("c_fc"), "c_proj", true));
    dense.graph()
}
