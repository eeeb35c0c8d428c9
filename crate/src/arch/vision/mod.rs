//! Image input of a family: the vision encoder, which turns patches into image embeddings, and the decoder that takes
//! them. Covers the graphs, but neither pixels nor the placement of embeddings in a prompt.

pub mod gemma4;
pub mod pooled;
pub mod qwen;
pub mod siglip;
mod vit;

use super::config::Config;
use crate::Result;
use crate::format::RowOrder;
use crate::format::gguf::clip::Projector;
use crate::ir::{Dim, Graph, Ids, Input, InputId, Mask, Node, Op, Soft, Value as Column, ValueId};
use crate::vision::{Axial, Sections, Table, Told};
use serde_json::Value;

/// Marks a `vision_config` that was made from an mmproj file; not a field of any config.json.
const AS_IN_GGUF: &str = "as_in_gguf";

/// Input of patches `[patches, patch values]`.
pub const PATCHES: &str = "patches";
/// Input of pairs (entry, weight) into the position table.
pub const PLACES: &str = "places";
/// Input of the pair (0, 1): the first entry, unscaled.
pub const PROBE: &str = "probe";
/// Language model input of image embeddings.
pub const PICTURES: &str = "pictures";

/// Attention between the tokens of one image in the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Causal, as for text.
    Causal,
    /// Bidirectional in all layers. Sliding windows still hide distant earlier tokens.
    Both,
    /// Bidirectional in sliding-window layers only.
    Windows,
}

/// Vision part of a family.
#[derive(Debug, Clone, Copy)]
pub struct Sees {
    /// Builds the vision encoder from config.json and its `vision_config`.
    pub tower: fn(Config<'_>, Config<'_>) -> Result<Tower>,
    /// Attention of image tokens in the language model.
    pub sight: fn(Config<'_>) -> Sight,
    /// With M-RoPE, whether the frequencies of each section are consecutive rather than interleaved.
    pub consecutive: bool,
    /// Names and fields in mmproj files.
    pub projector: Option<Projector>,
}

/// A vision encoder and the requirements of its input.
#[derive(Debug, Clone)]
pub struct Tower {
    /// Patches to image embeddings `[tokens, features × language model columns]`; deeper features follow the first ones
    /// in each row.
    pub graph: Graph,
    /// Patch size in pixels.
    pub patch: usize,
    /// Patches per token along each side; patches come in such blocks.
    pub merge: usize,
    /// Position table.
    pub table: Table,
    /// RoPE.
    pub rope: Option<Axial>,
    /// Window size in tokens, if some layers use windowed attention.
    pub window: Option<usize>,
    /// Scale and offset of patch values.
    pub affine: [f32; 2],
    /// Feature groups per row: 1, and 1 for each decoder layer with DeepStack features.
    pub features: usize,
    /// Tokens per tile; `None` if they follow from its size.
    pub tile_tokens: Option<usize>,
    /// Whether patch values are ordered (frame, color, y, x) regardless of the processor, as in mmproj files.
    pub frames_first: bool,
    /// Whether a tile becomes a single embedding.
    pub pooled: bool,
    /// How prompts state the timestamps of video frames; `None` for models without video input.
    pub told: Option<Told>,
    /// Suffixes of weights whose rows are stored in another order.
    pub rows: Vec<(&'static str, RowOrder)>,
}

impl Tower {
    /// Returns a vision encoder without position table, RoPE and windows.
    fn plain(graph: Graph, patch: usize, merge: usize) -> Self {
        Self {
            graph,
            patch,
            merge,
            table: Table::None,
            rope: None,
            window: None,
            affine: [1.0, 0.0],
            features: 1,
            tile_tokens: None,
            frames_first: false,
            pooled: false,
            told: None,
            rows: Vec::new(),
        }
    }
}

/// Sets the class of image processor settings.
fn with_class(mut settings: Value, class: &str) -> Value {
    settings["image_processor_type"] = class.into();
    settings
}

/// Renames weights to the checkpoint's names that end in them; the shortest match wins.
pub fn match_ends(graph: &mut Graph, stored: &[String]) {
    for (name, _) in graph.weights.iter_mut().flat_map(|w| w.parts.iter_mut()) {
        let ends = |s: &&String| {
            s.strip_suffix(name.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        if let Some(found) = stored.iter().filter(ends).min_by_key(|s| s.len()) {
            name.clone_from(found);
        }
    }
}

/// Returns the feature groups per image embedding.
fn features(vision: Config<'_>) -> usize {
    1 + vision.get("deepstack_visual_indexes").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Returns the M-RoPE sections; `None` where positions have one dimension.
pub(super) fn sections(sees: &Sees, config: Config<'_>) -> Option<Sections> {
    let list = config.get("rope_parameters")?.get("mrope_section")?.as_array()?;
    let sizes: Vec<usize> = list.iter().filter_map(|n| Some(n.as_u64()? as usize)).collect();
    Some(Sections { sizes: sizes.try_into().ok()?, interleaved: !sees.consecutive })
}

/// Makes a decoder accept external embeddings at token ids past its table, such as a speaker embedding.
pub(super) fn with_rows(mut graph: Graph) -> Graph {
    let tokens = |n: &Node| matches!(n.op, Op::Embed { ids: Ids::Tokens, .. });
    let Some(at) = graph.nodes.iter().position(tokens) else { return graph };
    let cols = graph.value(graph.nodes[at].output).cols;
    graph.inputs.push(Input { name: PICTURES.into(), rows: Dim::TOKENS, cols });
    let rows = InputId(graph.inputs.len() - 1);
    if let Op::Embed { soft, .. } = &mut graph.nodes[at].op {
        *soft = Some(Soft::Rows(rows));
    }
    graph
}

/// Makes a decoder accept image embeddings at token ids past its table, and add DeepStack features after its first
/// layers.
pub(super) fn with_pictures(mut graph: Graph, sees: &Sees, config: Config<'_>) -> Graph {
    let features = config.get("vision_config").map_or(1, |vision| features(Config(vision)));
    let tokens = |n: &Node| matches!(n.op, Op::Embed { ids: Ids::Tokens, .. });
    let Some(at) = graph.nodes.iter().position(tokens) else { return graph };
    let hidden = graph.value(graph.nodes[at].output).cols;
    graph.inputs.push(Input { name: PICTURES.into(), rows: Dim::TOKENS, cols: hidden * features });
    let rows = InputId(graph.inputs.len() - 1);
    let Op::Embed { table, .. } = graph.nodes[at].op else { return graph };
    // Further embedding tables use the padding token at image positions.
    let padding = config.get("pad_token_id").and_then(Value::as_u64).unwrap_or(0) as u32;
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        if let Op::Embed { ids: Ids::Tokens, soft, .. } = &mut node.op {
            *soft = Some(if index == at { Soft::Rows(rows) } else { Soft::Number(padding) });
        }
    }
    let sight = (sees.sight)(config);
    for node in &mut graph.nodes {
        if let Op::Attention(a) = &mut node.op
            && let Mask::Causal { window } = a.mask
            && (sight == Sight::Both || sight == Sight::Windows && window > 0)
        {
            a.mask = Mask::Pictures { window };
        }
    }
    for layer in 0..features - 1 {
        let end = format!("layers.{layer}.mlp_residual");
        let Some(at) = graph.nodes.iter().position(|n| graph.value(n.output).name.ends_with(&end)) else { continue };
        let old = graph.nodes[at].output;
        graph.values.push(Column { name: format!("{end}, seen"), ..graph.value(old).clone() });
        let new = ValueId(graph.values.len() - 1);
        for node in &mut graph.nodes[at + 1..] {
            node.inputs.iter_mut().filter(|i| **i == old).for_each(|i| *i = new);
        }
        let op = Op::AddSoft { rows, table, column: (layer + 1) * hidden };
        graph.nodes.insert(at + 1, Node { op, inputs: vec![old], output: new });
    }
    graph
}
