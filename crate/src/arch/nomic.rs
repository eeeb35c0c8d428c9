//! nomic-embed-text: BERT with RoPE instead of a position table, and a gated MLP. Reference:
//! transformers `modeling_nomic_bert.py`; published files use GPT-2's names for sizes.

use super::config::Config;
use super::encoder::{
    EncoderBody, PositionScheme, bidirectional, embedding_table, fused_attention, head_dim,
    layer_norm,
};
use super::family::Family;
use crate::format::gguf::{Gguf, GgufSpec};
use crate::ir::{Activation, Gated, GraphBuilder, IdSource};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

pub(super) static FAMILIES: &[Family] = &[Family {
    model_types: &["nomic_bert"],
    encoder: Some(nomic_bert),
    gguf: &[IN_GGUF],
    ..Family::EMPTY
}];

const IN_GGUF: GgufSpec = GgufSpec {
    layer_prefix: "encoder.layers",
    names: &[
        ("token_embd", "embeddings.word_embeddings"),
        ("token_types", "embeddings.token_type_embeddings"),
        ("token_embd_norm", "emb_ln"),
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.out_proj"),
        ("attn_output_norm", "norm1"),
        ("ffn_up", "mlp.fc11"),
        ("ffn_gate", "mlp.fc12"),
        ("ffn_down", "mlp.fc2"),
        ("layer_output_norm", "norm2"),
    ],
    set_fixed_fields: gguf_fields,
    ..GgufSpec::new("nomic-bert", "nomic_bert", "NomicBertModel")
};

/// Sets the fields that the conversion to GGUF drops.
fn gguf_fields(file: &Gguf, out: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Value| drop(out.insert(key.into(), value));
    let types = file
        .tensors
        .get("token_types.weight")
        .and_then(|t| t.shape.first());
    set("hidden_act", json!("silu"));
    set("type_vocab_size", json!(types.unwrap_or(&1)));
    set(
        "qkv_proj_bias",
        json!(file.has_tensor("blk.0.attn_qkv.bias")),
    );
    set("mlp_fc1_bias", json!(file.has_tensor("blk.0.ffn_up.bias")));
    set(
        "mlp_fc2_bias",
        json!(file.has_tensor("blk.0.ffn_down.bias")),
    );
}

/// `NomicBertModel`.
fn nomic_bert(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let either =
        |new: &str, old: &str| config.count(if config.get(new).is_some() { new } else { old });
    let hidden = either("hidden_size", "n_embd")?;
    let heads = either("num_attention_heads", "n_head")?;
    let layers = if config.get("num_hidden_layers").is_some() {
        "num_hidden_layers"
    } else {
        "n_layer"
    };
    let layers = config.layers(layers)?;
    let size = either("intermediate_size", "n_inner")?;
    let head_dim = head_dim(config, hidden, heads)?;
    let old_eps = config.number_or("layer_norm_epsilon", 1e-12)?;
    let eps = config.number_or("layer_norm_eps", old_eps)? as f32;
    let act = match config.string("activation_function") {
        Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        _ => config.activation("hidden_act", "silu")?,
    };
    refuse_unused_options(config)?;
    let mut rope = config.rope(head_dim, 1000.0)?;
    rope.interleaved = config.flag_or("rotary_emb_interleaved", false);
    let rope = b.rope(rope);
    let types = config.count_or("type_vocab_size", 2)?;
    let words = embedding_table(
        b,
        "embeddings.word_embeddings",
        config.count("vocab_size")?,
        hidden,
        IdSource::Tokens,
    );
    let kinds = embedding_table(
        b,
        "embeddings.token_type_embeddings",
        types,
        hidden,
        IdSource::Types,
    );
    let sum = b.add("embeddings.typed", words, kinds);
    let mut x = layer_norm(b, "emb_ln", sum, eps, true);
    for index in 0..layers {
        let name = |part: &str| format!("encoder.layers.{index}.{part}");
        let qkv = b.linear(
            &name("attn.Wqkv"),
            x,
            3 * hidden,
            config.flag_or("qkv_proj_bias", false),
        );
        let mut attention = bidirectional(heads, head_dim);
        attention.rope = Some(rope);
        let mixed = fused_attention(b, &name("attn"), qkv, attention);
        let mixed = b.linear(&name("attn.out_proj"), mixed, hidden, false);
        let sum = b.add(&name("attention_residual"), x, mixed);
        x = layer_norm(b, &name("norm1"), sum, eps, true);
        let gate = b.linear(
            &name("mlp.fc12"),
            x,
            size,
            config.flag_or("mlp_fc1_bias", false),
        );
        let up = b.linear(
            &name("mlp.fc11"),
            x,
            size,
            config.flag_or("mlp_fc1_bias", false),
        );
        let gated = b.node(&name("mlp.gated"), Gated(act), &[gate, up], size);
        let outer = b.linear(
            &name("mlp.fc2"),
            gated,
            hidden,
            config.flag_or("mlp_fc2_bias", false),
        );
        let sum = b.add(&name("residual"), x, outer);
        x = layer_norm(b, &name("norm2"), sum, eps, true);
    }
    Ok(EncoderBody {
        hidden: x,
        positions: PositionScheme {
            token_types: types,
            ..PositionScheme::UNBOUNDED
        },
    })
}

/// Refuses options that no published model uses.
fn refuse_unused_options(config: Config<'_>) -> Result<()> {
    let fraction = config.number_or("rotary_emb_fraction", 1.0)?;
    let wrong = [
        (config.flag_or("prenorm", false), "prenorm = true"),
        (fraction != 1.0, "rotary_emb_fraction other than 1"),
        (config.flag_or("use_rms_norm", false), "use_rms_norm = true"),
        (config.flag_or("moe_every_n_layers", false), "experts"),
        (config.get("num_experts").is_some(), "num_experts"),
    ];
    match wrong.iter().find(|(set, _)| *set) {
        None => Ok(()),
        Some((_, option)) => Err(Error::UnsupportedOption {
            architecture: config.architecture(),
            option: (*option).into(),
            hint: "Use nomic-embed-text v1 or v1.5.".into(),
        }),
    }
}
