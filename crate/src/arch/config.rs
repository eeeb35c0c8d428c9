//! The configuration of a load: a config.json that `standard` has normalized, and what a load learns
//! from the model's other files. Errors of fields name the field. Does not depend on any family.

use crate::ir::{Activation, RopeScaling, RopeSpec};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;
use std::ops::Index;

/// Where a configuration comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Container {
    /// config.json. transformers' defaults apply to absent fields.
    #[default]
    HuggingFace,
    /// Metadata of a GGUF file, and of an mmproj file next to it.
    Gguf,
    /// mlc-chat-config.json.
    Mlc,
}

/// A model's configuration. Families read it through [`Config`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadConfig {
    json: Value,
    container: Container,
    /// Whether the output head is the embedding table; `None` where config.json decides.
    pub tied_head: Option<bool>,
    /// Whether gate and up of an expert are one tensor; `None` without experts.
    pub fused_experts: Option<bool>,
    /// Whether the output gate of linear attention is a tensor of its own.
    pub separate_delta_gate: bool,
    /// Whether the channels of convolutions over time are stored last: MLX's converter has changed
    /// the checkpoint.
    pub is_mlx_conversion: bool,
    /// Whether gate and up of Granite's shared MLP are one tensor each.
    pub separate_shared_mlp: bool,
    /// Whether the key and value projections of latent attention are tensors of their own, as in MLX
    /// files.
    pub separate_latents: bool,
    /// Whether routers have a bias for the selection of experts.
    pub has_selection_bias: bool,
    /// Values of the family's scalar tensors, by name.
    pub scalars: SortedMap<String, f64>,
    /// Image processor settings of an mmproj file; otherwise they have a file of their own.
    pub image_processor: Option<Value>,
    /// The class that config.json names, where it is unknown and the model type decides.
    pub unknown_class: Option<String>,
    /// Why the mmproj file next to the model is not used.
    pub refused_projector: Option<String>,
}

impl LoadConfig {
    /// Takes normalized fields. [`load_config`](super::load_config) normalizes those of a file.
    pub(super) fn from_fields(json: Value, container: Container) -> Self {
        Self {
            json,
            container,
            ..Self::default()
        }
    }

    /// The normalized fields as JSON.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Where the configuration comes from.
    pub fn container(&self) -> Container {
        self.container
    }

    /// Returns a field of the top level.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.json.get(field)
    }

    /// A reader of the top level.
    pub fn fields(&self) -> Config<'_> {
        Config::new(&self.json, self)
    }

    /// Returns `architectures[0]`; empty if the file names no class.
    pub fn class(&self) -> &str {
        self["architectures"][0].as_str().unwrap_or_default()
    }

    /// Returns `model_type`; empty if the file names none.
    pub fn model_type(&self) -> &str {
        self["model_type"].as_str().unwrap_or_default()
    }

    /// Sets what the names of a checkpoint's weights imply.
    pub fn set_tensor_layout<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            if name.contains(".experts.") {
                let fused = name.ends_with(".experts.0.gate_up_proj.weight");
                self.fused_experts = Some(fused || self.fused_experts == Some(true));
            }
            self.separate_delta_gate |= name.ends_with(".in_proj_z.weight");
            self.separate_shared_mlp |= name.ends_with(".shared_mlp.gate_proj.weight");
            self.separate_latents |= name.ends_with(".unembed_out.weight");
            self.has_selection_bias |= name.ends_with(".e_score_correction_bias");
        }
    }
}

impl Index<&str> for LoadConfig {
    type Output = Value;

    /// Returns a field of the top level; null if it is absent.
    fn index(&self, field: &str) -> &Value {
        &self.json[field]
    }
}

/// Reads a configuration, or a nested object of it such as `vision_config`.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    fields: &'a Value,
    load: &'a LoadConfig,
}

impl<'a> Config<'a> {
    /// Returns a reader of an object's fields.
    pub fn new(fields: &'a Value, load: &'a LoadConfig) -> Self {
        Self { fields, load }
    }

    /// Returns a reader of other fields: a nested object, or a copy with changes.
    pub fn with_fields<'b>(self, fields: &'b Value) -> Config<'b>
    where
        'a: 'b,
    {
        Config {
            fields,
            load: self.load,
        }
    }

    /// Returns a reader of a nested object or list; `None` if it is absent or null.
    pub fn nested(self, field: &str) -> Option<Self> {
        self.get(field).map(|fields| self.with_fields(fields))
    }

    /// The fields as JSON.
    pub fn json(self) -> &'a Value {
        self.fields
    }

    /// The configuration of the load, with what its other files add.
    pub fn load(self) -> &'a LoadConfig {
        self.load
    }

    /// Returns whether the output head is the embedding table: as the checkpoint decides, else as
    /// `tie_word_embeddings` says, else `default`.
    pub fn is_tied(self, default: bool) -> bool {
        let own = || self.flag_or("tie_word_embeddings", default);
        self.load.tied_head.unwrap_or_else(own)
    }

    fn invalid<T>(field: &str, what: &str) -> Result<T> {
        Err(Error::Config {
            file: "config.json".into(),
            reason: format!("'{field}' {what}"),
        })
    }

    /// Returns the field; `None` if it is absent or null.
    pub fn get(self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|v| !v.is_null())
    }

    /// Returns a positive integer of at most 2^31.
    pub fn count(self, field: &str) -> Result<usize> {
        match self.get(field).and_then(Value::as_u64) {
            Some(0) => Self::invalid(field, "is 0. Set it to a positive integer."),
            // Far above any real model, and small enough that the multiplication of two cannot
            // overflow.
            Some(n) if n <= 1 << 31 => Ok(n as usize),
            _ => Self::invalid(
                field,
                "is missing or is not an integer from 1 to 2147483648",
            ),
        }
    }

    /// Returns a number of layers, at most 1024: the graph grows with it, so a damaged value must
    /// not pass.
    pub fn layers(self, field: &str) -> Result<usize> {
        let layers = self.count(field)?;
        if layers > 1024 {
            return Self::invalid(
                field,
                &format!("is {layers}, above the limit of 1024 layers"),
            );
        }
        Ok(layers)
    }

    /// Returns a positive integer, or `default`.
    pub fn count_or(self, field: &str, default: usize) -> Result<usize> {
        if self.get(field).is_some() {
            self.count(field)
        } else {
            Ok(default)
        }
    }

    /// Returns a finite number, or `default`.
    pub fn number_or(self, field: &str, default: f64) -> Result<f64> {
        match self.get(field) {
            None => Ok(default),
            Some(v) => v
                .as_f64()
                .filter(|n| n.is_finite())
                .map_or_else(|| Self::invalid(field, "is not a number"), Ok),
        }
    }

    /// Returns a boolean, or `default`.
    pub fn flag_or(self, field: &str, default: bool) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Returns a string; `None` for other types.
    pub fn string(self, field: &str) -> Option<&'a str> {
        self.get(field).and_then(Value::as_str)
    }

    /// Returns the activation that a field names, or `default`.
    pub fn activation(self, field: &str, default: &str) -> Result<Activation> {
        let name = self.string(field).unwrap_or(default);
        Activation::from_name(name).map_or_else(
            || {
                Err(Error::UnsupportedOption {
                    architecture: self.architecture(),
                    option: format!("{field} = {name}"),
                    hint: "Supported activations: silu, gelu and its tanh variants, relu, relu2, sigmoid, tanh.".into(),
                })
            },
            Ok,
        )
    }

    /// Returns `architectures[0]`, or else `model_type`.
    pub fn architecture(self) -> String {
        let first = self
            .get("architectures")
            .and_then(|a| a.get(0))
            .and_then(Value::as_str);
        first
            .or(self.string("model_type"))
            .unwrap_or("(none)")
            .to_string()
    }

    /// Returns `head_dim`, or hidden_size / heads. The limit `widest` comes from the kernels.
    pub fn head_dim(self, hidden: usize, heads: usize, widest: usize) -> Result<usize> {
        let dim = self.count_or("head_dim", hidden / heads)?;
        if dim == 0 || dim % 4 != 0 || dim > widest {
            return Self::invalid(
                "head_dim",
                &format!("is {dim}. The kernels support multiples of 4 up to {widest}."),
            );
        }
        Ok(dim)
    }

    /// Returns the numbers of query heads and key-value heads.
    pub fn heads(self) -> Result<(usize, usize)> {
        let heads = self.count("num_attention_heads")?;
        let kv = self.count_or("num_key_value_heads", heads)?;
        if heads % kv != 0 {
            return Self::invalid(
                "num_key_value_heads",
                &format!("is {kv}, which does not divide the {heads} attention heads"),
            );
        }
        Ok((heads, kv))
    }

    /// Returns the entry of `layer_types` for a layer.
    pub fn layer_type(self, layer: usize) -> Option<&'a str> {
        self.get("layer_types")
            .and_then(|t| t.get(layer))
            .and_then(Value::as_str)
    }

    /// Refuses entries of `layer_types` that no family supports.
    pub fn check_layer_types(self) -> Result<()> {
        const KINDS: [&str; 8] = [
            "full_attention",
            "sliding_attention",
            "linear_attention",
            "conv",
            "mamba",
            "attention",
            "mlp",
            "moe",
        ];
        let Some(listed) = self.get("layer_types").and_then(Value::as_array) else {
            return Ok(());
        };
        if let Some(other) = listed
            .iter()
            .find(|kind| !kind.as_str().is_some_and(|k| KINDS.contains(&k)))
        {
            return Err(Error::UnsupportedOption {
                architecture: self.architecture(),
                option: format!("layer type {other}"),
                hint: format!("Supported layer types: {}.", KINDS.join(", ")),
            });
        }
        Ok(())
    }

    /// Refuses fields whose value differs from the only supported one, given as pairs (field,
    /// value).
    pub fn require_values(self, known: &[(&str, &str)]) -> Result<()> {
        let present = |(field, _): &&(&str, &str)| self.get(field).is_some();
        for (field, value) in known.iter().filter(present) {
            let found = self
                .get(field)
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_string));
            if found.as_deref() != Some(value) {
                return Err(Error::UnsupportedOption {
                    architecture: self.architecture(),
                    option: format!("{field} = {}", found.unwrap_or_default()),
                    hint: format!("The only supported value is {value}."),
                });
            }
        }
        Ok(())
    }

    /// Returns the RoPE shared by all layers. Where layer types have separate parameters, returns
    /// that of full attention.
    pub fn rope(self, head_dim: usize, default_base: f64) -> Result<RopeSpec> {
        let all = self.nested("rope_parameters");
        let kinds = all.and_then(|all| {
            let own = all.fields.as_object()?.values().find(|own| own.is_object());
            Some(self.with_fields(own?))
        });
        let full = all
            .and_then(|all| all.nested("full_attention"))
            .filter(|own| own.fields.is_object());
        let base = self.number_or("rope_theta", default_base)?;
        self.rope_from(full.or(kinds).or(all), head_dim, base)
    }

    /// Returns the RoPE of one layer type.
    pub fn rope_for_type(self, kind: &str, head_dim: usize, base: f64) -> Result<RopeSpec> {
        let own = self
            .nested("rope_parameters")
            .and_then(|all| all.nested(kind))
            .filter(|own| own.fields.is_object());
        let own = own.unwrap_or(self.with_fields(&Value::Null));
        self.rope_from(Some(own), head_dim, base)
    }

    /// Returns the RoPE of a layer by its type; `shared` where types have no separate parameters,
    /// `None` where the file has null.
    pub fn rope_for_layer(
        self,
        layer: usize,
        shared: &RopeSpec,
        head_dim: usize,
    ) -> Result<Option<RopeSpec>> {
        let kind = self.layer_type(layer).unwrap_or_default();
        match self.get("rope_parameters").and_then(|all| all.get(kind)) {
            Some(Value::Null) => Ok(None),
            Some(own) if own.is_object() => self
                .rope_from(Some(self.with_fields(own)), head_dim, shared.base)
                .map(Some),
            _ => Ok(Some(shared.clone())),
        }
    }

    /// Builds a RoPE from its parameters.
    fn rope_from(
        self,
        parameters: Option<Config<'_>>,
        head_dim: usize,
        base: f64,
    ) -> Result<RopeSpec> {
        let own = |field: &str, default: f64| {
            parameters.map_or(Ok(default), |p| p.number_or(field, default))
        };
        let base = own("rope_theta", base)?;
        // The normalized parameters already include it.
        let outer = if parameters.is_some() {
            1.0
        } else {
            self.number_or("partial_rotary_factor", 1.0)?
        };
        let partial = own("partial_rotary_factor", outer)?;
        if !(0.0..=1.0).contains(&partial) {
            return Self::invalid(
                "partial_rotary_factor",
                &format!("is {partial}. It must be from 0 to 1."),
            );
        }
        // Proportional scaling itself leaves columns unrotated.
        let whole = parameters.is_some_and(|p| p.rope_type() == Some("proportional"));
        let dim = if whole {
            head_dim
        } else {
            (head_dim as f64 * partial) as usize
        };
        if !dim.is_multiple_of(2) {
            let reason = format!(
                "is {partial}, which rotates {dim} columns of a head of {head_dim}. The number must be even."
            );
            return Self::invalid("partial_rotary_factor", &reason);
        }
        let scaling = parameters.map_or(Ok(RopeScaling::Default), |s| self.scaling(s, dim))?;
        if base <= 1.0 {
            return Self::invalid(
                "rope_theta",
                &format!("is {base}. It must be greater than 1."),
            );
        }
        Ok(RopeSpec {
            dim,
            base,
            scaling,
            interleaved: false,
        })
    }

    fn rope_type(self) -> Option<&'a str> {
        self.string("rope_type").or(self.string("type"))
    }

    fn scaling(self, s: Config<'_>, dim: usize) -> Result<RopeScaling> {
        let max_position = self.count_or("max_position_embeddings", 2048)?;
        let original = s.count_or("original_max_position_embeddings", max_position)?;
        let factor = s.number_or("factor", max_position as f64 / original as f64)?;
        Ok(match s.rope_type().unwrap_or("default") {
            // M-RoPE sections are read in `vision::sections`.
            "default" | "mrope" => RopeScaling::Default,
            "proportional" => {
                if s.number_or("factor", 1.0)? != 1.0 {
                    return Err(self.unsupported_rope(&format!(
                        "rope scaling 'proportional' with factor {factor}"
                    )));
                }
                let share = s.number_or("partial_rotary_factor", 1.0)?;
                RopeScaling::Proportional {
                    pairs: (share.clamp(0.0, 1.0) * dim as f64 / 2.0) as usize,
                }
            }
            "linear" => RopeScaling::Linear { factor },
            "dynamic" => RopeScaling::Dynamic {
                factor,
                max_position,
            },
            "llama3" => RopeScaling::Llama3 {
                factor,
                low_freq_factor: s.number_or("low_freq_factor", 1.0)?,
                high_freq_factor: s.number_or("high_freq_factor", 4.0)?,
                original_max_position: original,
            },
            "yarn" => RopeScaling::Yarn {
                factor,
                beta_fast: s.number_or("beta_fast", 32.0)?,
                beta_slow: s.number_or("beta_slow", 1.0)?,
                original_max_position: original,
                truncate: s.flag_or("truncate", true),
                attention_factor: yarn_attention_factor(s, factor)?,
            },
            "longrope" => {
                let by_length = if factor <= 1.0 {
                    1.0
                } else {
                    (1.0 + factor.ln() / (original as f64).ln()).sqrt()
                };
                RopeScaling::LongRope {
                    short: s.factors("short_factor", dim / 2)?,
                    long: s.factors("long_factor", dim / 2)?,
                    original_max_position: original,
                    attention_factor: s.number_or("attention_factor", by_length)?,
                }
            }
            other => return Err(self.unsupported_rope(&format!("rope scaling '{other}'"))),
        })
    }

    fn unsupported_rope(self, option: &str) -> Error {
        Error::UnsupportedOption {
            architecture: self.architecture(),
            option: option.into(),
            hint: "Supported: default, mrope, linear, dynamic, llama3, yarn, longrope, proportional (factor 1).".into(),
        }
    }

    fn factors(self, field: &str, count: usize) -> Result<Vec<f64>> {
        let list = self.get(field).and_then(Value::as_array);
        let values: Option<Vec<f64>> = list.and_then(|l| l.iter().map(Value::as_f64).collect());
        values.filter(|v| v.len() == count).map_or_else(
            || Self::invalid(field, &format!("is not a list of {count} numbers")),
            Ok,
        )
    }
}

fn yarn_attention_factor(s: Config<'_>, factor: f64) -> Result<f64> {
    let scale = |by: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * by * factor.ln() + 1.0
        }
    };
    let mscale = s.number_or("mscale", 0.0)?;
    let all = s.number_or("mscale_all_dim", 0.0)?;

    let default = if mscale != 0.0 && all != 0.0 {
        scale(mscale) / scale(all)
    } else {
        scale(1.0)
    };
    s.number_or("attention_factor", default)
}

#[cfg(test)]
mod tests {
    use super::LoadConfig;
    use crate::arch;

    /// Builds a decoder with one field changed; returns its error message.
    fn decoder(field: &str, value: serde_json::Value) -> Result<(), String> {
        let mut config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 2,
        });
        config[field] = value;
        arch::graph(&config.into())
            .map(|_| ())
            .map_err(|e| e.to_string())
    }

    /// Head dimensions with kernels in variants.toml are accepted; others are refused with the
    /// field's name.
    #[test]
    fn head_dim_is_limited_by_the_kernels() {
        for fits in [4, 80, 256, 512] {
            assert_eq!(decoder("head_dim", fits.into()), Ok(()));
        }
        for refused in [6, 516, 1024] {
            let message = decoder("head_dim", refused.into()).unwrap_err();
            assert!(
                message.contains(&format!("'head_dim' is {refused}")),
                "{message}"
            );
            assert!(message.contains("up to 512"), "{message}");
        }
    }

    #[test]
    fn partial_rotary_factor_is_a_fraction() {
        assert_eq!(decoder("partial_rotary_factor", 0.5.into()), Ok(()));
        for refused in [-0.5, 1.5] {
            let message = decoder("partial_rotary_factor", refused.into()).unwrap_err();
            assert!(message.contains("'partial_rotary_factor' is"), "{message}");
        }
    }

    #[test]
    fn weight_names_tell_how_experts_and_gates_are_stored() {
        let of = |names: &[&str]| {
            let mut config = LoadConfig::default();
            config.set_tensor_layout(names.iter().copied());
            (config.fused_experts, config.separate_delta_gate)
        };
        assert_eq!(of(&["model.layers.0.mlp.up_proj.weight"]), (None, false));
        let separate = "model.layers.0.mlp.experts.0.gate_proj.weight";
        let fused = "model.layers.0.mlp.experts.0.gate_up_proj.weight";
        assert_eq!(of(&[separate]), (Some(false), false));
        assert_eq!(of(&[separate, fused]), (Some(true), false));
        assert_eq!(
            of(&["model.layers.0.linear_attn.in_proj_z.weight"]),
            (None, true)
        );
    }
}
