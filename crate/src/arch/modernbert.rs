//! ModernBERT: RoPE, sliding windows in most layers, a gated MLP, norms before each part.
//! Reference: transformers `modeling_modernbert.py`.

use super::config::Config;
use super::encoder::{
    EncoderBody, PositionScheme, bidirectional, dense, embedding_table, fused_attention, head_dim,
    label_count, layer_norm,
};
use super::family::Family;
use super::standard::RopeByType;
use crate::Result;
use crate::ir::{Gated, GraphBuilder, IdSource, Mask, Pool, Pooling, ValueId};

pub(super) static FAMILIES: &[Family] = &[Family {
    model_types: &["modernbert"],
    rope_kinds: Some(RopeByType {
        full: ("global_rope_theta", 160_000.0),
        sliding: ("local_rope_theta", 10_000.0),
        scales_sliding: true,
    }),
    encoder: Some(modernbert),
    classification_head: Some(score),
    ..Family::EMPTY
}];

/// `ModernBertModel`.
fn modernbert(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;

    let head_dim = head_dim(config, hidden, heads)?;
    let size = config.count("intermediate_size")?;

    let eps = config.number_or("norm_eps", 1e-5)? as f32;
    let act = config.activation("hidden_activation", "gelu")?;

    let flag = |name| config.flag_or(name, false);
    let norm_bias = flag("norm_bias");
    let attention_bias = flag("attention_bias");
    let mlp_bias = flag("mlp_bias");

    let every = config.count_or("global_attn_every_n_layers", 3)?;
    let reach = config.count_or("local_attention", 128)? / 2;
    let full = b.rope(config.rope_for_type("full_attention", head_dim, 160_000.0)?);
    let local = b.rope(config.rope_for_type("sliding_attention", head_dim, 10_000.0)?);
    let x = embedding_table(
        b,
        "embeddings.tok_embeddings",
        config.count("vocab_size")?,
        hidden,
        IdSource::Tokens,
    );
    let mut x = layer_norm(b, "embeddings.norm", x, eps, norm_bias);
    for index in 0..config.layers("num_hidden_layers")? {
        let name = |part: &str| format!("layers.{index}.{part}");
        let global = config
            .layer_type(index)
            .map_or(index % every == 0, |t| t == "full_attention");
        // The first layer uses the norm of the embeddings.
        let normed = if index == 0 {
            x
        } else {
            layer_norm(b, &name("attn_norm"), x, eps, norm_bias)
        };
        let qkv = b.linear(&name("attn.Wqkv"), normed, 3 * hidden, attention_bias);
        let mut attention = bidirectional(heads, head_dim);
        attention.rope = Some(if global { full } else { local });
        if !global {
            attention.mask = Mask::Packed {
                before: reach,
                after: reach,
            };
        }
        let mixed = fused_attention(b, &name("attn"), qkv, attention);
        let mixed = b.linear(&name("attn.Wo"), mixed, hidden, attention_bias);
        x = b.add(&name("attention_residual"), x, mixed);
        let normed = layer_norm(b, &name("mlp_norm"), x, eps, norm_bias);
        let both = b.linear(&name("mlp.Wi"), normed, 2 * size, mlp_bias);
        let input = b.view(&name("mlp.input"), both, 0, size);
        let gate = b.view(&name("mlp.gate"), both, size, size);

        let gated = b.node(&name("mlp.gated"), Gated(act), &[input, gate], size);
        let outer = b.linear(&name("mlp.Wo"), gated, hidden, mlp_bias);
        x = b.add(&name("residual"), x, outer);
    }
    let hidden = layer_norm(b, "final_norm", x, eps, norm_bias);
    Ok(EncoderBody {
        hidden,
        positions: PositionScheme::UNBOUNDED,
    })
}

/// `ModernBertForSequenceClassification`.
fn score(config: Config<'_>, b: &mut GraphBuilder, hidden: ValueId) -> Result<ValueId> {
    let cols = b.cols(hidden);
    let pooling = if config.string("classifier_pooling") == Some("mean") {
        Pooling::Mean
    } else {
        Pooling::First
    };
    let pooled = b.node("pooled", Pool(pooling), &[hidden], cols);
    let act = config.activation("classifier_activation", "gelu")?;
    let inner = dense(
        b,
        "head.dense",
        pooled,
        cols,
        config.flag_or("classifier_bias", false),
        act,
    );
    let eps = config.number_or("norm_eps", 1e-5)? as f32;
    let inner = layer_norm(
        b,
        "head.norm",
        inner,
        eps,
        config.flag_or("norm_bias", false),
    );
    Ok(b.linear("classifier", inner, label_count(config), true))
}
