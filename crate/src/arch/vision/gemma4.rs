//! Vision encoder of Gemma 4: norms before and after each part, mean pooling of patch blocks. Heads
//! are normalized; RoPE rotates one half by column and the other by row. Reference: transformers
//! `modeling_gemma4.py`.

use super::siglip::with_defaults;
use super::vit::{Vit, patch_embeddings, rope_base, text_columns};
use super::{FIRST_ENTRY, ImageMask, VisionEncoderGraph, VisionSpec};
use crate::arch::blocks::{self, NormSpec, norm};
use crate::arch::config::Config;
use crate::format::RowOrder;
use crate::ir::{
    Activation, Clip, Dim, EmbeddingBag, Gated, GraphBuilder, HeadNorm, MulVector, Norm,
    NormPerGroup, Pool, Pooling, RopeSpec, Scale, ValueId, WeightKind,
};
use crate::vision::{AxialRope, PositionTable};
use crate::{Error, Result};
use serde_json::json;

/// Gemma 4.
pub const GEMMA4: VisionSpec = VisionSpec {
    build: gemma4,
    mask: image_mask,
    consecutive_sections: false,
    mmproj: None,
};

/// Returns the attention of image tokens; only some model sizes make it bidirectional.
fn image_mask(config: Config<'_>) -> ImageMask {
    let text = config.nested("text_config").unwrap_or(config);
    if text.string("use_bidirectional_attention") == Some("vision") {
        ImageMask::BidirectionalInWindows
    } else {
        ImageMask::Causal
    }
}

fn gemma4(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    let usual = json!({ "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16,
        "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64 });
    let own = with_defaults(config, usual);
    let config = config.with_fields(&own);
    let eps = config.number_or("rms_norm_eps", 1e-6)?;
    let heads = config.count("num_attention_heads")?;
    let hidden = config.count("hidden_size")?;
    let head_dim = config.head_dim(hidden, heads, blocks::MAX_HEAD_DIM)?;
    if config.count_or("num_key_value_heads", heads)? != heads {
        return Err(Error::UnsupportedOption {
            architecture: all.architecture(),
            option: "num_key_value_heads other than num_attention_heads in vision_config".into(),
            hint: "Vision encoders need one key-value head per query head.".into(),
        });
    }
    let base = config
        .get("rope_parameters")
        .map_or(Ok(100.0), |_| rope_base(config))?;
    let rope = Some(RopeSpec::plain(head_dim, base));
    let vit = Vit {
        hidden,
        heads,
        head_dim,
        norm: NormSpec::rms(eps),
        rope,
        split_frames: false,
        split_qkv: false,
    };
    let patch = config.count_or("patch_size", 16)?;
    let merge = config.count_or("pooling_kernel_size", 3)?;

    let table = PositionTable::RowPlusColumn(config.count_or("position_embedding_size", 10_240)?);
    let size = config.count("intermediate_size")?;
    let act = config.activation("hidden_activation", "gelu_pytorch_tanh")?;
    let mlp = ClippedMlp {
        size,
        act,
        clips: config.flag_or("use_clipped_linears", false),
    };
    let mut b = GraphBuilder::new(&all.architecture());
    let places = "patch_embedder.position_embedding_table";
    let cols = 3 * patch * patch;
    let mut h = patch_embeddings(
        &mut b,
        &vit,
        "patch_embedder.input_proj",
        cols,
        false,
        table,
        places,
    );
    for index in 0..config.layers("num_hidden_layers")? {
        h = layer(&mut b, &format!("encoder.layers.{index}"), &vit, &mlp, h);
    }
    let pooled = b.node("pooled", Pool(Pooling::Mean), &[h], hidden);
    let mut scaled = b.node("scaled", Scale((hidden as f32).sqrt()), &[pooled], hidden);
    if config.flag_or("standardize", false) {
        scaled = standardize(&mut b, scaled);
    }
    let bare = Norm {
        gain: None,
        bias: None,
        layer: false,
        offset: 0.0,
        eps: eps as f32,
    };
    let x = b.node("normed", bare, &[scaled], hidden);
    let hidden = b.linear(
        "embed_vision.embedding_projection",
        x,
        text_columns(all)?,
        false,
    );
    let graph = b.finish(hidden, None)?;
    // RoPE rotates each half of a head separately. With the second and third quarter exchanged, it
    // is RoPE over the whole head.
    let turned = RowOrder::Grouped {
        groups: 2,
        group_rows: [head_dim / 4, head_dim / 4, 0, 0],
    };
    let parts = [
        "q_proj.linear.weight",
        "k_proj.linear.weight",
        "q_norm.weight",
        "k_norm.weight",
    ];
    Ok(VisionEncoderGraph {
        table,
        rope: Some(AxialRope {
            dim: head_dim,
            base,
            column_first: true,
        }),
        affine: [2.0, -1.0],
        row_orders: parts.map(|part| (part, turned)).into(),
        ..VisionEncoderGraph::new(graph, patch, merge)
    })
}

/// Adds `(x - std_bias) * std_scale`. The bias is looked up once per patch and pooled to one row
/// per block.
fn standardize(b: &mut GraphBuilder, x: ValueId) -> ValueId {
    let cols = b.cols(x);
    let ones = b.input(FIRST_ENTRY, Dim::TOKENS, 2);
    let table = b.weight("std_bias", 1, cols, WeightKind::Table);
    let bias = b.node(
        "std_bias.rows",
        EmbeddingBag { table, taps: 1 },
        &[ones],
        cols,
    );
    let bias = b.node("std_bias.pooled", Pool(Pooling::First), &[bias], cols);
    let less = b.node("std_bias.negated", Scale(-1.0), &[bias], cols);
    let centered = b.add("centered", x, less);
    let scale = b.vector("std_scale", cols);
    b.node("standardized", MulVector(scale), &[centered], cols)
}

/// Options of a layer's MLP.
struct ClippedMlp {
    size: usize,
    act: Activation,
    /// Whether all linear layers, also those of attention, clip their input and output.
    clips: bool,
}

/// Adds a linear layer that can clip its input and output to limits from the checkpoint.
fn clipped_linear(
    b: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    rows: usize,
    clips: bool,
) -> ValueId {
    let clipped = |b: &mut GraphBuilder, part: &str, x: ValueId| {
        let limits = ["min", "max"].map(|end| (format!("{name}.{part}_{end}"), 1));
        let limits = b.concat_vectors(limits);
        let cols = b.cols(x);

        b.node(&format!("{name}.{part}"), Clip(limits), &[x], cols)
    };
    let x = if clips { clipped(b, "input", x) } else { x };
    let y = b.linear(&format!("{name}.linear"), x, rows, false);
    if clips { clipped(b, "output", y) } else { y }
}

fn layer(b: &mut GraphBuilder, path: &str, vit: &Vit, mlp: &ClippedMlp, h: ValueId) -> ValueId {
    let &ClippedMlp { size, act, clips } = mlp;
    let name = |part: &str| format!("{path}.{part}");
    let rms = |b: &mut GraphBuilder, part: &str, x: ValueId| {
        norm(b, &format!("{path}.{part}"), vit.norm, x)
    };
    let x = rms(b, "input_layernorm", h);
    let wide = vit.heads * vit.head_dim;
    let project = |b: &mut GraphBuilder, part: &str| {
        clipped_linear(b, &format!("{path}.self_attn.{part}"), x, wide, clips)
    };
    let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|part| project(b, part));
    let bare = Norm {
        gain: None,
        bias: None,
        layer: false,
        offset: 0.0,
        eps: vit.norm.eps,
    };
    let v = b.node(
        &name("self_attn.v_norm"),
        NormPerGroup {
            norm: bare,
            group: vit.head_dim,
        },
        &[v],
        wide,
    );
    let gains = [
        name("self_attn.q_norm.weight"),
        name("self_attn.k_norm.weight"),
    ];
    let gains = b.vectors(&gains, vit.head_dim);
    let normed = HeadNorm {
        gains,
        offset: 0.0,
        eps: vit.norm.eps,
        after_rope: false,
        values: false,
    };
    let mixed = vit.attention_with(b, path, [q, k, v], false, 1.0, Some(normed));
    let x = clipped_linear(b, &name("self_attn.o_proj"), mixed, vit.hidden, clips);
    let x = rms(b, "post_attention_layernorm", x);
    let h = b.add(&name("attention_residual"), h, x);
    let x = rms(b, "pre_feedforward_layernorm", h);
    let gate = clipped_linear(b, &name("mlp.gate_proj"), x, size, clips);
    let up = clipped_linear(b, &name("mlp.up_proj"), x, size, clips);
    let x = b.node(&name("mlp.gated"), Gated(act), &[gate, up], size);
    let x = clipped_linear(b, &name("mlp.down_proj"), x, vit.hidden, clips);
    let x = rms(b, "post_feedforward_layernorm", x);
    b.add(&name("mlp_residual"), h, x)
}
