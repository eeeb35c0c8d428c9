//! Model families: their class names, their names in every container, and the renaming and row
//! order that stored weights need to fit the graph. The structure of each family is data in its own
//! file.

use super::config::{Config, Container, LoadConfig};
use super::direction::normalize_direction;
use super::encoder::{EncoderBody, HeadBuilder};
use super::standard::{RopeByType, normalize};
use super::vision::{self, VisionEncoderGraph, VisionSpec};
use super::{families, is_encoder};
use crate::format::gguf::mmproj::MmprojSpec;
use crate::format::{Encoding, RowOrder, WeightSource, Weights, gguf, mlc};
use crate::ir::{Graph, GraphBuilder};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// Computes the order of a weight's rows from the configuration.
pub type RowOrderFn = fn(Config<'_>) -> Result<RowOrder>;

/// Text embeddings in the same space as image embeddings: the last hidden state, scaled to length
/// 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointEmbedding {
    /// Whether text is lowercased and padded to the maximum length.
    pub padded: bool,
}

/// A model family.
#[derive(Debug)]
pub struct Family {
    /// Entries of `architectures` that name a decoder of this family.
    pub classes: &'static [&'static str],
    /// Values of `model_type`.
    pub model_types: &'static [&'static str],
    /// transformers' defaults for fields absent from config.json, as JSON, where the default here
    /// differs. Vision-language repositories leave such fields out of `text_config`.
    pub defaults: &'static str,
    /// RoPE per layer type, where sliding-window layers have a separate one.
    pub rope_kinds: Option<RopeByType>,
    /// Builds the graph of a decoder.
    pub decoder: Option<fn(Config<'_>) -> Result<Graph>>,
    /// Builds the graph of the decoder's multi-token-prediction head.
    pub mtp: Option<fn(Config<'_>) -> Result<Graph>>,
    /// Builds the body of an encoder.
    pub encoder: Option<fn(Config<'_>, &mut GraphBuilder) -> Result<EncoderBody>>,
    /// Builds the classification head of an encoder.
    pub classification_head: Option<HeadBuilder>,
    /// Pairs (prefix in published files, prefix in the graph) of tensor names; the first match
    /// wins.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// Pairs (part of a name in MLX files, that in the graph) of tensor names; the first match wins.
    pub mlx_names: &'static [(&'static str, &'static str)],
    /// Suffixes of weights whose rows are stored in another order than the graph's.
    pub row_orders: &'static [(&'static str, RowOrderFn)],
    /// Whether MLX's converter adds one to the weights of norms.
    pub mlx_norms_plus_one: bool,
    /// The vision encoder and its use in the decoder.
    pub vision: Option<VisionSpec>,
    /// Set where text and image embeddings share a space.
    pub joint_embedding: Option<JointEmbedding>,
    /// Names of scalar tensors that the graph depends on; their values are
    /// [`LoadConfig::scalars`].
    pub scalar_tensors: fn(Config<'_>) -> Vec<String>,
    /// Names and fields in GGUF files.
    pub gguf: &'static [gguf::GgufSpec],
    /// Names and fields in MLC repositories.
    pub mlc: &'static [mlc::MlcSpec],
}

impl Family {
    /// An empty family, the base of struct updates.
    pub const EMPTY: Self = Self {
        classes: &[],
        model_types: &[],
        defaults: "",
        rope_kinds: None,
        decoder: None,
        mtp: None,
        encoder: None,
        classification_head: None,
        prefixes: &[],
        mlx_names: &[],
        row_orders: &[],
        mlx_norms_plus_one: false,
        vision: None,
        joint_embedding: None,
        scalar_tensors: |_| Vec::new(),
        gguf: &[],
        mlc: &[],
    };
}

/// Normalizes a configuration: the text model's fields at the top, RoPE parameters in one object,
/// and the family's defaults for absent fields of a config.json.
pub fn load_config(mut json: Value, container: Container) -> LoadConfig {
    normalize_direction(&mut json);
    let unknown_class = normalize_class(&mut json);
    let raw = LoadConfig::from_fields(json, container);
    let family = find_family(raw.fields());
    let defaults: Map<String, Value> = match (container, family) {
        (Container::HuggingFace, Some(family)) => {
            serde_json::from_str(family.defaults).unwrap_or_default()
        }
        _ => Map::new(),
    };
    let kinds = family.and_then(|family| family.rope_kinds);
    let mut config = LoadConfig::from_fields(normalize(raw.json(), defaults, kinds), container);
    config.unknown_class = unknown_class;
    config
}

/// Makes `architectures` a list with a class, or removes it. Replaces an unknown decoder class by
/// that of the only decoder family with this `model_type`; returns the replaced class.
fn normalize_class(json: &mut Value) -> Option<String> {
    let fields = json.as_object_mut()?;
    let classes = fields.get("architectures")?;
    let class = classes.as_str().or_else(|| classes[0].as_str());
    let Some(class) = class.map(str::to_string) else {
        fields.remove("architectures");
        return None;
    };
    let kind = fields.get("model_type").and_then(Value::as_str);
    let mut with_type = families()
        .filter(|f| f.decoder.is_some() && kind.is_some_and(|kind| f.model_types.contains(&kind)));
    let is_unknown =
        class.ends_with("ForCausalLM") && !families().any(|f| f.classes.contains(&class.as_str()));
    let usual = match (with_type.next(), with_type.next()) {
        (Some(family), None) if is_unknown => family.classes.first(),
        _ => None,
    };
    let known = usual.map_or(class.as_str(), |usual| usual);
    fields.insert("architectures".into(), json!([known]));
    usual.map(|_| class)
}

impl From<Value> for LoadConfig {
    fn from(json: Value) -> Self {
        load_config(json, Container::HuggingFace)
    }
}

impl From<&Value> for LoadConfig {
    fn from(json: &Value) -> Self {
        json.clone().into()
    }
}

/// Returns how text and image embeddings share a space; `None` where they do not.
pub fn joint_embedding(config: &LoadConfig) -> Option<JointEmbedding> {
    find_family(config.fields())?.joint_embedding
}

/// Prefixes of the text part in multimodal checkpoints, and those of the text model alone.
const TEXT_PREFIXES: [(&str, &str); 4] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.text_model.", "model."),
];

/// Finds the family by class, or by `model_type` where the file names no class.
pub(super) fn find_by_config(
    config: Config<'_>,
    what: impl Fn(&Family) -> bool,
) -> Option<&'static Family> {
    let name = config.architecture();
    let by_class = families().find(|f| f.classes.contains(&name.as_str()) && what(f));
    let unnamed = config.get("architectures").is_none();
    by_class.or_else(|| {
        families().find(|f| unnamed && f.model_types.contains(&name.as_str()) && what(f))
    })
}

/// Returns the vision part of a configuration's family; `None` without a `vision_config`.
pub(super) fn vision_spec(config: &LoadConfig) -> Option<&'static VisionSpec> {
    config.get("vision_config").filter(|v| v.is_object())?;
    find_family(config.fields())?.vision.as_ref()
}

/// Builds the vision encoder of a model.
///
/// # Errors
/// `UnsupportedOption` for models without a vision encoder or with an unsupported one; `Config` for
/// damaged fields.
pub fn vision_encoder(config: &LoadConfig) -> Result<VisionEncoderGraph> {
    let all = config.fields();
    let refused = || Error::UnsupportedOption {
        architecture: all.architecture(),
        option: "image input".into(),
        hint: format!(
            "Models with image input: {}.",
            families()
                .filter(|f| f.vision.is_some())
                .flat_map(|f| f.classes.last().copied())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    if let Some(reason) = &config.refused_projector {
        return Err(Error::UnsupportedOption {
            architecture: all.architecture(),
            option: reason.clone(),
            hint: format!(
                "Supported mmproj types: {}.",
                mmproj_formats()
                    .map(|p| p.name)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        });
    }
    let spec = vision_spec(config).ok_or_else(refused)?;
    let vision = all.nested("vision_config").ok_or_else(refused)?;
    (spec.build)(all, vision)
}

/// Returns the attention mask of image tokens in the language model.
pub fn image_mask(config: &LoadConfig) -> vision::ImageMask {
    vision_spec(config).map_or(vision::ImageMask::Causal, |spec| {
        (spec.mask)(config.fields())
    })
}

/// Returns the M-RoPE sections; `None` where positions have one dimension.
pub fn mrope_sections(config: &LoadConfig) -> Option<crate::vision::MropeSections> {
    vision::mrope_sections(vision_spec(config)?, config.fields())
}

/// Returns the maximum number of positions of a model; `usize::MAX` where its file names none.
pub fn max_positions(config: &LoadConfig) -> usize {
    let known = [
        "max_position_embeddings",
        "n_positions",
        "max_target_positions",
    ]
    .iter()
    .find_map(|name| config.get(name)?.as_u64());
    known.map_or(usize::MAX, |n| n as usize)
}

/// Lists the scalar tensors that a model's graph depends on.
pub fn scalar_tensors(config: &LoadConfig) -> Vec<String> {
    let config = config.fields();
    find_family(config).map_or_else(Vec::new, |family| (family.scalar_tensors)(config))
}

/// Finds the family by class, or else by `model_type`.
pub(super) fn find_family(config: Config<'_>) -> Option<&'static Family> {
    let kind = config.string("model_type").unwrap_or_default();
    find_by_config(config, |_| true).or_else(|| families().find(|f| f.model_types.contains(&kind)))
}

fn rename_tensor(family: Option<&Family>, name: &str) -> Option<String> {
    let mut all = family
        .map_or(&[][..], |f| f.prefixes)
        .iter()
        .chain(&TEXT_PREFIXES);
    let body = all.find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")));
    let outer = body.as_deref().unwrap_or(name);
    let mut own = family.map_or(&[][..], |f| f.mlx_names).iter();
    let renamed = own.find(|(from, _)| outer.contains(from));
    renamed.map(|(from, to)| outer.replace(from, to)).or(body)
}

/// Returns the graph's name of a checkpoint's tensor.
pub fn canonical_name(config: &LoadConfig, name: &str) -> String {
    rename_tensor(find_family(config.fields()), name).unwrap_or_else(|| name.to_string())
}

/// Renames stored weights and sets their row order to match the graph; undoes what MLX's converter
/// did to their values.
///
/// # Errors
/// `Config` for a field that a row order needs.
pub fn sanitize(config: &mut LoadConfig, weights: &mut Weights) -> Result<()> {
    // Others store [channels, 1, taps].
    let is_mlx = |weight: &WeightSource| {
        weight.name.ends_with(".conv1d.weight")
            && matches!(weight.shape[..], [_, taps, 1] if taps > 1)
    };
    config.is_mlx_conversion = weights.iter().any(is_mlx);
    let family = find_family(config.fields());
    weights.rename(|name| rename_tensor(family, name));
    if config.is_mlx_conversion && family.is_some_and(|family| family.mlx_norms_plus_one) {
        let is_shifted = |name: &str| MLX_NORMS.iter().any(|end| name.ends_with(end));
        for weight in weights.iter_mut().filter(|w| is_shifted(&w.name)) {
            weight.offset = -1.0;
        }
    }
    config.set_tensor_layout(weights.iter().map(|weight| weight.name.as_str()));
    set_row_orders(config, weights)
}

/// The norms that mlx_lm's `qwen3_5.py` and `qwen3_next.py` add one to.
const MLX_NORMS: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

/// Adds `model.` to the names of a decoder that is stored without it, as its body alone is.
pub fn add_body_prefix(config: &LoadConfig, weights: &mut Weights) {
    let starts = |prefix: &str| weights.iter().any(|w| w.name.starts_with(prefix));
    if is_encoder(config) || !starts("layers.") || starts("model.") {
        return;
    }
    let is_outside = |name: &str| name.starts_with("lm_head.") || name.starts_with("mtp.");
    weights.rename(|name| (!is_outside(name)).then(|| format!("model.{name}")));
}

/// The order of a tensor's rows in the checkpoint, unless it is that of the graph.
///
/// # Errors
/// `Config` for a field that the order needs.
pub fn row_order(config: &LoadConfig, tensor: &str) -> Result<Option<RowOrder>> {
    let config = config.fields();
    let orders = find_family(config).map_or(&[][..], |f| f.row_orders);
    let own = orders.iter().find(|(end, _)| tensor.ends_with(end));
    let order = own.map(|(_, order)| order(config)).transpose()?;
    Ok(order.filter(|order| !matches!(order, RowOrder::Stored | RowOrder::Transposed)))
}

/// Sets the row order of stored weights to match the graph.
///
/// # Errors
/// `Config` for a field that a row order needs.
pub fn set_row_orders(config: &LoadConfig, weights: &mut Weights) -> Result<()> {
    let config = config.fields();
    for (end, order) in find_family(config).map_or(&[][..], |f| f.row_orders) {
        let order = order(config)?;
        for weight in weights.iter_mut().filter(|w| w.name.ends_with(end)) {
            if order == RowOrder::Transposed {
                // Quantized weights are already stored [out, in].
                if let (Encoding::Dense(_) | Encoding::F64, [k, n]) =
                    (weight.encoding, &weight.shape[..])
                {
                    (weight.shape, weight.stored_rows) = (vec![*n, *k], *n);
                    weight.row_order = order;
                }
            } else {
                weight.row_order = order;
            }
        }
    }
    Ok(())
}

/// Builds the error for an unknown name, with the nearest known names.
pub fn unknown_architecture(name: &str, known: impl Iterator<Item = &'static str>) -> Error {
    // Suffixes common to most classes are not compared.
    const ENDS: [&str; 6] = [
        "forcausallm",
        "forconditionalgeneration",
        "lmheadmodel",
        "textmodel",
        "model",
        "lm",
    ];
    let plain = |name: &str| {
        let mut plain = name.to_lowercase();
        plain.retain(|c| c.is_ascii_alphanumeric());
        let end = ENDS
            .iter()
            .find(|end| plain.len() > end.len() && plain.ends_with(*end));
        plain.truncate(plain.len() - end.map_or(0, |end| end.len()));
        plain
    };
    let own = plain(name);
    let mut near: Vec<(usize, &str)> = Vec::new();
    for other in known.filter(|other| *other != name) {
        let theirs = plain(other);
        let shared = own
            .bytes()
            .zip(theirs.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        // The longest common prefix wins; of equal ones, the shorter name.
        if shared > 2
            && 2 * shared > theirs.len().min(own.len())
            && !near.iter().any(|(_, seen)| *seen == other)
        {
            near.push((100 * shared - theirs.len().min(99), other));
        }
    }
    crate::util::sort::sort_by(&mut near, |a, b| b.0.cmp(&a.0));
    let nearest: Vec<&str> = near.into_iter().take(3).map(|(_, other)| other).collect();
    Error::UnknownArchitecture {
        name: name.into(),
        nearest: nearest.join(", "),
    }
}

/// Finds the GGUF description of a file's family.
///
/// # Errors
/// `UnknownArchitecture` with the nearest known names; `UnsupportedOption` for layers of different
/// sizes where the family has equal ones.
pub fn find_gguf(file: &gguf::Gguf) -> Result<&'static gguf::GgufSpec> {
    let all = || families().flat_map(|f| f.gguf);
    let name = file.architecture();
    let experts = file.has_experts();

    let found = all()
        .find(|a| a.name == name && a.has_experts == experts)
        .ok_or_else(|| {
            let how = match all().any(|a| a.name == name) {
                true if experts => " with experts",
                true => " without experts",
                false => "",
            };
            match unknown_architecture(name, all().map(|a| a.name)) {
                Error::UnknownArchitecture { nearest, .. } => Error::UnknownArchitecture {
                    name: format!("GGUF {name}{how}"),
                    nearest,
                },
                other => other,
            }
        })?;
    if !found.varying_layer_sizes {
        file.check_uniform_layers()?;
    }
    Ok(found)
}

/// Lists the supported mmproj formats (vision encoders of GGUF models), one per type.
pub fn mmproj_formats() -> impl Iterator<Item = &'static MmprojSpec> {
    let mut seen = Vec::new();
    families()
        .filter_map(|f| f.vision.as_ref()?.mmproj.as_ref())
        .filter(move |p| {
            let new = !seen.contains(&p.name);
            seen.push(p.name);
            new
        })
}

/// Finds the MLC description of a family by MLC's `model_type`.
///
/// # Errors
/// `UnknownArchitecture` with the nearest known names.
pub fn find_mlc(model_type: &str) -> Result<&'static mlc::MlcSpec> {
    let all = || families().flat_map(|f| f.mlc);
    all().find(|a| a.name == model_type).ok_or_else(|| {
        match unknown_architecture(model_type, all().map(|a| a.name)) {
            Error::UnknownArchitecture { name, nearest } => Error::UnknownArchitecture {
                name: format!("MLC {name}"),
                nearest,
            },
            other => other,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{FAMILIES, graph};
    use crate::ir::{Mask, Op, RopeScaling};

    /// Lists a graph's attention operations in layer order.
    fn attentions(config: &LoadConfig) -> Vec<crate::ir::Attention> {
        let graph = graph(config).unwrap_or_else(|e| panic!("{e}"));

        graph
            .nodes
            .iter()
            .filter_map(|n: &crate::ir::Node| {
                if let Op::Attention(a) = &n.op {
                    Some(a.clone())
                } else {
                    None
                }
            })
            .collect()
    }

    #[test]
    fn absent_fields_get_transformers_defaults() {
        for family in FAMILIES
            .iter()
            .flat_map(|f| f.iter())
            .filter(|f| !f.defaults.is_empty())
        {
            let silent: Value =
                serde_json::from_str(family.defaults).unwrap_or_else(|e| panic!("{family:?}: {e}"));
            assert!(silent.is_object(), "{family:?}");
        }
        // The configuration of gemma-3-4b-it.
        let small = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 6,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
            }
        });
        let layers = attentions(&LoadConfig::from(&small));
        assert_eq!(
            (layers[0].heads, layers[0].kv_heads, layers[0].head_dim),
            (8, 4, 256)
        );
        assert_eq!(
            (layers[0].mask, layers[5].mask),
            (Mask::Causal { window: 1024 }, Mask::Causal { window: 0 })
        );
        let config = LoadConfig::from(&small);
        assert_eq!(config["vocab_size"], 262_208);
        // Explicit values win, also null. Converted configurations get no defaults.
        let mistral = |field: Option<Value>, converted: bool| {
            let mut config = json!({
                "architectures": ["MistralForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
                "num_hidden_layers": 1, "num_attention_heads": 8,
            });
            field
                .into_iter()
                .for_each(|value| config["sliding_window"] = value);
            let container = if converted {
                Container::Gguf
            } else {
                Container::HuggingFace
            };
            attentions(&load_config(config, container))[0].mask
        };
        for (field, converted, window) in [
            (None, false, 4096),
            (Some(Value::Null), false, 0),
            (Some(json!(8)), false, 8),
            (None, true, 0),
        ] {
            assert_eq!(mistral(field, converted), Mask::Causal { window });
        }
    }

    #[test]
    fn unsupported_options_are_refused_by_name() {
        let with = |class: &str, fields: Value| {
            let mut config = json!({
                "architectures": [class], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
                "num_hidden_layers": 2, "num_attention_heads": 8, "num_experts_per_tok": 2, "n_embd": 64, "n_layer": 1,
                "n_head": 2,
            });
            fields
                .as_object()
                .into_iter()
                .flatten()
                .for_each(|(k, v)| config[k.as_str()] = v.clone());
            graph(&config.into()).expect_err(class).to_string()
        };
        for (class, fields, cause) in [
            (
                "Qwen3ForCausalLM",
                json!({"layer_types": ["full_attention", "chunked_attention"]}),
                "chunked_attention",
            ),
            (
                "Qwen3_5ForCausalLM",
                json!({"attn_output_gate": false}),
                "attn_output_gate = false",
            ),
            (
                "DeepseekV3ForCausalLM",
                json!({"scoring_func": "softmax"}),
                "scoring_func = softmax",
            ),
            (
                "GPT2LMHeadModel",
                json!({"add_cross_attention": true}),
                "add_cross_attention = true",
            ),
            (
                "GemmaForCausalLM",
                json!({"use_bidirectional_attention": true}),
                "use_bidirectional_attention = true",
            ),
            (
                "FalconH1ForCausalLM",
                json!({"attention_bias": true}),
                "attention_bias = true",
            ),
            (
                "FalconH1ForCausalLM",
                json!({"ssm_multipliers": [0, 1, 1, 1, 1]}),
                "'ssm_multipliers' is not",
            ),
            (
                "NemotronHForCausalLM",
                json!({"layers_block_type": ["mamba", "moe"], "mlp_bias": true}),
                "mlp_bias = true",
            ),
            (
                "Glm4ForCausalLM",
                json!({"head_dim": 20, "partial_rotary_factor": 0.25}),
                "5 columns of a head of 20",
            ),
        ] {
            let message = with(class, fields);
            assert!(message.contains(cause), "{message}");
        }
    }

    #[test]
    fn rope_attention_factor_is_folded_into_the_next_norm() {
        let config = json!({
            "architectures": ["HunYuanDenseV1ForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 4, "rms_norm_eps": 1e-3,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 2.0},
        });
        let config = config.into();
        let graph = graph(&config).expect("a graph");
        assert!(matches!(
            graph.ropes[0].scaling,
            RopeScaling::Yarn {
                attention_factor: 1.0,
                ..
            }
        ));
        let eps = attentions(&config)[0].head_norm.as_ref().map(|n| n.eps);
        assert!(
            eps.is_some_and(|eps| (eps - 2.5e-4).abs() < 1e-9),
            "{eps:?}"
        );
    }

    #[test]
    fn only_config_json_gets_transformers_defaults() {
        let json = json!({ "architectures": ["MistralForCausalLM"], "hidden_size": 64.0 });
        let of = |container| load_config(json.clone(), container);
        assert_eq!(of(Container::HuggingFace)["sliding_window"], 4096);
        for container in [Container::Gguf, Container::Mlc] {
            let config = of(container);
            assert_eq!(config["sliding_window"], Value::Null);
            assert_eq!(config["hidden_size"], 64);
            assert_eq!(config.class(), "MistralForCausalLM");
        }
    }
}
