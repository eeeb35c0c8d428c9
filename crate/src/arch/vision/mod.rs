//! Pictures in a family: the tower that turns patches into rows, as data of its record, and the decoder that takes such rows.
//! Knows structure, neither pixels nor how rows come into a prompt.

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

/// The field of a `vision_config` that was made of a file beside a GGUF model; no config.json has it.
const AS_IN_GGUF: &str = "as_in_gguf";

/// The input of patches.
pub const PATCHES: &str = "patches";
/// The input of pairs (entry, weight) of the table of positions.
pub const PLACES: &str = "places";
/// The input of a pair that says: the first entry, as it is.
pub const PROBE: &str = "probe";
/// The input of a language model that has the rows of pictures.
pub const PICTURES: &str = "pictures";

/// Which of a picture's rows see each other both ways in the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// None: each sees what comes before it.
    Causal,
    /// Those of one picture, in all layers. A window hides what comes long before a row all the same.
    Both,
    /// Those of one picture, in layers with a window only.
    Windows,
}

/// How a family sees.
#[derive(Debug, Clone, Copy)]
pub struct Sees {
    /// Makes the tower of config.json and its `vision_config`.
    pub tower: fn(Config<'_>, Config<'_>) -> Result<Tower>,
    /// What a picture's tokens see in the language model.
    pub sight: fn(Config<'_>) -> Sight,
    /// Where tokens stand in three directions, the frequencies of each follow one another rather than take turns.
    pub consecutive: bool,
    /// How files beside GGUF models hold the tower.
    pub projector: Option<Projector>,
}

/// A tower, and what it must be given.
#[derive(Debug, Clone)]
pub struct Tower {
    /// From patches to rows; `hidden` has a row for each token, with its deeper features beside it.
    pub graph: Graph,
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Patches of a token's side: patches come in such blocks.
    pub merge: usize,
    /// The table of positions.
    pub table: Table,
    /// The rotation.
    pub rope: Option<Axial>,
    /// Tokens of a window's side where some layers see windows only.
    pub window: Option<usize>,
    /// Multiplies patches, and is added to them.
    pub affine: [f32; 2],
    /// How often the language model's columns come side by side: 1, and 1 for each layer that gets features of its own.
    pub features: usize,
    /// Tokens of a tile; none where they follow from its size.
    pub tile_tokens: Option<usize>,
    /// The numbers of a patch are (frame, color, y, x), whatever the processor's order is: as files of towers beside GGUF
    /// models have it.
    pub frames_first: bool,
    /// A tile becomes one row.
    pub pooled: bool,
    /// How the model is told when a video's frames show; none where it takes no videos.
    pub told: Option<Told>,
    /// Weights, by the end of their name, whose rows are kept in another order.
    pub rows: Vec<(&'static str, RowOrder)>,
}

impl Tower {
    /// A tower without positions, rotation and windows.
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

/// The settings of an image processor of a class.
fn with_class(mut settings: Value, class: &str) -> Value {
    settings["image_processor_type"] = class.into();
    settings
}

/// Gives weights the names that the checkpoint has: what ends in them, whatever a file puts before.
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

/// How many times the columns of the language model a picture's row has.
fn features(vision: Config<'_>) -> usize {
    1 + vision.get("deepstack_visual_indexes").and_then(Value::as_array).map_or(0, Vec::len)
}

/// The directions of a rotation's frequencies, where tokens stand in three.
pub(super) fn sections(sees: &Sees, config: Config<'_>) -> Option<Sections> {
    let list = config.get("rope_parameters")?.get("mrope_section")?.as_array()?;
    let sizes: Vec<usize> = list.iter().filter_map(|n| Some(n.as_u64()? as usize)).collect();
    Some(Sections { sizes: sizes.try_into().ok()?, interleaved: !sees.consecutive })
}

/// A decoder that takes rows of anything else at numbers past its table: the voice of a speaker.
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

/// A decoder that takes rows of pictures at numbers past its table, and adds their deeper features after its first layers.
pub(super) fn with_pictures(mut graph: Graph, sees: &Sees, config: Config<'_>) -> Graph {
    let features = config.get("vision_config").map_or(1, |vision| features(Config(vision)));
    let tokens = |n: &Node| matches!(n.op, Op::Embed { ids: Ids::Tokens, .. });
    let Some(at) = graph.nodes.iter().position(tokens) else { return graph };
    let hidden = graph.value(graph.nodes[at].output).cols;
    graph.inputs.push(Input { name: PICTURES.into(), rows: Dim::TOKENS, cols: hidden * features });
    let rows = InputId(graph.inputs.len() - 1);
    let Op::Embed { table, .. } = graph.nodes[at].op else { return graph };
    // Other tables know pictures as padding.
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
