//! Detects the weights of a safetensors checkpoint and their encodings from tensor names, types and
//! shapes and the quantization block of config.json. Repository names are never used. Does not
//! depend on an architecture.

mod quantized;

use super::encoding::{Encoding, PartRole, StoredPart, WeightSource};
use super::layout::Float;
use super::weights::Weights;
use super::{Checkpoint, Dtype, TensorInfo};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;

/// The small tensors whose bytes [`detect`] needs: bitsandbytes stores the description of its 4-bit
/// weights as JSON in a tensor.
pub fn metadata_tensors(checkpoint: &Checkpoint) -> Vec<&TensorInfo> {
    checkpoint
        .tensors
        .values()
        .filter(|t| t.name.contains(QUANT_STATE) && t.bytes() < 1 << 16)
        .collect()
}

/// Whether the checkpoint has integer codes whose packing config.json does not describe.
pub fn needs_quantize_config(config: &Value, checkpoint: &Checkpoint) -> bool {
    let has_codes = |name: &String| name.ends_with(".qweight");
    quantization_blocks(config).all(|block| !block.is_object())
        && checkpoint.tensors.keys().any(has_codes)
}

/// The quantization block of config.json at the locations that it can have.
fn quantization_blocks(config: &Value) -> impl Iterator<Item = &Value> {
    let text = &config["text_config"];
    [
        &config["quantization"],
        &config["quantization_config"],
        &text["quantization_config"],
        &text["quantization"],
    ]
    .into_iter()
}

const QUANT_STATE: &str = ".quant_state.bitsandbytes__";

/// The ends of every `quant_method` whose weights can be read.
const SUPPORTED_METHODS: [&str; 9] = [
    "gptq",
    "awq",
    "auto-round",
    "compressed-tensors",
    "bitsandbytes",
    "bitnet",
    "fp8",
    "mxfp4",
    "modelopt",
];

/// Suffixes of tensors that belong to the weight of another tensor.
const SECONDARY_SUFFIXES: [&str; 18] = [
    ".qzeros",
    ".g_idx",
    ".weight_scale",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_shape",
    ".weight_global_scale",
    ".input_scale",
    ".input_global_scale",
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
    ".SCB",
    ".weight_format",
    "_scales",
];

/// Suffixes of weight norm tensors: row directions and row lengths.
const WEIGHT_NORM_SUFFIXES: [[&str; 2]; 2] = [
    [
        ".parametrizations.weight.original1",
        ".parametrizations.weight.original0",
    ],
    [".weight_v", ".weight_g"],
];

/// Detects the weights of a checkpoint. `side` has the bytes of [`metadata_tensors`] by name.
pub fn detect(
    config: &Value,
    checkpoint: &Checkpoint,
    side: &SortedMap<String, Vec<u8>>,
) -> Weights {
    let finder = WeightFinder {
        checkpoint,
        config,
        metadata_bytes: side,
    };
    let mut out = Weights::default();
    for (name, info) in &checkpoint.tensors {
        if let Some((canonical, source)) = finder.weight(name, info) {
            let source = source.and_then(|source| finder.check_inputs(source, info));
            out.insert(&canonical, source);
        }
    }
    split_experts(&mut out);
    split_heads(&mut out);
    let method = finder.method();
    if !method.is_empty() && !SUPPORTED_METHODS.iter().any(|m| method.ends_with(m)) {
        out.unknown_method = Some(method.to_owned());
    }
    if method == "bitnet" && finder.quantization("quantization_mode") == "online" {
        ternarize(&mut out);
    }
    out
}

/// Marks BitNet's master weights as ternary; embeddings and head stay unquantized.
fn ternarize(weights: &mut Weights) {
    let plain = |name: &str| name.contains("embed") || name.ends_with("lm_head.weight");
    for weight in weights
        .iter_mut()
        .filter(|w| w.shape.len() == 2 && !plain(&w.name))
    {
        if let Encoding::Dense(float) = weight.encoding {
            weight.encoding = Encoding::Ternarized(float);
        }
    }
}

struct WeightFinder<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Value,
    metadata_bytes: &'a SortedMap<String, Vec<u8>>,
}

impl<'a> WeightFinder<'a> {
    fn tensor(&self, base: &str, suffix: &str) -> Option<&'a TensorInfo> {
        self.checkpoint.tensors.get(&format!("{base}{suffix}"))
    }

    /// A field of the quantization block.
    fn quantization(&self, field: &str) -> &'a Value {
        quantization_blocks(self.config)
            .map(|b| &b[field])
            .find(|v| !v.is_null())
            .unwrap_or(&Value::Null)
    }

    fn method(&self) -> &'a str {
        self.quantization("quant_method")
            .as_str()
            .unwrap_or_default()
    }

    fn number(&self, field: &str) -> Option<usize> {
        self.quantization(field)
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
    }

    /// Refuses a weight whose input is changed while the model runs, which no kernel does: ModelOpt's
    /// scaling (AWQ, SmoothQuant), the transforms of compressed-tensors (QuIP, SpinQuant's R3 and
    /// R4) and the rotations of GPTQModel, AutoRound and Quark. The transforms of compressed-tensors
    /// at `weight_input` or `weight_output` have been applied.
    fn check_inputs(&self, source: WeightSource, info: &TensorInfo) -> Result<WeightSource> {
        let name = &source.name;
        let base = name.strip_suffix(".weight").unwrap_or(name);
        if self.tensor(base, ".pre_quant_scale").is_some() {
            let hint = "Its inputs are scaled by 'pre_quant_scale'. Use a checkpoint without it (AWQ, SmoothQuant).";
            return Err(self.unsupported(name, info, hint));
        }
        if let Some(field) = self.rotation() {
            let hint = format!(
                "The '{field}' of its quantization transforms inputs while the model runs. \
                 Use a checkpoint without such transforms (QuIP, SpinQuant)."
            );
            return Err(self.unsupported(name, info, &hint));
        }
        let groups = self.quantization("transform_config")["config_groups"].as_object();
        let transforms = groups
            .into_iter()
            .flat_map(|groups| groups.values())
            .filter_map(|group| group["apply"].as_array())
            .flatten();
        let mut locations = transforms.filter_map(|transform| transform["location"].as_str());
        match locations.find(|location| !location.starts_with("weight_")) {
            Some(location) => {
                let hint = format!(
                    "The 'transform_config' of its quantization transforms '{location}' while the model runs. \
                     Use a checkpoint without such transforms (QuIP, SpinQuant)."
                );
                Err(self.unsupported(name, info, &hint))
            }
            None => Ok(source),
        }
    }

    /// The field of the quantization block that asks for Hadamard transforms of inputs.
    fn rotation(&self) -> Option<&'static str> {
        let is_set = |field: &&str| match self.quantization(field) {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        };
        let field = ["rotation", "rotation_config", "spinquant_config"];
        field.into_iter().find(is_set).or_else(|| {
            // Quark's rotations are merged into the weights if it states that none is online.
            let rotates = |algorithm: &Value| {
                let name = algorithm["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_lowercase();
                let is_merged = algorithm["r3"] == false
                    && algorithm["r4"] == false
                    && algorithm["online_r1_rotation"] != true;
                (name.contains("rot") || name.contains("spinquant")) && !is_merged
            };
            let config = self.quantization("algo_config");
            let found = match config.as_array() {
                Some(list) => list.iter().any(rotates),
                None => rotates(config),
            };
            found.then_some("algo_config")
        })
    }

    /// The group size for `groups` groups of `k` inputs, of which the last may be short: the
    /// configured size, a common size, or equal parts.
    fn group_size(&self, k: usize, groups: usize) -> usize {
        let fits = |g: &usize| *g > 0 && k.div_ceil(*g) == groups;
        let given = self.number("group_size").filter(fits);
        given
            .or_else(|| [128, 64, 32, 16, 256, 512, 1024].into_iter().find(fits))
            .unwrap_or(k / groups.max(1))
    }

    /// The weight whose main tensor this is, with its canonical name; `None` for secondary tensors.
    fn weight(&self, name: &str, info: &TensorInfo) -> Option<(String, Result<WeightSource>)> {
        if let Some(base) = name.strip_suffix(".qweight") {
            let name = format!("{base}.weight");
            return Some((name.clone(), self.gptq_or_awq(base, &name, info)));
        }
        if let Some(base) = name.strip_suffix(".weight_packed") {
            let name = format!("{base}.weight");
            return Some((name.clone(), self.compressed_tensors(base, &name, info)));
        }
        if let Some(base) = name
            .strip_suffix("_blocks")
            .filter(|b| self.tensor(b, "_scales").is_some())
        {
            return Some((base.to_string(), self.mxfp4_blocks(base, info)));
        }
        for [direction, length] in WEIGHT_NORM_SUFFIXES {
            if name.ends_with(length) {
                return None;
            }
            let Some(base) = name.strip_suffix(direction) else {
                continue;
            };
            let Some(lengths) = self.tensor(base, length) else {
                continue;
            };
            let name = format!("{base}.weight");
            return Some((name.clone(), self.weight_norm(&name, info, lengths)));
        }
        if self.is_secondary(name) {
            return None;
        }
        if let Some(source) = self.bnb4(name, info) {
            return Some((name.to_string(), source));
        }
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let source = match info.dtype {
            Dtype::U32 if self.tensor(base, ".scales").is_some() => self.mlx(base, name, info),
            Dtype::F64 => Ok(dense_weight(name, info, Encoding::F64)),
            Dtype::F8E4M3 => self.fp8(base, name, info),
            Dtype::I8 => self.int8(base, name, info),
            Dtype::U8 => match self.modelopt_nvfp4(base, name, info) {
                Some(source) => source,
                None => self.bitnet(base, name, info),
            },
            _ => match float_type(info.dtype) {
                Some(float) => Ok(dense_weight(name, info, Encoding::Dense(float))),
                None => Err(self.unsupported(
                    name,
                    info,
                    "Use a checkpoint in F32, F16, BF16 or a supported quantization.",
                )),
            },
        };
        Some((name.to_string(), source))
    }

    /// Builds a weight norm from directions, with rows along the first dimension, and their
    /// lengths.
    fn weight_norm(
        &self,
        name: &str,
        info: &TensorInfo,
        lengths: &TensorInfo,
    ) -> Result<WeightSource> {
        let rows = info.shape.first().copied().unwrap_or(1);
        let known = float_type(info.dtype)
            .filter(|_| lengths.dtype == info.dtype && lengths.elements() == rows as u64);
        let Some(float) = known else {
            return Err(self.unsupported(
                name,
                info,
                "Weight norm needs one length per row in the type of its directions; convert the checkpoint again.",
            ));
        };
        let shape = vec![rows, info.shape.get(1..).unwrap_or(&[]).iter().product()];
        let part = |role: PartRole, info: &TensorInfo| StoredPart {
            role,
            info: info.clone(),
        };
        let parts = vec![
            part(PartRole::Weight, info),
            part(PartRole::Scales, lengths),
        ];
        Ok(WeightSource::new(
            name,
            shape,
            Encoding::WeightNorm(float),
            parts,
        ))
    }

    /// Whether a tensor is a secondary tensor of another weight.
    fn is_secondary(&self, name: &str) -> bool {
        if name.contains(QUANT_STATE)
            || SECONDARY_SUFFIXES
                .iter()
                .any(|p| name.ends_with(p) && *p != "_scales")
        {
            return true;
        }
        if let Some(base) = name.strip_suffix("_scales") {
            return self.tensor(base, "_blocks").is_some();
        }
        let base = name
            .strip_suffix(".scales")
            .or_else(|| name.strip_suffix(".biases"));
        base.is_some_and(|b| {
            self.tensor(b, ".weight").is_some() || self.tensor(b, ".qweight").is_some()
        })
    }

    fn unsupported(&self, name: &str, info: &TensorInfo, hint: &str) -> Error {
        let method = self.method();
        let what = if method.is_empty() {
            String::new()
        } else {
            format!("{method} ")
        };
        Error::UnsupportedEncoding {
            tensor: name.into(),
            encoding: format!("{what}{} {:?}", info.dtype.name(), info.shape),
            hint: hint.into(),
        }
    }
}

/// Names of stacked experts (Granite) and of experts without gates (MLX), mapped to the common
/// names.
const STACKED_EXPERT_NAMES: [(&str, &str); 4] = [
    (
        ".block_sparse_moe.input_linear",
        ".block_sparse_moe.experts.gate_up_proj",
    ),
    (
        ".block_sparse_moe.output_linear",
        ".block_sparse_moe.experts.down_proj",
    ),
    (".switch_mlp.fc1", ".switch_mlp.up_proj"),
    (".switch_mlp.fc2", ".switch_mlp.down_proj"),
];

/// Splits stacked experts into one weight or bias per expert, as graphs use them. MLX stacks experts
/// as `switch_mlp` or `experts.switch_glu`, others as tensors of `experts`.
fn split_experts(weights: &mut Weights) {
    weights.rename(|name| {
        let (stack, usual) = STACKED_EXPERT_NAMES
            .iter()
            .find(|(stack, _)| name.contains(stack))?;
        Some(name.replace(stack, usual))
    });

    let is_bias = |name: &str| name.ends_with(".bias");
    for marker in [".experts.", ".switch_mlp."] {
        let stacked: Vec<WeightSource> = weights
            .sources
            .values()
            .filter(|s: &&WeightSource| {
                let dimensions = if is_bias(&s.name) { 2 } else { 3 };
                s.name.contains(marker) && s.shape.len() == dimensions
            })
            .cloned()
            .collect();
        for source in stacked {
            let is_bias = is_bias(&source.name);
            let (experts, rows, shape) = match (&source.shape[..], is_bias) {
                (&[experts, n, k], false) => (experts, n, vec![n, k]),
                (&[experts, n], true) => (experts, 1, vec![n]),
                _ => continue,
            };
            let Some((path, part)) = source.name.split_once(marker) else {
                continue;
            };
            let end = if is_bias { "bias" } else { "weight" };
            let part = part
                .trim_end_matches(&format!(".{end}"))
                .trim_start_matches("switch_glu.");
            for e in 0..experts.min(4096) {
                let name = format!("{path}.experts.{e}.{part}.{end}");
                if let Some(slice) = source.slice(&name, e * rows, shape.clone()) {
                    weights.sources.get_or_insert_with(name, || slice);
                }
            }
            if marker == ".experts." {
                weights.sources.remove(&source.name);
            }
        }
    }
}

/// Splits the key projections that mlx_lm makes from `kv_b_proj` of latent attention (`embed_q`
/// [heads, latent, columns]) into one transposed matrix per head, and joins the heads of the value
/// projections (`unembed_out` [heads, columns, latent]).
fn split_heads(weights: &mut Weights) {
    let stacked: Vec<WeightSource> = weights
        .sources
        .values()
        .filter(|s: &&WeightSource| {
            s.name.ends_with("embed_q.weight") || s.name.ends_with(".unembed_out.weight")
        })
        .cloned()
        .collect();
    for source in stacked {
        let &[heads, rows, cols] = &source.shape[..] else {
            continue;
        };
        if let Some(base) = source.name.strip_suffix("embed_q.weight") {
            for head in 0..heads.min(4096) {
                let name = format!("{base}embed_q.{head}.weight");
                let slice = source.slice(&name, head * rows, vec![rows, cols]);
                let Some(slice) = slice else { continue };
                weights.insert(&name, slice.transposed());
            }
            weights.sources.remove(&source.name);
        } else if let Some(joined) = source.slice(&source.name, 0, vec![heads * rows, cols]) {
            weights.insert(&source.name, Ok(joined));
        }
    }
}

fn stored_part(role: PartRole, info: &TensorInfo) -> StoredPart {
    StoredPart {
        role,
        info: info.clone(),
    }
}

fn dense_weight(name: &str, info: &TensorInfo, encoding: Encoding) -> WeightSource {
    WeightSource::new(
        name,
        info.shape.clone(),
        encoding,
        vec![stored_part(PartRole::Weight, info)],
    )
}

/// The floating point type of an unquantized tensor.
pub fn float_type(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::F32 => Some(Float::F32),
        Dtype::F16 => Some(Float::F16),
        Dtype::BF16 => Some(Float::BF16),
        _ => None,
    }
}
