//! Vision encoders of CLIP and SigLIP, which turn an image into one embedding. CLIP takes the class
//! token's; SigLIP pools by attention with a learned query. Reference: transformers
//! `modeling_clip.py`, `modeling_siglip.py`, `modeling_siglip2.py`.

use super::siglip::{layers, siglip_defaults, with_defaults};
use super::vit::{Vit, patch_embeddings, table_side, tile_side};
use super::{FIRST_ENTRY, ImageMask, PATCHES, POSITION_PAIRS, VisionEncoderGraph, VisionSpec};
use crate::arch::blocks::{NormSpec, norm};
use crate::arch::config::Config;
use crate::arch::encoder::dense;
use crate::ir::{Activation, Dim, EmbeddingBag, Graph, GraphBuilder, Pool, Pooling, WeightKind};
use crate::vision::PositionTable;
use crate::{Error, Result};
use serde_json::json;

/// CLIP.
pub const CLIP: VisionSpec = VisionSpec {
    build: clip,
    mask: |_| ImageMask::Causal,
    consecutive_sections: false,
    mmproj: None,
};
/// SigLIP and SigLIP 2.
pub const SIGLIP: VisionSpec = VisionSpec {
    build: siglip,
    ..CLIP
};

fn clip(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    let usual = json!({ "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5 });
    let own = with_defaults(config, usual);
    let config = config.with_fields(&own);
    let vit = Vit::from_config(
        config,
        "num_attention_heads",
        config.number_or("layer_norm_eps", 1e-5)?,
    )?;
    let patch = config.count("patch_size")?;
    let table = PositionTable::WithClassRow(tile_side(config, patch, 1)?);
    let mut b = GraphBuilder::new(&all.architecture());
    let patches = b.input(PATCHES, Dim::TOKENS, 3 * patch * patch);
    let h = b.linear("embeddings.patch_embedding", patches, vit.hidden, false);
    let pairs = b.input(POSITION_PAIRS, Dim::TOKENS, 2 * table.taps());
    // The class token's row has zero patch values; its table entry follows those of the positions.
    let parts = [
        ("embeddings.position_embedding.weight", table.entries() - 1),
        ("embeddings.class_embedding", 1),
    ];
    let places = b.stacked(
        parts.map(|(name, rows)| (name.into(), rows)).into(),
        vit.hidden,
        WeightKind::Table,
    );
    let positions = b.node(
        "placed",
        EmbeddingBag {
            table: places,
            taps: table.taps(),
        },
        &[pairs],
        vit.hidden,
    );
    let h = b.add("embedded", h, positions);
    let h = vit.norm(&mut b, "pre_layrnorm", h);
    let h = layers(&mut b, &vit, config, h)?;
    let first = b.node("pooled", Pool(Pooling::First), &[h], vit.hidden);
    let x = vit.norm(&mut b, "post_layernorm", first);
    let hidden = b.linear(
        "visual_projection",
        x,
        all.count_or("projection_dim", 512)?,
        false,
    );
    Ok(pooled_graph(b.finish(hidden, None)?, table, patch))
}

fn siglip(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    if !config.flag_or("vision_use_head", true) {
        return Err(Error::UnsupportedOption {
            architecture: all.architecture(),
            option: "vision_use_head = false".into(),
            hint: "Image embeddings need the attention pooling head.".into(),
        });
    }
    let own = with_defaults(config, siglip_defaults());
    let config = config.with_fields(&own);
    let eps = config.number_or("layer_norm_eps", 1e-6)?;
    let vit = Vit::from_config(config, "num_attention_heads", eps)?;
    let patch = config.count("patch_size")?;
    // SigLIP 2 takes any number of patches and resizes its position table.
    let any = all.architecture().starts_with("Siglip2");
    let table = if any {
        PositionTable::Resized(table_side(config, "num_patches")?)
    } else {
        PositionTable::Nearest(tile_side(config, patch, 1)?)
    };
    let mut b = GraphBuilder::new(&all.architecture());
    let name = "embeddings.patch_embedding";
    let h = patch_embeddings(
        &mut b,
        &vit,
        name,
        3 * patch * patch,
        true,
        table,
        "embeddings.position_embedding.weight",
    );
    let h = layers(&mut b, &vit, config, h)?;
    let h = vit.norm(&mut b, "post_layernorm", h);
    // The learned query is the same for each row, so all rows of an image give the same result.
    let ones = b.input(FIRST_ENTRY, Dim::TOKENS, 2);
    let query = b.weight("head.probe", 1, vit.hidden, WeightKind::Table);
    let query = b.node(
        "head.query",
        EmbeddingBag {
            table: query,
            taps: 1,
        },
        &[ones],
        vit.hidden,
    );
    let weight = b.matrix("head.attention.in_proj_weight", 3 * vit.hidden, vit.hidden);
    let bias = b.vector("head.attention.in_proj_bias", 3 * vit.hidden);
    let mut part = |name: &str, x, at: usize| {
        let linear = crate::ir::Linear::new(weight, Some(bias));
        let all = b.node(name, linear, &[x], 3 * vit.hidden);
        [at, 2 * vit.hidden].map(|first| b.view(name, all, first, vit.hidden))
    };
    let [q, _] = part("head.q", query, 0);
    let [k, v] = part("head.kv", h, vit.hidden);
    let mixed = vit.attention(&mut b, "head", [q, k, v], false);
    let pooled = b.node("pooled", Pool(Pooling::First), &[mixed], vit.hidden);
    let h = b.linear("head.attention.out_proj", pooled, vit.hidden, true);
    let x = norm(&mut b, "head.layernorm", NormSpec::layer(eps), h);
    let act = config.activation("hidden_act", "gelu_pytorch_tanh")?;
    let x = dense(
        &mut b,
        "head.mlp.fc1",
        x,
        config.count("intermediate_size")?,
        true,
        act,
    );
    let x = dense(
        &mut b,
        "head.mlp.fc2",
        x,
        vit.hidden,
        true,
        Activation::None,
    );
    let hidden = b.add("head.residual", h, x);
    Ok(pooled_graph(b.finish(hidden, None)?, table, patch))
}

/// The encoder of a graph with one output row per image.
fn pooled_graph(graph: Graph, table: PositionTable, patch: usize) -> VisionEncoderGraph {
    prefix_names(VisionEncoderGraph {
        table,
        pooled: true,
        tile_tokens: Some(1),
        ..VisionEncoderGraph::new(graph, patch, 1)
    })
}

/// Prefixes tensor names with `vision_model.`: the text encoder has layers of the same names.
fn prefix_names(mut encoder: VisionEncoderGraph) -> VisionEncoderGraph {
    let parts = encoder
        .graph
        .weights
        .iter_mut()
        .flat_map(|w| w.parts.iter_mut());
    for (name, _) in parts.filter(|(name, _)| !name.starts_with("visual_projection")) {
        name.insert_str(0, "vision_model.");
    }
    encoder
}
