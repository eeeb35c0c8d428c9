//! What a family is by name: its classes, its names in every container, and what must be done to stored weights before the
//! graph's names and rows fit them. Knows no structure and no family: those are data of their own files.

use super::config::Config;
use super::encoder::{Body, Score};
use super::families;
use super::standard::{RopeKinds, is_standard, standard};
use super::vision::{self, Sees, Tower};
use crate::format::gguf::clip::{Projector, UNSEEN};
use crate::format::{Encoding, RowOrder, Weights, gguf, mlc};
use crate::ir::{Builder, Graph};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The order of a weight's rows, by the configuration.
pub type Order = fn(Config<'_>) -> Result<RowOrder>;

/// How a family makes vectors of texts that lie among those of pictures: of the last token, scaled to length 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Texts are lowercased and filled up to the longest.
    pub padded: bool,
}

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// Names in `architectures` that mean a decoder of this family.
    pub classes: &'static [&'static str],
    /// Names in `model_type`.
    pub model_types: &'static [&'static str],
    /// What transformers takes where a config.json is silent, as JSON, and the readers of fields would take another value:
    /// repositories of models that see leave such fields out of `text_config`.
    pub silent: &'static str,
    /// The rotations of its kinds of layers, where those with a window have one of their own.
    pub rope_kinds: Option<RopeKinds>,
    /// Makes the graph of a decoder.
    pub decoder: Option<fn(Config<'_>) -> Result<Graph>>,
    /// Makes the body of an encoder.
    pub encoder: Option<fn(Config<'_>, &mut Builder) -> Result<Body>>,
    /// Makes the classification head of an encoder.
    pub score: Option<Score>,
    /// Beginnings of tensor names that published files have, and those that the graph has; the first that fits counts.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// Weights by the end of their name whose rows lie in another order than the graph's.
    pub rows: &'static [(&'static str, Order)],
    /// How it sees.
    pub sees: Option<Sees>,
    /// Its vectors of texts and of pictures lie in one space.
    pub shared: Option<Shared>,
    /// Tensors of a single number that the graph's shape depends on: the loader puts them into the configuration, as `numbers`.
    pub numbers: fn(Config<'_>) -> Vec<String>,
    /// How GGUF files hold it.
    pub gguf: &'static [gguf::Architecture],
    /// How MLC holds it.
    pub mlc: &'static [mlc::Architecture],
}

impl Family {
    /// A family of nothing, to be filled.
    pub const NONE: Self = Self {
        classes: &[],
        model_types: &[],
        silent: "",
        rope_kinds: None,
        decoder: None,
        encoder: None,
        score: None,
        prefixes: &[],
        rows: &[],
        sees: None,
        shared: None,
        numbers: |_| Vec::new(),
        gguf: &[],
        mlc: &[],
    };
}

/// How a model's vectors of texts lie among those of pictures; none where they do not.
pub fn shared(config: &Value) -> Option<Shared> {
    either(Config(config))?.shared
}

/// The text part of models that see or hear, under the names of the text model alone.
const TEXT_PREFIXES: [(&str, &str); 4] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.text_model.", "model."),
];

/// The family of a configuration, by class, or by `model_type` where the file names no class.
pub(super) fn of_config(config: Config<'_>, what: impl Fn(&Family) -> bool) -> Option<&'static Family> {
    let name = config.architecture();
    let by_class = families().find(|f| f.classes.contains(&name.as_str()) && what(f));
    let unnamed = config.get("architectures").is_none();
    by_class.or_else(|| families().find(|f| unnamed && f.model_types.contains(&name.as_str()) && what(f)))
}

/// How the model of a configuration sees; none where it does not.
pub(super) fn sees(config: &Value) -> Option<&'static Sees> {
    config.get("vision_config").filter(|v| v.is_object())?;
    either(Config(config))?.sees.as_ref()
}

/// The tower of a model.
///
/// # Errors
/// `UnsupportedOption` for models without one, or with one that is not built; `Config` for damaged fields.
pub fn tower(config: &Value) -> Result<Tower> {
    let config = text_config(config);
    let (config, all) = (config.as_ref(), Config(&config));
    let refused = || Error::UnsupportedOption {
        architecture: all.architecture(),
        option: "pictures".into(),
        hint: format!(
            "Pictures go to {}.",
            families()
                .filter(|f| f.sees.is_some())
                .flat_map(|f| f.classes.last().copied())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    if let Some(reason) = config.get(UNSEEN).and_then(Value::as_str) {
        return Err(Error::UnsupportedOption {
            architecture: all.architecture(),
            option: reason.into(),
            hint: format!(
                "Of such files the engine reads {}.",
                projectors().map(|p| p.name).collect::<Vec<_>>().join(", ")
            ),
        });
    }
    let sees = sees(config).ok_or_else(refused)?;
    let vision = config.get("vision_config").map(Config).ok_or_else(refused)?;
    (sees.tower)(all, vision)
}

/// What a picture's tokens see in the language model.
pub fn sight(config: &Value) -> vision::Sight {
    sees(config).map_or(vision::Sight::Causal, |sees| (sees.sight)(Config(config)))
}

/// The directions of a rotation's frequencies, where tokens stand in three.
pub fn sections(config: &Value) -> Option<crate::vision::Sections> {
    vision::sections(sees(config)?, Config(&text_config(config)))
}

/// The field that tells that a configuration was made of another container's: what it leaves out is not there.
pub const CONVERTED: &str = "converted";

/// The configuration in the one form that families read ([`standard`]): the text model's fields at the top, the rotation
/// in one place, and what transformers takes where the file is silent.
pub fn text_config(config: &Value) -> Cow<'_, Value> {
    if is_standard(config) {
        return Cow::Borrowed(config);
    }
    let family = either(Config(config));
    let silent: Map<String, Value> = match (config.get(CONVERTED), family) {
        (None, Some(family)) => serde_json::from_str(family.silent).unwrap_or_default(),
        _ => Map::new(),
    };
    Cow::Owned(standard(config, silent, family.and_then(|family| family.rope_kinds)))
}

/// The most positions that a model was made for; `usize::MAX` where its file names none.
pub fn most_positions(config: &Value) -> usize {
    let known = ["max_position_embeddings", "n_positions", "max_target_positions"]
        .iter()
        .find_map(|name| config.get(name)?.as_u64());
    known.map_or(usize::MAX, |n| n as usize)
}

/// Tensors of a single number that a model's graph depends on.
pub fn numbers(config: &Value) -> Vec<String> {
    either(Config(config)).map_or_else(Vec::new, |family| (family.numbers)(Config(config)))
}

/// The family by class or by kind.
fn either(config: Config<'_>) -> Option<&'static Family> {
    let kind = config.text("model_type").unwrap_or_default();
    of_config(config, |_| true).or_else(|| families().find(|f| f.model_types.contains(&kind)))
}

fn renamed(family: Option<&Family>, name: &str) -> Option<String> {
    let mut all = family.map_or(&[][..], |f| f.prefixes).iter().chain(&TEXT_PREFIXES);
    all.find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
}

/// The name that graphs have for a tensor of a checkpoint.
pub fn canonical(config: &Value, name: &str) -> String {
    renamed(either(Config(config)), name).unwrap_or_else(|| name.to_string())
}

/// Gives stored weights the names and the order of rows that the graphs have.
///
/// # Errors
/// `Config` by a field that an order of rows needs.
pub fn sanitize(config: &Value, weights: &mut Weights) -> Result<()> {
    let family = either(Config(config));
    weights.rename(|name| renamed(family, name));
    order_rows(config, weights)
}

/// Gives stored weights the order of rows that the graphs have.
///
/// # Errors
/// `Config` by a field that an order of rows needs.
pub fn order_rows(config: &Value, weights: &mut Weights) -> Result<()> {
    let config = Config(config);
    for (end, order) in either(config).map_or(&[][..], |f| f.rows) {
        let order = order(config)?;
        for weight in weights.iter_mut().filter(|w| w.name.ends_with(end)) {
            if order == RowOrder::Transposed {
                // What is quantized is stored as products want it.
                if let (Encoding::Dense(_), [k, n]) = (weight.encoding, &weight.shape[..]) {
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

/// The refusal of a name, with the nearest of those that are known.
pub fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> Error {
    // What every class ends in says nothing.
    const ENDS: [&str; 6] = ["forcausallm", "forconditionalgeneration", "lmheadmodel", "textmodel", "model", "lm"];
    let plain = |name: &str| {
        let mut plain = name.to_lowercase();
        plain.retain(|c| c.is_ascii_alphanumeric());
        let end = ENDS.iter().find(|end| plain.len() > end.len() && plain.ends_with(*end));
        plain.truncate(plain.len() - end.map_or(0, |end| end.len()));
        plain
    };
    let own = plain(name);
    let mut near: Vec<(usize, &str)> = Vec::new();
    for other in known.filter(|other| *other != name) {
        let theirs = plain(other);
        let shared = own.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
        // Most of either name from the start, and of those that share it the shorter one.
        if shared > 2 && 2 * shared > theirs.len().min(own.len()) && !near.iter().any(|(_, seen)| *seen == other) {
            near.push((100 * shared - theirs.len().min(99), other));
        }
    }
    crate::util::lists::sort_by(&mut near, |a, b| b.0.cmp(&a.0));
    let nearest: Vec<&str> = near.into_iter().take(3).map(|(_, other)| other).collect();
    Error::UnknownArchitecture { name: name.into(), nearest: nearest.join(", ") }
}

/// How the family of a GGUF file is held there.
///
/// # Errors
/// `UnknownArchitecture` with the nearest that are known; `UnsupportedOption` for layers of different sizes where the
/// family's are alike.
pub fn of_gguf(file: &gguf::Gguf) -> Result<&'static gguf::Architecture> {
    let all = || families().flat_map(|f| f.gguf);
    let (name, experts) = (file.architecture(), file.has_experts());
    let found = all().find(|a| a.name == name && a.experts == experts).ok_or_else(|| {
        let how = match all().any(|a| a.name == name) {
            true if experts => " with experts",
            true => " without experts",
            false => "",
        };
        match unknown(name, all().map(|a| a.name)) {
            Error::UnknownArchitecture { nearest, .. } => {
                Error::UnknownArchitecture { name: format!("GGUF {name}{how}"), nearest }
            }
            other => other,
        }
    })?;
    if !found.uneven {
        file.uniform()?;
    }
    Ok(found)
}

/// How files beside GGUF models hold towers: one of each kind.
pub fn projectors() -> impl Iterator<Item = &'static Projector> {
    let mut seen = Vec::new();
    families().filter_map(|f| f.sees.as_ref()?.projector.as_ref()).filter(move |p| {
        let new = !seen.contains(&p.name);
        seen.push(p.name);
        new
    })
}

/// How the family of an MLC repository is held there, by MLC's `model_type`.
///
/// # Errors
/// `UnknownArchitecture` with the nearest that are known.
pub fn of_mlc(model_type: &str) -> Result<&'static mlc::Architecture> {
    let all = || families().flat_map(|f| f.mlc);
    all().find(|a| a.name == model_type).ok_or_else(|| match unknown(model_type, all().map(|a| a.name)) {
        Error::UnknownArchitecture { name, nearest } => {
            Error::UnknownArchitecture { name: format!("MLC {name}"), nearest }
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{FAMILIES, graph};
    use crate::ir::{Mask, Op, RopeScaling};
    use serde_json::json;

    /// What a graph's attention is, layer by layer.
    fn attentions(config: &Value) -> Vec<crate::ir::Attention> {
        let graph = graph(config).unwrap_or_else(|e| panic!("{e}"));
        let of = |n: &crate::ir::Node| if let Op::Attention(a) = &n.op { Some(a.clone()) } else { None };
        graph.nodes.iter().filter_map(of).collect()
    }

    #[test]
    fn what_a_file_leaves_out_is_what_transformers_takes() {
        for family in FAMILIES.iter().flat_map(|f| f.iter()).filter(|f| !f.silent.is_empty()) {
            let silent: Value = serde_json::from_str(family.silent).unwrap_or_else(|e| panic!("{family:?}: {e}"));
            assert!(silent.is_object(), "{family:?}");
        }
        // As gemma-3-4b-it has it.
        let small = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 6,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
            }
        });
        let layers = attentions(&small);
        assert_eq!((layers[0].heads, layers[0].kv_heads, layers[0].head_dim), (8, 4, 256));
        assert_eq!((layers[0].mask, layers[5].mask), (Mask::Causal { window: 1024 }, Mask::Causal { window: 0 }));
        let config = text_config(&small);
        assert_eq!(config["vocab_size"], 262_208);
        // What a file says counts, also where it says null, and other containers leave out what is not there.
        let mistral = |field: Option<Value>, converted: bool| {
            let mut config = json!({
                "architectures": ["MistralForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
                "num_hidden_layers": 1, "num_attention_heads": 8,
            });
            field.into_iter().for_each(|value| config["sliding_window"] = value);
            if converted {
                config[CONVERTED] = json!("gguf");
            }
            attentions(&config)[0].mask
        };
        for (field, converted, window) in
            [(None, false, 4096), (Some(Value::Null), false, 0), (Some(json!(8)), false, 8), (None, true, 0)]
        {
            assert_eq!(mistral(field, converted), Mask::Causal { window });
        }
    }

    #[test]
    fn what_no_family_has_is_refused_by_name() {
        let with = |class: &str, fields: Value| {
            let mut config = json!({
                "architectures": [class], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
                "num_hidden_layers": 2, "num_attention_heads": 8, "num_experts_per_tok": 2, "n_embd": 64, "n_layer": 1,
                "n_head": 2,
            });
            fields.as_object().into_iter().flatten().for_each(|(k, v)| config[k.as_str()] = v.clone());
            graph(&config).expect_err(class).to_string()
        };
        for (class, fields, told) in [
            ("Qwen3ForCausalLM", json!({"layer_types": ["full_attention", "chunked_attention"]}), "chunked_attention"),
            ("Qwen3_5ForCausalLM", json!({"attn_output_gate": false}), "attn_output_gate = false"),
            ("DeepseekV3ForCausalLM", json!({"scoring_func": "softmax"}), "scoring_func = softmax"),
            ("GPT2LMHeadModel", json!({"add_cross_attention": true}), "add_cross_attention = true"),
            ("GemmaForCausalLM", json!({"use_bidirectional_attention": true}), "use_bidirectional_attention = true"),
            ("FalconH1ForCausalLM", json!({"attention_bias": true}), "attention_bias = true"),
            ("FalconH1ForCausalLM", json!({"ssm_multipliers": [0, 1, 1, 1, 1]}), "'ssm_multipliers' is not"),
            (
                "NemotronHForCausalLM",
                json!({"layers_block_type": ["mamba", "moe"], "mlp_bias": true}),
                "mlp_bias = true",
            ),
            ("Glm4ForCausalLM", json!({"head_dim": 20, "partial_rotary_factor": 0.25}), "5 columns of a head of 20"),
        ] {
            let message = with(class, fields);
            assert!(message.contains(told), "{message}");
        }
    }

    #[test]
    fn a_factor_of_the_rotation_goes_into_the_norm_behind_it() {
        let config = json!({
            "architectures": ["HunYuanDenseV1ForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 4, "rms_norm_eps": 1e-3,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 2.0},
        });
        let graph = graph(&config).expect("a graph");
        assert!(matches!(graph.ropes[0].scaling, RopeScaling::Yarn { attention_factor: 1.0, .. }));
        let eps = attentions(&config)[0].head_norm.as_ref().map(|n| n.eps);
        assert!(eps.is_some_and(|eps| (eps - 2.5e-4).abs() < 1e-9), "{eps:?}");
    }
}
