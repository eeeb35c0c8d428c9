//! Image input of a family: the vision encoder, which turns patches into image embeddings, and the
//! decoder that takes them. Covers the graphs, but neither pixels nor the placement of embeddings
//! in a prompt.

pub mod gemma4;
pub mod pooled;
pub mod qwen;
pub mod siglip;
mod vit;

use super::config::{Config, Container};
use crate::Result;
use crate::format::RowOrder;
use crate::format::gguf::mmproj::MmprojSpec;
use crate::ir::{
    AddSoftTokens, Dim, Embed, Graph, IdSource, Input, InputId, Mask, Node, Op, SoftTokens,
    Value as Column, ValueId,
};
use crate::vision::{AxialRope, MropeSections, PositionTable, TimestampStyle};
use serde_json::Value;

/// Input of patches `[patches, patch values]`.
pub const PATCHES: &str = "patches";
/// Input of pairs (entry, weight) into the position table.
pub const POSITION_PAIRS: &str = "places";
/// Input of the pair (0, 1): the first entry, unscaled.
pub const FIRST_ENTRY: &str = "probe";
/// Language model input of image embeddings.
pub const IMAGE_EMBEDDINGS: &str = "image_embeddings";

/// Attention between the tokens of one image in the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageMask {
    /// Causal, as for text.
    Causal,
    /// Bidirectional in all layers. Sliding windows still hide distant earlier tokens.
    Bidirectional,
    /// Bidirectional in sliding-window layers only.
    BidirectionalInWindows,
}

/// Vision part of a family.
#[derive(Debug, Clone, Copy)]
pub struct VisionSpec {
    /// Builds the vision encoder from config.json and its `vision_config`.
    pub build: fn(Config<'_>, Config<'_>) -> Result<VisionEncoderGraph>,
    /// Attention of image tokens in the language model.
    pub mask: fn(Config<'_>) -> ImageMask,
    /// With M-RoPE, whether the frequencies of each section are consecutive rather than
    /// interleaved.
    pub consecutive_sections: bool,
    /// Names and fields in mmproj files.
    pub mmproj: Option<MmprojSpec>,
}

/// A vision encoder and the requirements of its input.
#[derive(Debug, Clone)]
pub struct VisionEncoderGraph {
    /// Patches to image embeddings `[tokens, features × language model columns]`; deeper features
    /// follow the first ones in each row.
    pub graph: Graph,
    /// Patch size in pixels.
    pub patch: usize,
    /// Patches per token along each side; patches come in such blocks.
    pub merge: usize,
    /// Position table.
    pub table: PositionTable,
    /// RoPE.
    pub rope: Option<AxialRope>,
    /// Window size in tokens, if some layers use windowed attention.
    pub window: Option<usize>,
    /// Scale and offset of patch values.
    pub affine: [f32; 2],
    /// Feature groups per row: 1, and 1 for each decoder layer with DeepStack features.
    pub features: usize,
    /// Tokens per tile; `None` if they follow from its size.
    pub tile_tokens: Option<usize>,
    /// Whether patch values are ordered (frame, color, y, x) regardless of the processor, as in
    /// mmproj files.
    pub frames_first: bool,
    /// Whether a tile becomes a single embedding.
    pub pooled: bool,
    /// How prompts state the timestamps of video frames; `None` for models without video input.
    pub timestamps: Option<TimestampStyle>,
    /// Suffixes of weights whose rows are stored in another order.
    pub row_orders: Vec<(&'static str, RowOrder)>,
}

impl VisionEncoderGraph {
    /// Returns a vision encoder without position table, RoPE and windows.
    fn new(graph: Graph, patch: usize, merge: usize) -> Self {
        Self {
            graph,
            patch,
            merge,
            table: PositionTable::None,
            rope: None,
            window: None,
            affine: [1.0, 0.0],
            features: 1,
            tile_tokens: None,
            frames_first: false,
            pooled: false,
            timestamps: None,
            row_orders: Vec::new(),
        }
    }
}

/// Sets the class of image processor settings.
fn with_class(mut settings: Value, class: &str) -> Value {
    settings["image_processor_type"] = class.into();
    settings
}

/// Renames weights to the checkpoint's names that end in them; the shortest match wins.
pub fn match_suffixes(graph: &mut Graph, stored: &[String]) {
    for (name, _) in graph.weights.iter_mut().flat_map(|w| w.parts.iter_mut()) {
        let ends = |s: &&String| {
            s.strip_suffix(name.as_str())
                .is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        if let Some(found) = stored.iter().filter(ends).min_by_key(|s| s.len()) {
            name.clone_from(found);
        }
    }
}

/// Returns the layers of the vision encoder whose features DeepStack adds to the decoder's.
fn deepstack_layers(all: Config<'_>, vision: Config<'_>) -> Vec<u64> {
    let listed = vision.get("deepstack_visual_indexes");
    match listed.and_then(Value::as_array) {
        Some(listed) => listed.iter().filter_map(Value::as_u64).collect(),
        // The default of `Qwen3VLVisionConfig`.
        None if all.string("model_type") == Some("qwen3_vl")
            && all.load().container() == Container::HuggingFace =>
        {
            vec![8, 16, 24]
        }
        None => Vec::new(),
    }
}

/// Returns the M-RoPE sections; `None` where positions have one dimension.
pub(super) fn mrope_sections(sees: &VisionSpec, config: Config<'_>) -> Option<MropeSections> {
    let list = config
        .get("rope_parameters")?
        .get("mrope_section")?
        .as_array()?;
    let sizes: Vec<usize> = list
        .iter()
        .filter_map(|n| Some(n.as_u64()? as usize))
        .collect();
    Some(MropeSections {
        sizes: sizes.try_into().ok()?,
        interleaved: !sees.consecutive_sections,
    })
}

/// Makes a decoder accept external embeddings at token ids past its table, such as a speaker
/// embedding.
pub(super) fn with_soft_tokens(mut graph: Graph) -> Graph {
    if let Some((at, rows)) = add_embedding_input(&mut graph, 1)
        && let Op::Embed(embed) = &mut graph.nodes[at].op
    {
        embed.soft = Some(SoftTokens::Rows(rows));
    }
    graph
}

/// Adds the input `IMAGE_EMBEDDINGS` with `groups` times the columns of the token embeddings. Returns
/// the index of the embedding node and the input, or `None` if the graph embeds no tokens.
fn add_embedding_input(graph: &mut Graph, groups: usize) -> Option<(usize, InputId)> {
    let at = graph.nodes.iter().position(|n: &Node| {
        matches!(
            n.op,
            Op::Embed(Embed {
                ids: IdSource::Tokens,
                ..
            })
        )
    })?;
    graph.inputs.push(Input {
        name: IMAGE_EMBEDDINGS.into(),
        rows: Dim::TOKENS,
        cols: graph.value(graph.nodes[at].output).cols * groups,
    });
    Some((at, InputId(graph.inputs.len() - 1)))
}

/// Makes a decoder accept image embeddings at token ids past its table, and add DeepStack features
/// after its first layers.
pub(super) fn with_image_tokens(mut graph: Graph, spec: &VisionSpec, config: Config<'_>) -> Graph {
    let features = config
        .nested("vision_config")
        .map_or(1, |vision| 1 + deepstack_layers(config, vision).len());

    let Some((at, rows)) = add_embedding_input(&mut graph, features) else {
        return graph;
    };
    let hidden = graph.value(graph.nodes[at].output).cols;
    let Op::Embed(Embed { table, .. }) = graph.nodes[at].op else {
        return graph;
    };
    // Further embedding tables use the padding token at image positions.
    let padding = config
        .get("pad_token_id")
        .and_then(Value::as_u64)
        .unwrap_or(0) as u32;
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        if let Op::Embed(embed) = &mut node.op
            && embed.ids == IdSource::Tokens
        {
            embed.soft = Some(if index == at {
                SoftTokens::Rows(rows)
            } else {
                SoftTokens::Row(padding)
            });
        }
    }
    let mask = (spec.mask)(config);
    for node in &mut graph.nodes {
        if let Op::Attention(a) = &mut node.op
            && let Mask::Causal { window } = a.mask
            && (mask == ImageMask::Bidirectional
                || mask == ImageMask::BidirectionalInWindows && window > 0)
        {
            a.mask = Mask::BidirectionalImages { window };
        }
    }
    for layer in 0..features - 1 {
        let end = format!("layers.{layer}.mlp_residual");
        let Some(at) = graph
            .nodes
            .iter()
            .position(|n| graph.value(n.output).name.ends_with(&end))
        else {
            continue;
        };
        let old = graph.nodes[at].output;
        graph.values.push(Column {
            name: format!("{end}, seen"),
            ..graph.value(old).clone()
        });
        let new = ValueId(graph.values.len() - 1);
        for node in &mut graph.nodes[at + 1..] {
            node.inputs
                .iter_mut()
                .filter(|i| **i == old)
                .for_each(|i| *i = new);
        }
        let op = AddSoftTokens {
            rows,
            table,
            column: (layer + 1) * hidden,
        };
        graph.nodes.insert(
            at + 1,
            Node {
                op: op.into(),
                inputs: vec![old],
                output: new,
            },
        );
    }
    graph
}
