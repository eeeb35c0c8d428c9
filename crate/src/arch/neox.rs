//! GPT-NeoX and Pythia: LayerNorm, parallel attention and MLP, partial RoPE, q, k and v interleaved
//! by head. Reference: transformers `modeling_gpt_neox.py`.

use super::blocks::{DenseDecoder, MlpKind, NormSpec, QkvProjections, TensorNames};
use super::config::Config;
use super::family::Family;
use crate::Result;
use crate::format::RowOrder;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::Graph;
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    classes: &["GPTNeoXForCausalLM"],
    model_types: &["gpt_neox"],
    defaults: r#"{"rotary_pct": 0.25}"#,
    decoder: Some(neox),
    prefixes: &[("embed_out.", "lm_head.")],
    row_orders: &[
        ("attention.query_key_value.weight", separate_by_head),
        ("attention.query_key_value.bias", separate_by_head),
    ],
    gguf: &[GgufSpec {
        layer_prefix: "gpt_neox.layers",
        names: &[
            ("token_embd", "gpt_neox.embed_in"),
            ("output_norm", "gpt_neox.final_layer_norm"),
            ("attn_qkv", "attention.query_key_value"),
            ("attn_output", "attention.dense"),
            ("ffn_up", "mlp.dense_h_to_4h"),
            ("ffn_down", "mlp.dense_4h_to_h"),
        ],
        extra_fields: &[("use_parallel_residual", "use_parallel_residual")],
        set_fixed_fields: gguf_fields,
        ..GgufSpec::new("gptneox", "gpt_neox", "GPTNeoXForCausalLM")
    }],
    ..Family::EMPTY
}];

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(_: &Gguf, out: &mut Map<String, Value>) {
    out.insert("hidden_act".into(), json!("gelu"));
}

/// Separates the rows of q, k and v, which are interleaved by head.
fn separate_by_head(config: Config<'_>) -> Result<RowOrder> {
    let heads = config.count("num_attention_heads")?;
    let rows = config.count("hidden_size")? / heads;
    Ok(RowOrder::Grouped {
        groups: heads,
        group_rows: [rows, rows, rows, 0],
    })
}

/// `GPTNeoXForCausalLM`.
fn neox(config: Config<'_>) -> Result<Graph> {
    let mut dense = DenseDecoder::from_config(config, false)?;
    dense.norm = NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)?);
    dense.names = TensorNames {
        embed: "gpt_neox.embed_in",
        layers: "gpt_neox.layers",
        attention: "attention",
        final_norm: "gpt_neox.final_layer_norm",
        ..TensorNames::PRE
    };
    dense.parallel = config.flag_or("use_parallel_residual", true);
    let bias = config.flag_or("attention_bias", true);
    dense.map_attention(|a| {
        a.qkv.projections = QkvProjections::Fused("query_key_value");
        a.output.projection = "dense";
        a.set_bias(bias);
    });
    let act = config.activation("hidden_act", "gelu")?;
    let inner = MlpKind::Ungated("dense_h_to_4h");
    dense.map_mlp(|m| (m.kind, m.down, m.bias, m.act) = (inner, "dense_4h_to_h", true, act));
    dense.graph()
}
