//! Towers: from a configuration to the graph that turns patches of pictures into rows for the language model. The order of
//! operations is that of transformers' modeling files. It knows neither pixels nor how rows come into a prompt.

use super::config::Config;
use crate::ir::{
    Activation, Attention, Builder, Dim, Graph, Ids, Input, InputId, Linear, Mask, Node, Norm, Op, Pooling, RopeSpec,
    Value as Column, ValueId, WeightKind,
};
use crate::vision::{Axial, Sections, Table};
use crate::{Error, Result};
use serde_json::Value;

/// The input of patches.
pub const PATCHES: &str = "patches";
/// The input of pairs (entry, weight) of the table of positions.
pub const PLACES: &str = "places";

/// Which of a picture's rows see each other both ways in the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// None: each sees what comes before it.
    Causal,
    /// Those of one picture, in all layers, past any window.
    Both,
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
    /// What its rows see in the language model.
    pub sight: Sight,
}

/// Whether a model has a tower that can be built.
pub fn sees(config: &Value) -> bool {
    config.get("vision_config").is_some() && build_of(Config(config)).is_some()
}

type Build = fn(Config<'_>, Config<'_>) -> Result<Tower>;

fn build_of(config: Config<'_>) -> Option<Build> {
    Some(match config.text("model_type")? {
        "qwen3_5" | "qwen3_5_moe" | "qwen3_vl" | "qwen3_vl_moe" => qwen3,
        "qwen2_5_vl" => qwen2_5,
        "smolvlm" | "idefics3" => idefics3,
        "gemma3" => gemma3,
        "lfm2_vl" => lfm2,
        _ => return None,
    })
}

/// The tower of a model.
///
/// # Errors
/// `UnsupportedOption` for models without one, or with one that is not built; `Config` for damaged fields.
pub fn tower(config: &Value) -> Result<Tower> {
    let all = Config(config);
    let refused = || Error::UnsupportedOption {
        architecture: all.architecture(),
        option: "pictures".into(),
        hint: "Pictures go to Qwen3.5, Qwen3-VL, Qwen2.5-VL, SmolVLM, Idefics 3, Gemma 3 and LFM2-VL.".into(),
    };
    let vision = config.get("vision_config").map(Config).ok_or_else(refused)?;
    build_of(all).ok_or_else(refused)?(all, vision)
}

/// What the blocks of a tower share.
struct Vit {
    hidden: usize,
    heads: usize,
    /// RMSNorm rather than layer norm.
    rms: bool,
    eps: f32,
    rope: Option<RopeSpec>,
}

impl Vit {
    fn of(config: Config<'_>, heads: &str, eps: f32) -> Result<Self> {
        let (hidden, heads) = (config.count("hidden_size")?, config.count(heads)?);
        if !hidden.is_multiple_of(4 * heads) {
            let reason = format!("vision_config: {heads} heads do not cut {hidden} columns into multiples of four");
            return Err(Error::Config { file: "config.json".into(), reason });
        }
        Ok(Self { hidden, heads, rms: false, eps, rope: None })
    }

    fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    fn norm(&self, b: &mut Builder, name: &str, x: ValueId) -> ValueId {
        norm(b, name, x, !self.rms, self.eps, 0.0)
    }

    /// Attention of blocks within a tile, or within its windows.
    fn attention(&self, b: &mut Builder, path: &str, qkv: [ValueId; 3], windows: bool) -> ValueId {
        let all = usize::MAX;
        let mask = if windows { Mask::Window } else { Mask::Segment { before: all, after: all } };
        let attention = Attention {
            heads: self.heads,
            kv_heads: self.heads,
            head_dim: self.head_dim(),
            scale: (self.head_dim() as f32).powf(-0.5),
            mask,
            softcap: 0.0,
            relative: None,
            sinks: None,
            head_norm: None,
            rope: self.rope.clone().map(|r| b.rope(r)),
            state: None,
        };
        b.node(&format!("{path}.attention"), Op::Attention(attention), &qkv, self.hidden)
    }

    /// `h + attention(norm(h))` with one tensor for q, k and v.
    fn attend_fused(&self, b: &mut Builder, path: &str, h: ValueId, windows: bool) -> ValueId {
        let x = self.norm(b, &format!("{path}.norm1"), h);
        let qkv = b.linear(&format!("{path}.attn.qkv"), x, 3 * self.hidden, true);
        let parts = ["q", "k", "v"];
        let view =
            |b: &mut Builder, i: usize| b.view(&format!("{path}.{}", parts[i]), qkv, i * self.hidden, self.hidden);
        let qkv = [view(b, 0), view(b, 1), view(b, 2)];
        let mixed = self.attention(b, path, qkv, windows);
        let out = b.linear(&format!("{path}.attn.proj"), mixed, self.hidden, true);
        b.add(&format!("{path}.attention_residual"), h, out)
    }
}

fn norm(b: &mut Builder, name: &str, x: ValueId, layer: bool, eps: f32, offset: f32) -> ValueId {
    let cols = b.cols(x);
    let gain = Some(b.vector(&format!("{name}.weight"), cols));
    let bias = layer.then(|| b.vector(&format!("{name}.bias"), cols));
    b.node(name, Op::Norm(Norm { gain, bias, layer, offset, eps }), &[x], cols)
}

/// `act(x Wᵀ + bias)`.
fn dense(b: &mut Builder, name: &str, x: ValueId, rows: usize, bias: bool, act: Activation) -> ValueId {
    let cols = b.cols(x);
    let weight = b.matrix(&format!("{name}.weight"), rows, cols);
    let bias = bias.then(|| b.vector(&format!("{name}.bias"), rows));
    b.node(name, Op::Linear(Linear { act, ..Linear::new(weight, bias) }), &[x], rows)
}

/// Patches through the first product, with what the table of positions says of their places.
fn embedded(
    b: &mut Builder,
    name: &str,
    cols: usize,
    hidden: usize,
    bias: bool,
    table: Table,
    places: &str,
) -> ValueId {
    let patches = b.input(PATCHES, Dim::TOKENS, cols);
    let h = b.linear(name, patches, hidden, bias);
    let entries = match table {
        Table::None => return h,
        Table::Nearest(side) | Table::Corners(side) | Table::Resized(side) => side * side,
        Table::Sum(side) => 2 * side,
    };
    let pairs = b.input(PLACES, Dim::TOKENS, 2 * table.taps());
    let weight = b.weight(places, entries, hidden, WeightKind::Table);
    let placed = b.node("placed", Op::Blend { table: weight, taps: table.taps() }, &[pairs], hidden);
    b.add("embedded", h, placed)
}

fn side(config: Config<'_>, field: &str) -> Result<usize> {
    let entries = config.count(field)?;
    let side = entries.isqrt();
    if side * side != entries {
        let reason = format!("vision_config: {field} = {entries} is no square");
        return Err(Error::Config { file: "config.json".into(), reason });
    }
    Ok(side)
}

fn rope_base(config: Config<'_>) -> Result<f64> {
    config.get("rope_parameters").map(Config).map_or(Ok(10_000.0), |p| p.number_or("rope_theta", 10_000.0))
}

/// The rotation of Qwen's towers: by row, then by column, over the whole head.
fn axial(vit: &mut Vit, base: f64) -> Axial {
    vit.rope = Some(RopeSpec::plain(vit.head_dim(), base));
    Axial { dim: vit.head_dim(), base, column_first: false }
}

/// Qwen3-VL and Qwen3.5. Reference: `modeling_qwen3_vl.py`.
fn qwen3(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let mut vit = Vit::of(config, "num_heads", 1e-6)?;
    let (patch, merge) = (config.count("patch_size")?, config.count_or("spatial_merge_size", 2)?);
    let (size, act) = (config.count("intermediate_size")?, config.activation("hidden_act", "gelu_pytorch_tanh")?);
    let out = config.count("out_hidden_size")?;
    let table = Table::Corners(side(config, "num_position_embeddings")?);
    let rope = axial(&mut vit, rope_base(config)?);
    let mut b = Builder::new(&all.architecture());
    let cols = config.count_or("in_channels", 3)? * config.count_or("temporal_patch_size", 2)? * patch * patch;
    let mut h = embedded(&mut b, "patch_embed.proj", cols, vit.hidden, true, table, "pos_embed.weight");
    let deep: Vec<u64> = config
        .get("deepstack_visual_indexes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let mut features = Vec::new();
    for index in 0..config.layers("depth")? {
        let path = format!("blocks.{index}");
        h = vit.attend_fused(&mut b, &path, h, false);
        let x = vit.norm(&mut b, &format!("{path}.norm2"), h);
        let x = dense(&mut b, &format!("{path}.mlp.linear_fc1"), x, size, true, act);
        let x = dense(&mut b, &format!("{path}.mlp.linear_fc2"), x, vit.hidden, true, Activation::None);
        h = b.add(&format!("{path}.mlp_residual"), h, x);
        if let Some(at) = deep.iter().position(|d| *d == index as u64) {
            let path = format!("deepstack_merger_list.{at}");
            let joined = b.fold(&path, h, merge * merge);
            let x = vit.norm(&mut b, &format!("{path}.norm"), joined);
            features.push(merged(&mut b, &path, x, out));
        }
    }
    let x = vit.norm(&mut b, "merger.norm", h);
    let joined = b.fold("merger.joined", x, merge * merge);
    let mut outs = vec![merged(&mut b, "merger", joined, out)];
    outs.extend(features);
    let hidden = beside(&mut b, &outs);
    let graph = b.finish(hidden, None)?;
    let features = outs.len();
    Ok(Tower {
        graph,
        patch,
        merge,
        table,
        rope: Some(rope),
        window: None,
        affine: [1.0, 0.0],
        features,
        tile_tokens: None,
        sight: Sight::Causal,
    })
}

fn merged(b: &mut Builder, path: &str, x: ValueId, out: usize) -> ValueId {
    let cols = b.cols(x);
    let x = dense(b, &format!("{path}.linear_fc1"), x, cols, true, Activation::Gelu);
    dense(b, &format!("{path}.linear_fc2"), x, out, true, Activation::None)
}

/// Values side by side, the first as it is where it is alone.
fn beside(b: &mut Builder, values: &[ValueId]) -> ValueId {
    if let [only] = values {
        return *only;
    }
    let cols = values.iter().map(|v| b.cols(*v)).sum();
    b.node("features", Op::Beside, values, cols)
}

/// Qwen2.5-VL. Reference: `modeling_qwen2_5_vl.py`.
fn qwen2_5(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let mut vit = Vit { rms: true, ..Vit::of(config, "num_heads", 1e-6)? };
    let (patch, merge) = (config.count_or("patch_size", 14)?, config.count_or("spatial_merge_size", 2)?);
    let (size, act) = (config.count("intermediate_size")?, config.activation("hidden_act", "silu")?);
    let window = config.count_or("window_size", 112)? / merge / patch;
    let full: Vec<u64> = config
        .get("fullatt_block_indexes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    let rope = axial(&mut vit, rope_base(config)?);
    let mut b = Builder::new(&all.architecture());
    let cols = config.count_or("in_channels", 3)? * config.count_or("temporal_patch_size", 2)? * patch * patch;
    let mut h = embedded(&mut b, "patch_embed.proj", cols, vit.hidden, false, Table::None, "");
    for index in 0..config.layers("depth")? {
        let path = format!("blocks.{index}");
        h = vit.attend_fused(&mut b, &path, h, !full.contains(&(index as u64)));
        let x = vit.norm(&mut b, &format!("{path}.norm2"), h);
        let gate = b.linear(&format!("{path}.mlp.gate_proj"), x, size, true);
        let up = b.linear(&format!("{path}.mlp.up_proj"), x, size, true);
        let x = b.node(&format!("{path}.mlp.gated"), Op::Gated(act), &[gate, up], size);
        let x = b.linear(&format!("{path}.mlp.down_proj"), x, vit.hidden, true);
        h = b.add(&format!("{path}.mlp_residual"), h, x);
    }
    let x = vit.norm(&mut b, "merger.ln_q", h);
    let x = b.fold("merger.joined", x, merge * merge);
    let cols = b.cols(x);
    let x = dense(&mut b, "merger.mlp.0", x, cols, true, Activation::Gelu);
    let hidden = dense(&mut b, "merger.mlp.2", x, config.count("out_hidden_size")?, true, Activation::None);
    let graph = b.finish(hidden, None)?;
    Ok(Tower {
        graph,
        patch,
        merge,
        table: Table::None,
        rope: Some(rope),
        window: Some(window),
        affine: [1.0, 0.0],
        features: 1,
        tile_tokens: None,
        sight: Sight::Causal,
    })
}

/// SigLIP as Idefics 3, Gemma 3 and LFM2-VL have it, to the last norm. Reference: `modeling_siglip.py`.
fn siglip(b: &mut Builder, config: Config<'_>, patch: usize, table: Table) -> Result<ValueId> {
    let vit = Vit::of(config, "num_attention_heads", config.number_or("layer_norm_eps", 1e-6)? as f32)?;
    let (size, act) = (config.count("intermediate_size")?, config.activation("hidden_act", "gelu_pytorch_tanh")?);
    let cols = config.count_or("num_channels", 3)? * patch * patch;
    let name = "embeddings.patch_embedding";
    let mut h = embedded(b, name, cols, vit.hidden, true, table, "embeddings.position_embedding.weight");
    for index in 0..config.layers("num_hidden_layers")? {
        let path = format!("encoder.layers.{index}");
        let x = vit.norm(b, &format!("{path}.layer_norm1"), h);
        let project = |b: &mut Builder, part: &str| b.linear(&format!("{path}.self_attn.{part}"), x, vit.hidden, true);
        let qkv = [project(b, "q_proj"), project(b, "k_proj"), project(b, "v_proj")];
        let mixed = vit.attention(b, &path, qkv, false);
        let x = b.linear(&format!("{path}.self_attn.out_proj"), mixed, vit.hidden, true);
        h = b.add(&format!("{path}.attention_residual"), h, x);
        let x = vit.norm(b, &format!("{path}.layer_norm2"), h);
        let x = dense(b, &format!("{path}.mlp.fc1"), x, size, true, act);
        let x = dense(b, &format!("{path}.mlp.fc2"), x, vit.hidden, true, Activation::None);
        h = b.add(&format!("{path}.mlp_residual"), h, x);
    }
    Ok(vit.norm(b, "post_layernorm", h))
}

/// Columns of the language model.
fn text_columns(all: Config<'_>) -> Result<usize> {
    all.get("text_config").map_or(all, Config).count("hidden_size")
}

/// The tiles of a tower whose pictures have one size: patches along a side.
fn tile_side(config: Config<'_>, patch: usize, merge: usize) -> Result<usize> {
    let side = config.count_or("image_size", 224)? / patch;
    if side == 0 || !side.is_multiple_of(merge) {
        let reason = format!("vision_config: blocks of {merge} do not divide {side} patches");
        return Err(Error::Config { file: "config.json".into(), reason });
    }
    Ok(side)
}

/// Idefics 3 and SmolVLM. Reference: `modeling_idefics3.py`.
fn idefics3(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let (patch, merge) = (config.count_or("patch_size", 32)?, all.count_or("scale_factor", 2)?);
    let side = tile_side(config, patch, merge)?;
    let mut b = Builder::new(&all.architecture());
    let h = siglip(&mut b, config, patch, Table::Nearest(side))?;
    let joined = b.fold("joined", h, merge * merge);
    let hidden = b.linear("connector.modality_projection.proj", joined, text_columns(all)?, false);
    let graph = b.finish(hidden, None)?;
    let tile_tokens = Some((side / merge).pow(2));
    Ok(Tower {
        graph,
        patch,
        merge,
        table: Table::Nearest(side),
        rope: None,
        window: None,
        affine: [1.0, 0.0],
        features: 1,
        tile_tokens,
        sight: Sight::Causal,
    })
}

/// Gemma 3. Reference: `modeling_gemma3.py`.
fn gemma3(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let (patch, tokens) = (config.count("patch_size")?, all.count_or("mm_tokens_per_image", 256)?);
    let patches = config.count_or("image_size", 224)? / patch;
    let merge = patches / tokens.isqrt().max(1);
    let side = tile_side(config, patch, merge.max(1))?;
    let mut b = Builder::new(&all.architecture());
    let h = siglip(&mut b, config, patch, Table::Nearest(side))?;
    let cols = b.cols(h);
    let pooled = b.node("pooled", Op::Pool(Pooling::Mean), &[h], cols);
    let eps = config.number_or("layer_norm_eps", 1e-6)? as f32;
    let x = norm(&mut b, "multi_modal_projector.mm_soft_emb_norm", pooled, false, eps, 1.0);
    let out = text_columns(all)?;
    // Stored [in, out].
    let weight = b.weight("multi_modal_projector.mm_input_projection_weight", cols, out, WeightKind::Table);
    let hidden = b.node("projected", Op::Blend { table: weight, taps: 0 }, &[x], out);
    let graph = b.finish(hidden, None)?;
    Ok(Tower {
        graph,
        patch,
        merge,
        table: Table::Nearest(side),
        rope: None,
        window: None,
        affine: [1.0, 0.0],
        features: 1,
        tile_tokens: Some(tokens),
        sight: Sight::Both,
    })
}

/// LFM2-VL. Reference: `modeling_lfm2_vl.py`, `modeling_siglip2.py`.
fn lfm2(all: Config<'_>, config: Config<'_>) -> Result<Tower> {
    let (patch, merge) = (config.count("patch_size")?, all.count_or("downsample_factor", 2)?);
    let table = Table::Resized(side(config, "num_patches")?);
    let mut b = Builder::new(&all.architecture());
    let h = siglip(&mut b, config, patch, table)?;
    let mut x = b.fold("joined", h, merge * merge);
    if all.flag_or("projector_use_layernorm", true) {
        x = norm(&mut b, "multi_modal_projector.layer_norm", x, true, 1e-5, 0.0);
    }
    let (size, bias) = (all.count("projector_hidden_size")?, all.flag_or("projector_bias", true));
    let act = all.activation("projector_hidden_act", "gelu")?;
    let x = dense(&mut b, "multi_modal_projector.linear_1", x, size, bias, act);
    let hidden = dense(&mut b, "multi_modal_projector.linear_2", x, text_columns(all)?, bias, Activation::None);
    let graph = b.finish(hidden, None)?;
    Ok(Tower {
        graph,
        patch,
        merge,
        table,
        rope: None,
        window: None,
        affine: [1.0, 0.0],
        features: 1,
        tile_tokens: None,
        sight: Sight::Causal,
    })
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

/// The input of a language model that has the rows of pictures.
pub const PICTURES: &str = "pictures";

/// How many times the columns of the language model a picture's row has.
fn features(vision: Config<'_>) -> usize {
    1 + vision.get("deepstack_visual_indexes").and_then(Value::as_array).map_or(0, Vec::len)
}

/// What a picture's tokens see in the language model.
pub fn sight(config: &Value) -> Sight {
    let both = config.get("vision_config").is_some() && Config(config).text("model_type") == Some("gemma3");
    if both { Sight::Both } else { Sight::Causal }
}

/// The directions of a rotation's frequencies, where tokens stand in three.
pub fn sections(config: &Value) -> Option<Sections> {
    config.get("vision_config")?;
    let text = config.get("text_config").unwrap_or(config);
    let of = |field: &str| text.get(field)?.get("mrope_section")?.as_array();
    let list: Vec<usize> = of("rope_parameters")
        .or_else(|| of("rope_scaling"))?
        .iter()
        .filter_map(|n| Some(n.as_u64()? as usize))
        .collect();
    // Qwen2-VL and Qwen2.5-VL have them one after another, their followers take turns.
    let consecutive = matches!(Config(config).text("model_type"), Some("qwen2_vl" | "qwen2_5_vl"));
    Some(Sections { sizes: list.try_into().ok()?, interleaved: !consecutive })
}

/// A decoder that takes rows of pictures at numbers past its table, and adds their deeper features after its first layers.
pub(super) fn with_pictures(mut graph: Graph, config: &Value) -> Graph {
    let Some(vision) = config.get("vision_config").filter(|_| sees(config)) else { return graph };
    let features = features(Config(vision));
    let tokens = |n: &Node| matches!(n.op, Op::Embed { ids: Ids::Tokens, .. });
    let Some(at) = graph.nodes.iter().position(tokens) else { return graph };
    let hidden = graph.value(graph.nodes[at].output).cols;
    graph.inputs.push(Input { name: PICTURES.into(), rows: Dim::TOKENS, cols: hidden * features });
    let rows = InputId(graph.inputs.len() - 1);
    let Op::Embed { table, soft, .. } = &mut graph.nodes[at].op else { return graph };
    let table = *table;
    *soft = Some(rows);
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

/// The configuration as its language model's own family reads it: the fields of `text_config` at the top, under that family's
/// name. Others are left as they are.
pub(super) fn language(config: &Value) -> std::borrow::Cow<'_, Value> {
    const FAMILIES: [(&str, &str); 4] = [
        ("qwen2_5_vl", "Qwen2ForCausalLM"),
        ("qwen3_vl", "Qwen3ForCausalLM"),
        ("smolvlm", "LlamaForCausalLM"),
        ("idefics3", "LlamaForCausalLM"),
    ];
    let kind = Config(config).text("model_type");
    let family = FAMILIES.iter().find(|f| Some(f.0) == kind);
    let (Some((_, class)), Some(object)) = (family, config.as_object()) else {
        return std::borrow::Cow::Borrowed(config);
    };
    let mut own = object.clone();
    for (field, value) in config.get("text_config").and_then(Value::as_object).into_iter().flatten() {
        if field != "model_type" && !value.is_null() {
            own.insert(field.clone(), value.clone());
        }
    }
    own.insert("architectures".into(), serde_json::json!([class]));
    std::borrow::Cow::Owned(Value::Object(own))
}

/// Gives a language model's weights the names that a checkpoint with a tower has for them.
pub fn match_language<'a>(graph: &mut Graph, stored: impl Fn(&str) -> bool + 'a) {
    let prefixes = ["model.", "model.language_model.", "language_model.model.", "model.text_model."];
    let Some(prefix) = prefixes.iter().find(|p| stored(&format!("{p}embed_tokens.weight"))) else { return };
    for (name, _) in graph.weights.iter_mut().flat_map(|w| w.parts.iter_mut()) {
        let head = format!("language_model.{name}");
        if let Some(rest) = name.strip_prefix("model.") {
            *name = format!("{prefix}{rest}");
        } else if !stored(name) && stored(&head) {
            *name = head;
        }
    }
}
