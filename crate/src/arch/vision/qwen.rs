//! Vision encoders of Qwen3.5, Qwen3-VL and Qwen2.5-VL: RoPE by row and column, blocks of patches
//! merged at the end. Reference: transformers `modeling_qwen3_vl.py`, `modeling_qwen2_5_vl.py`.

use super::siglip::with_defaults;
use super::vit::{Vit, axial_rope, patch_embeddings, rope_base, table_side};
use super::{ImageMask, VisionEncoderGraph, VisionSpec, deepstack_layers, with_class};
use crate::Result;
use crate::arch::blocks::NormSpec;
use crate::arch::config::{Config, Container};
use crate::arch::encoder::dense;
use crate::format::gguf::{Gguf, mmproj::MmprojSpec};
use crate::ir::{Activation, Concat, Gated, GraphBuilder, ValueId};
use crate::vision::{PositionTable, TimestampStyle};
use serde_json::{Value, json};

/// Qwen3.5 and Qwen3-VL.
pub const QWEN3: VisionSpec = VisionSpec {
    build: qwen3,
    mask: |_| ImageMask::Causal,
    consecutive_sections: false,
    mmproj: Some(MmprojSpec {
        name: "qwen3vl_merger",
        architectures: &["qwen3vl", "qwen35", "qwen35moe"],
        class: None,
        image_token: IMAGE_TOKEN,
        layer_prefix: "blocks",
        names: &[
            ("v.patch_embd", "patch_embed.proj"),
            ("v.patch_embd.weight.1", "patch_embed.proj.weight.1"),
            ("v.position_embd", "pos_embed"),
            ("v.post_ln", "merger.norm"),
            ("mm.0", "merger.linear_fc1"),
            ("mm.2", "merger.linear_fc2"),
            ("ln1", "norm1"),
            ("ln2", "norm2"),
            ("attn_qkv", "attn.qkv"),
            ("attn_out", "attn.proj"),
            ("ffn_up", "mlp.linear_fc1"),
            ("ffn_down", "mlp.linear_fc2"),
            ("norm", "norm"),
            ("fc1", "linear_fc1"),
            ("fc2", "linear_fc2"),
        ],
        extra_config: |file| {
            let vision = json!({
                "num_position_embeddings": file.tensor_rows("v.position_embd.weight"),
                "spatial_merge_size": file.vision_int("spatial_merge_size"),
                "deepstack_visual_indexes": file.deepstack_layers(),
            });
            [
                Value::Null,
                vision,
                processor_settings(file, 1 << 16, 1 << 24),
            ]
        },
    }),
};
/// Qwen2.5-VL.
pub const QWEN2_5: VisionSpec = VisionSpec {
    build: qwen2_5,
    consecutive_sections: true,
    mmproj: Some(MmprojSpec {
        name: "qwen2.5vl_merger",
        architectures: &["qwen2vl"],
        class: None,
        image_token: IMAGE_TOKEN,
        layer_prefix: "blocks",
        names: &[
            ("v.patch_embd", "patch_embed.proj"),
            ("v.patch_embd.weight.1", "patch_embed.proj.weight.1"),
            ("v.post_ln", "merger.ln_q"),
            ("mm.0", "merger.mlp.0"),
            ("mm.2", "merger.mlp.2"),
            ("ln1", "norm1"),
            ("ln2", "norm2"),
            ("attn_q", "attn.q"),
            ("attn_k", "attn.k"),
            ("attn_v", "attn.v"),
            ("attn_out", "attn.proj"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
        ],
        extra_config: |file| {
            let layers = file.vision_int("block_count").unwrap_or(0);
            let every = file.vision_int("n_wa_pattern").unwrap_or(0).max(1);
            let vision = json!({
                "hidden_act": "silu",
                "window_size": file.vision_int("window_size"),
                "spatial_merge_size": file.vision_int("spatial_merge_size"),
                "fullatt_block_indexes": (every - 1..layers.min(1024)).step_by(every as usize).collect::<Vec<_>>(),
            });
            [
                Value::Null,
                vision,
                processor_settings(file, 3136, 12_845_056),
            ]
        },
    }),
    ..QWEN3
};

const IMAGE_TOKEN: &str = "<|image_pad|>";
/// Builds image processor settings from an mmproj file; absent sizes are those of the published
/// models.
fn processor_settings(file: &Gguf, least: u64, most: u64) -> Value {
    let sizes = json!({
        "patch_size": file.vision_int("patch_size"),
        "merge_size": file.vision_int("spatial_merge_size"),
        "min_pixels": file.vision_int("image_min_pixels").unwrap_or(least),
        "max_pixels": file.vision_int("image_max_pixels").unwrap_or(most),
    });
    with_class(sizes, "Qwen2VLImageProcessor")
}

/// Columns of a patch of two frames.
fn patch_cols(config: Config<'_>, patch: usize) -> Result<usize> {
    let channels = config.count_or("in_channels", 3)?;
    let frames = config.count_or("temporal_patch_size", 2)?;
    Ok(channels * frames * patch * patch)
}

/// A list of layers; empty if the field is absent.
fn layer_indexes(config: Config<'_>, field: &str) -> Vec<u64> {
    let list = config.get(field).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect()
}

/// Qwen3-VL and Qwen3.5. Reference: `modeling_qwen3_vl.py`.
fn qwen3(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    let usual = json!({ "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
        "patch_size": 16, "out_hidden_size": 3584, "num_position_embeddings": 2304 });
    let own = with_defaults(config, usual);
    let config = config.with_fields(&own);
    let mut vit = Vit {
        split_frames: config.load().container() == Container::Gguf,
        ..Vit::from_config(config, "num_heads", 1e-6)?
    };
    let patch = config.count("patch_size")?;
    let merge = config.count_or("spatial_merge_size", 2)?;

    let size = config.count("intermediate_size")?;
    let act = config.activation("hidden_act", "gelu_pytorch_tanh")?;

    let out = config.count("out_hidden_size")?;
    let table = PositionTable::AlignedCorners(table_side(config, "num_position_embeddings")?);
    let rope = axial_rope(&mut vit, rope_base(config)?);
    let mut b = GraphBuilder::new(&all.architecture());
    let cols = patch_cols(config, patch)?;
    let mut h = patch_embeddings(
        &mut b,
        &vit,
        "patch_embed.proj",
        cols,
        true,
        table,
        "pos_embed.weight",
    );
    let deep = deepstack_layers(all, config);
    let mut features = Vec::new();
    for index in 0..config.layers("depth")? {
        let path = format!("blocks.{index}");
        h = vit.attention_block(&mut b, &path, h, false);
        let x = vit.norm(&mut b, &format!("{path}.norm2"), h);
        let x = dense(
            &mut b,
            &format!("{path}.mlp.linear_fc1"),
            x,
            size,
            true,
            act,
        );
        let x = dense(
            &mut b,
            &format!("{path}.mlp.linear_fc2"),
            x,
            vit.hidden,
            true,
            Activation::None,
        );
        h = b.add(&format!("{path}.mlp_residual"), h, x);
        if let Some(at) = deep.iter().position(|d| *d == index as u64) {
            let path = format!("deepstack_merger_list.{at}");
            let joined = b.fold_rows(&path, h, merge * merge);
            let x = vit.norm(&mut b, &format!("{path}.norm"), joined);
            features.push(merger(&mut b, &path, x, out));
        }
    }
    let x = vit.norm(&mut b, "merger.norm", h);
    let joined = b.fold_rows("merger.joined", x, merge * merge);
    let mut outs = vec![merger(&mut b, "merger", joined, out)];
    outs.extend(features);
    let hidden = concat(&mut b, &outs);
    let graph = b.finish(hidden, None)?;
    let features = outs.len();
    let timestamps = Some(TimestampStyle::Text);

    Ok(VisionEncoderGraph {
        table,
        rope: Some(rope),
        features,
        timestamps,
        frames_first: vit.split_frames,
        ..VisionEncoderGraph::new(graph, patch, merge)
    })
}

fn merger(b: &mut GraphBuilder, path: &str, x: ValueId, out: usize) -> ValueId {
    let cols = b.cols(x);
    let x = dense(
        b,
        &format!("{path}.linear_fc1"),
        x,
        cols,
        true,
        Activation::Gelu,
    );
    dense(
        b,
        &format!("{path}.linear_fc2"),
        x,
        out,
        true,
        Activation::None,
    )
}

/// Concatenates values by columns; a single value is returned unchanged.
fn concat(b: &mut GraphBuilder, values: &[ValueId]) -> ValueId {
    if let [only] = values {
        return *only;
    }
    let cols = values.iter().map(|v| b.cols(*v)).sum();
    b.node("features", Concat, values, cols)
}

/// Qwen2.5-VL. Reference: `modeling_qwen2_5_vl.py`.
fn qwen2_5(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    let usual = json!({ "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31] });
    let own = with_defaults(config, usual);
    let config = config.with_fields(&own);
    let vit = Vit::from_config(config, "num_heads", 1e-6)?;
    let mut vit = Vit {
        norm: NormSpec::rms(1e-6),
        split_frames: config.load().container() == Container::Gguf,
        split_qkv: config.load().container() == Container::Gguf,
        ..vit
    };
    let patch = config.count_or("patch_size", 14)?;
    let merge = config.count_or("spatial_merge_size", 2)?;

    let size = config.count("intermediate_size")?;
    let act = config.activation("hidden_act", "silu")?;

    let window = config.count_or("window_size", 112)? / merge / patch;
    let full = layer_indexes(config, "fullatt_block_indexes");
    let rope = axial_rope(&mut vit, rope_base(config)?);
    let mut b = GraphBuilder::new(&all.architecture());
    let cols = patch_cols(config, patch)?;
    let mut h = patch_embeddings(
        &mut b,
        &vit,
        "patch_embed.proj",
        cols,
        false,
        PositionTable::None,
        "",
    );
    for index in 0..config.layers("depth")? {
        let path = format!("blocks.{index}");
        h = vit.attention_block(&mut b, &path, h, !full.contains(&(index as u64)));
        let x = vit.norm(&mut b, &format!("{path}.norm2"), h);
        let gate = b.linear(&format!("{path}.mlp.gate_proj"), x, size, true);
        let up = b.linear(&format!("{path}.mlp.up_proj"), x, size, true);
        let x = b.node(&format!("{path}.mlp.gated"), Gated(act), &[gate, up], size);
        let x = b.linear(&format!("{path}.mlp.down_proj"), x, vit.hidden, true);
        h = b.add(&format!("{path}.mlp_residual"), h, x);
    }
    let x = vit.norm(&mut b, "merger.ln_q", h);
    let x = b.fold_rows("merger.joined", x, merge * merge);
    let cols = b.cols(x);
    let x = dense(&mut b, "merger.mlp.0", x, cols, true, Activation::Gelu);
    let hidden = dense(
        &mut b,
        "merger.mlp.2",
        x,
        config.count("out_hidden_size")?,
        true,
        Activation::None,
    );
    let graph = b.finish(hidden, None)?;
    let window = Some(window);
    let timestamps = Some(TimestampStyle::Positions(
        config.number_or("tokens_per_second", 4.0)?,
    ));

    Ok(VisionEncoderGraph {
        rope: Some(rope),
        window,
        timestamps,
        frames_first: vit.split_frames,
        ..VisionEncoderGraph::new(graph, patch, merge)
    })
}
