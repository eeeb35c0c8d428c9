//! Text encoders of CLIP, SigLIP and SigLIP 2, whose embeddings share a space with images. The
//! vision encoders are in vision/dual_encoder.rs. Reference: transformers `modeling_clip.py`,
//! `modeling_siglip.py`, `modeling_siglip2.py`.

use super::config::Config;
use super::encoder::{
    EncoderBody, PositionScheme, bidirectional, dense, embedding_table, head_dim, layer_norm,
};
use super::family::{Family, JointEmbedding};
use super::vision::pooled::{CLIP, SIGLIP};
use super::vision::siglip::with_defaults;
use crate::Result;
use crate::ir::{Activation, GraphBuilder, IdSource, Mask};
use serde_json::json;

pub(super) static FAMILIES: &[Family] = &[
    Family {
        classes: &["CLIPModel"],
        model_types: &["clip"],
        encoder: Some(clip),
        vision: Some(CLIP),
        joint_embedding: Some(JointEmbedding { padded: false }),
        ..Family::EMPTY
    },
    Family {
        classes: &["SiglipModel", "Siglip2Model"],
        model_types: &["siglip", "siglip2"],
        encoder: Some(siglip),
        vision: Some(SIGLIP),
        joint_embedding: Some(JointEmbedding { padded: true }),
        ..Family::EMPTY
    },
];

/// `CLIPTextModelWithProjection`; the embedding is that of the last token, the end token.
fn clip(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let usual = json!({ "vocab_size": 49_408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5 });
    let mut body = text(
        config.with_fields(&with_defaults(config, usual)),
        b,
        Mask::Packed {
            before: usize::MAX,
            after: 0,
        },
    )?;
    body.hidden = b.linear(
        "text_projection",
        body.hidden,
        config.count_or("projection_dim", 512)?,
        false,
    );
    Ok(body)
}

/// `SiglipTextModel`; the embedding is that of the last token of padded text.
fn siglip(config: Config<'_>, b: &mut GraphBuilder) -> Result<EncoderBody> {
    let usual = json!({ "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6 });
    let all = with_defaults(config, usual);
    let all = config.with_fields(&all);
    let mut body = text(
        all,
        b,
        Mask::Packed {
            before: usize::MAX,
            after: usize::MAX,
        },
    )?;
    let wide = config.count_or("projection_size", all.count("hidden_size")?)?;
    body.hidden = b.linear("text_model.head", body.hidden, wide, true);
    Ok(body)
}

fn text(config: Config<'_>, b: &mut GraphBuilder, mask: Mask) -> Result<EncoderBody> {
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;

    let head_dim = head_dim(config, hidden, heads)?;
    let size = config.count("intermediate_size")?;

    let eps = config.number_or("layer_norm_eps", 1e-5)? as f32;
    let act = config.activation("hidden_act", "gelu")?;

    let most = config.count("max_position_embeddings")?;
    let tokens = embedding_table(
        b,
        "text_model.embeddings.token_embedding",
        config.count("vocab_size")?,
        hidden,
        IdSource::Tokens,
    );
    let places = embedding_table(
        b,
        "text_model.embeddings.position_embedding",
        most,
        hidden,
        IdSource::Positions,
    );
    let mut x = b.add("embedded", tokens, places);
    for index in 0..config.layers("num_hidden_layers")? {
        let name = |part: &str| format!("text_model.encoder.layers.{index}.{part}");
        let normed = layer_norm(b, &name("layer_norm1"), x, eps, true);
        let qkv = ["q_proj", "k_proj", "v_proj"]
            .map(|part| b.linear(&name(&format!("self_attn.{part}")), normed, hidden, true));
        let mut attention = bidirectional(heads, head_dim);
        attention.mask = mask;
        let mixed = b.node(&name("attention"), attention, &qkv, hidden);
        let mixed = b.linear(&name("self_attn.out_proj"), mixed, hidden, true);
        x = b.add(&name("attention_residual"), x, mixed);
        let normed = layer_norm(b, &name("layer_norm2"), x, eps, true);
        let inner = dense(b, &name("mlp.fc1"), normed, size, true, act);
        let inner = dense(b, &name("mlp.fc2"), inner, hidden, true, Activation::None);
        x = b.add(&name("mlp_residual"), x, inner);
    }
    let hidden = layer_norm(b, "text_model.final_layer_norm", x, eps, true);
    Ok(EncoderBody {
        hidden,
        positions: PositionScheme {
            max_tokens: most,
            ..PositionScheme::UNBOUNDED
        },
    })
}
