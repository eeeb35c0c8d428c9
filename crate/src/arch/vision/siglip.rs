//! SigLIP vision encoders of Idefics 3, SmolVLM, Gemma 3 and LFM2-VL, which differ in how patches
//! become tokens. Reference: transformers `modeling_siglip.py`, `modeling_siglip2.py` and those
//! named at each function.

use super::vit::{Vit, patch_embeddings, table_side, text_columns, tile_side};
use super::{ImageMask, VisionEncoderGraph, VisionSpec, with_class};
use crate::Result;
use crate::arch::blocks::{NormSpec, norm};
use crate::arch::config::{Config, Container};
use crate::arch::encoder::dense;
use crate::format::gguf::mmproj::MmprojSpec;
use crate::ir::{Activation, EmbeddingBag, GraphBuilder, Pool, Pooling, ValueId, WeightKind};
use crate::vision::{PositionTable, TimestampStyle};
use serde_json::{Value, json};

/// Idefics 3 and SmolVLM.
pub const IDEFICS3: VisionSpec = VisionSpec {
    build: idefics3,
    mask: |_| ImageMask::Causal,
    consecutive_sections: false,
    mmproj: Some(MmprojSpec {
        class: Some("Idefics3ForConditionalGeneration"),
        image_token: "<image>",
        extra_config: |file| {
            let side = file.vision_int("image_size").unwrap_or(0);
            let longest = file.vision_int("preproc_image_size").unwrap_or(4 * side);
            let sizes = json!({ "size": { "longest_edge": longest }, "max_image_size": { "longest_edge": side } });
            let whole = json!({ "scale_factor": file.vision_int("projector.scale_factor") });
            [
                whole,
                Value::Null,
                with_class(sizes, "Idefics3ImageProcessor"),
            ]
        },
        ..mmproj_spec("idefics3", &["llama"])
    }),
};
/// Gemma 3.
pub const GEMMA3: VisionSpec = VisionSpec {
    build: gemma3,
    mask: |_| ImageMask::Bidirectional,
    mmproj: Some(MmprojSpec {
        image_token: "<image_soft_token>",
        extra_config: |file| {
            let side = file.vision_int("image_size").unwrap_or(0);
            let patches = side / file.vision_int("patch_size").unwrap_or(1).max(1);
            let tokens = (patches
                / file
                    .vision_int("projector.scale_factor")
                    .unwrap_or(4)
                    .max(1))
            .pow(2);
            let sizes = json!({ "size": { "width": side, "height": side } });
            [
                json!({ "mm_tokens_per_image": tokens }),
                Value::Null,
                with_class(sizes, "Gemma3ImageProcessor"),
            ]
        },
        ..mmproj_spec("gemma3", &["gemma3"])
    }),
    ..IDEFICS3
};
/// LFM2-VL.
pub const LFM2: VisionSpec = VisionSpec {
    build: lfm2,
    mmproj: Some(MmprojSpec {
        image_token: "<image>",
        extra_config: |file| {
            let factor = file.vision_int("projector.scale_factor");
            let whole = json!({
                "downsample_factor": factor,
                "projector_hidden_size": file.tensor_rows("mm.1.weight"),
                "projector_use_layernorm": file.has_tensor("mm.input_norm.weight"),
                "projector_bias": file.has_tensor("mm.1.bias"),
            });
            let sizes = json!({ "encoder_patch_size": file.vision_int("patch_size"), "downsample_factor": factor });
            let vision = json!({ "num_patches": file.tensor_rows("v.position_embd.weight") });
            [whole, vision, with_class(sizes, "Lfm2VlImageProcessor")]
        },
        ..mmproj_spec("lfm2", &["lfm2"])
    }),
    ..IDEFICS3
};

/// Returns the mmproj fields shared by these vision encoders.
const fn mmproj_spec(name: &'static str, models: &'static [&'static str]) -> MmprojSpec {
    MmprojSpec {
        name,
        architectures: models,
        class: None,
        image_token: "",
        layer_prefix: "encoder.layers",
        names: &[
            ("v.patch_embd", "embeddings.patch_embedding"),
            ("v.position_embd", "embeddings.position_embedding"),
            ("v.post_ln", "post_layernorm"),
            ("ln1", "layer_norm1"),
            ("ln2", "layer_norm2"),
            ("attn_q", "self_attn.q_proj"),
            ("attn_k", "self_attn.k_proj"),
            ("attn_v", "self_attn.v_proj"),
            ("attn_out", "self_attn.out_proj"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
            ("mm.model.fc", "connector.modality_projection.proj"),
            (
                "mm.input_projection.weight",
                "multi_modal_projector.mm_input_projection_weight",
            ),
            ("mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"),
            ("mm.input_norm", "multi_modal_projector.layer_norm"),
            ("mm.1", "multi_modal_projector.linear_1"),
            ("mm.2", "multi_modal_projector.linear_2"),
        ],
        extra_config: |_| [Value::Null, Value::Null, Value::Null],
    }
}

/// Returns the fields of a config.json, with the defaults of transformers' configuration class for
/// absent ones. Other containers name all fields that their model has.
pub fn with_defaults(config: Config<'_>, defaults: Value) -> Value {
    let mut fields = config.json().as_object().cloned().unwrap_or_default();
    if config.load().container() == Container::HuggingFace
        && let Value::Object(defaults) = defaults
    {
        let absent = defaults.into_iter();
        fields.extend(absent.filter(|(name, _)| config.get(name).is_none()));
    }
    fields.into()
}

/// Defaults of transformers' `SiglipVisionConfig` and `Siglip2VisionConfig`.
pub fn siglip_defaults() -> Value {
    json!({ "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "num_patches": 256, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6 })
}

/// Adds SigLIP up to its final norm, as Idefics 3, Gemma 3 and LFM2-VL use it. Reference:
/// `modeling_siglip.py`.
fn siglip(
    b: &mut GraphBuilder,
    config: Config<'_>,
    patch: usize,
    table: PositionTable,
) -> Result<ValueId> {
    let vit = Vit::from_config(
        config,
        "num_attention_heads",
        config.number_or("layer_norm_eps", 1e-6)?,
    )?;
    let cols = config.count_or("num_channels", 3)? * patch * patch;
    let name = "embeddings.patch_embedding";
    let h = patch_embeddings(
        b,
        &vit,
        name,
        cols,
        true,
        table,
        "embeddings.position_embedding.weight",
    );
    let h = layers(b, &vit, config, h)?;
    Ok(vit.norm(b, "post_layernorm", h))
}

/// Adds the encoder layers, which CLIP shares.
pub fn layers(
    b: &mut GraphBuilder,
    vit: &Vit,
    config: Config<'_>,
    mut h: ValueId,
) -> Result<ValueId> {
    let size = config.count("intermediate_size")?;
    let act = config.activation("hidden_act", "gelu_pytorch_tanh")?;

    for index in 0..config.layers("num_hidden_layers")? {
        let path = format!("encoder.layers.{index}");
        let x = vit.norm(b, &format!("{path}.layer_norm1"), h);
        let project = |b: &mut GraphBuilder, part: &str| {
            b.linear(&format!("{path}.self_attn.{part}"), x, vit.hidden, true)
        };
        let qkv = [
            project(b, "q_proj"),
            project(b, "k_proj"),
            project(b, "v_proj"),
        ];
        let mixed = vit.attention(b, &path, qkv, false);
        let x = b.linear(
            &format!("{path}.self_attn.out_proj"),
            mixed,
            vit.hidden,
            true,
        );
        h = b.add(&format!("{path}.attention_residual"), h, x);
        let x = vit.norm(b, &format!("{path}.layer_norm2"), h);
        let x = dense(b, &format!("{path}.mlp.fc1"), x, size, true, act);
        let x = dense(
            b,
            &format!("{path}.mlp.fc2"),
            x,
            vit.hidden,
            true,
            Activation::None,
        );
        h = b.add(&format!("{path}.mlp_residual"), h, x);
    }
    Ok(h)
}

/// Builds the vision encoder of Idefics 3 and SmolVLM. Reference: `modeling_idefics3.py`.
fn idefics3(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    // SmolVLM-256M and 500M leave out what equals the defaults.
    let usual = json!({ "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 16, "image_size": 224, "patch_size": 32 });
    let own = with_defaults(config, usual);
    let config = config.with_fields(&own);
    let patch = config.count("patch_size")?;
    let merge = all.count_or("scale_factor", 2)?;

    let side = tile_side(config, patch, merge)?;
    let mut b = GraphBuilder::new(&all.architecture());
    let h = siglip(&mut b, config, patch, PositionTable::Nearest(side))?;
    let joined = b.fold_rows("joined", h, merge * merge);
    let hidden = b.linear(
        "connector.modality_projection.proj",
        joined,
        text_columns(all)?,
        false,
    );
    let graph = b.finish(hidden, None)?;
    let tile_tokens = Some((side / merge).pow(2));
    // Idefics 3 has no video input; its files do not say so.
    let timestamps = all
        .architecture()
        .starts_with("SmolVLM")
        .then_some(TimestampStyle::Images);
    Ok(VisionEncoderGraph {
        table: PositionTable::Nearest(side),
        tile_tokens,
        timestamps,
        ..VisionEncoderGraph::new(graph, patch, merge)
    })
}

/// Builds the vision encoder of Gemma 3. Reference: `modeling_gemma3.py`.
fn gemma3(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    let own = with_defaults(config, siglip_defaults());
    let config = config.with_fields(&own);
    let patch = config.count("patch_size")?;
    let tokens = all.count_or("mm_tokens_per_image", 256)?;

    let patches = config.count_or("image_size", 224)? / patch;
    let merge = patches / tokens.isqrt().max(1);
    let side = tile_side(config, patch, merge.max(1))?;
    let mut b = GraphBuilder::new(&all.architecture());
    let h = siglip(&mut b, config, patch, PositionTable::Nearest(side))?;
    let cols = b.cols(h);
    let pooled = b.node("pooled", Pool(Pooling::Mean), &[h], cols);
    let norms = NormSpec {
        offset: 1.0,
        ..NormSpec::rms(config.number_or("layer_norm_eps", 1e-6)?)
    };
    let name = "multi_modal_projector.mm_soft_emb_norm";
    let x = norm(&mut b, name, norms, pooled);
    let out = text_columns(all)?;
    // Stored [in, out].
    let weight = b.weight(
        "multi_modal_projector.mm_input_projection_weight",
        cols,
        out,
        WeightKind::Table,
    );
    let hidden = b.node(
        "projected",
        EmbeddingBag {
            table: weight,
            taps: 0,
        },
        &[x],
        out,
    );
    let graph = b.finish(hidden, None)?;
    Ok(VisionEncoderGraph {
        table: PositionTable::Nearest(side),
        tile_tokens: Some(tokens),
        ..VisionEncoderGraph::new(graph, patch, merge)
    })
}

/// Builds the vision encoder of LFM2-VL. Reference: `modeling_lfm2_vl.py`, `modeling_siglip2.py`.
fn lfm2(all: Config<'_>, config: Config<'_>) -> Result<VisionEncoderGraph> {
    let own = with_defaults(config, siglip_defaults());
    let config = config.with_fields(&own);
    let patch = config.count("patch_size")?;
    let merge = all.count_or("downsample_factor", 2)?;

    let table = PositionTable::Resized(table_side(config, "num_patches")?);
    let mut b = GraphBuilder::new(&all.architecture());
    let h = siglip(&mut b, config, patch, table)?;
    let mut x = b.fold_rows("joined", h, merge * merge);
    if all.flag_or("projector_use_layernorm", true) {
        let name = "multi_modal_projector.layer_norm";
        x = norm(&mut b, name, NormSpec::layer(1e-5), x);
    }
    let size = all.count_or("projector_hidden_size", 2560)?;
    let bias = all.flag_or("projector_bias", true);

    let act = all.activation("projector_hidden_act", "gelu")?;
    let x = dense(&mut b, "multi_modal_projector.linear_1", x, size, bias, act);
    let hidden = dense(
        &mut b,
        "multi_modal_projector.linear_2",
        x,
        text_columns(all)?,
        bias,
        Activation::None,
    );
    let graph = b.finish(hidden, None)?;
    Ok(VisionEncoderGraph {
        table,
        frames_first: config.load().container() == Container::Gguf,
        ..VisionEncoderGraph::new(graph, patch, merge)
    })
}
