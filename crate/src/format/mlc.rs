//! Reads MLC's compiled checkpoints: shard list, chat configuration, parameter names and 4-bit
//! groups. Performs no I/O; family-specific facts are data from the caller.
//!
//! A repository contains `ndarray-cache.json` (newer: `tensor-cache.json`), `params_shard_N.bin`,
//! `mlc-chat-config.json` and tokenizer files. WebLLM caches them in browser storage under their
//! full URLs, `https://huggingface.co/<repo>/resolve/main/<file>`, in the scopes [`WEBLLM_SCOPES`].
//! The first scope has the shard list, shards and tokenizer, the second `mlc-chat-config.json`.
//!
//! WebLLM's `cacheBackend` selects the storage:
//! - Cache API: a cache named after the scope.
//! - IndexedDB: a database named after the scope with records `{url, data}` in `urls`.
//! - OPFS: `tvmjs-opfs-store/<scope>/<sha256 of the URL>.bin` with a record file next to it.
//!
//! Pages of the same origin can read these files. List and shards must come from the same source:
//! offsets of one version do not match shards of another.

use super::detect::float_type;
use super::encoding::{Encoding, PartRole, StoredPart, WeightSource};
use super::layout::{Float, PackedMatrix};
use super::transcode_job::{TranscodeJob, read_u32};
use super::{Checkpoint, CheckpointFile, Dtype, TensorInfo};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// File names of the shard list, newest first.
pub const SHARD_LISTS: [&str; 2] = ["tensor-cache.json", "ndarray-cache.json"];

/// The scopes of WebLLM's storage: models with tokenizers, then configurations.
pub const WEBLLM_SCOPES: [&str; 2] = ["webllm/model", "webllm/config"];

/// How MLC stores a model family.
#[derive(Debug, Clone, Copy)]
pub struct MlcSpec {
    /// MLC's `model_type`.
    pub name: &'static str,
    /// The `model_type` in the original config.json.
    pub model_type: &'static str,
    /// The class in the original `architectures`.
    pub class: &'static str,
    /// The activation fixed in MLC's code: its field in config.json and its name.
    pub activation: (&'static str, &'static str),
    /// Whether the head shares the embedding by default.
    pub tied_head: bool,
    /// Whether the original stores q, k and v (and gate and up) in one tensor, as MLC does.
    pub fused_projections: bool,
    /// Substrings to replace in names, in order: MLC's, the original's.
    pub names: &'static [(&'static str, &'static str)],
    /// Whether norms store their weight plus one.
    pub norm_plus_one: bool,
}

impl MlcSpec {
    /// Creates a family with default values: the original's names, SiLU, an untied head, unfused
    /// projections.
    pub const fn new(name: &'static str, model_type: &'static str, class: &'static str) -> Self {
        let activation = ("hidden_act", "silu");
        Self {
            name,
            model_type,
            class,
            activation,
            tied_head: false,
            fused_projections: false,
            names: &[],
            norm_plus_one: false,
        }
    }
}

#[derive(Deserialize)]
struct ShardList {
    #[serde(default)]
    metadata: SortedMap<String, Value>,
    records: Vec<MlcShard>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MlcShard {
    data_path: String,
    nbytes: u64,
    records: Vec<ShardRecord>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShardRecord {
    name: String,
    shape: Vec<usize>,
    dtype: String,
    #[serde(default)]
    format: String,
    nbytes: u64,
    byte_offset: u64,
}

/// Parses a shard list. Tensors have MLC's names.
///
/// # Errors
/// `Malformed` for invalid JSON, paths outside the repository, or ranges and sizes that do not
/// match.
pub fn parse_shards(file: &str, text: &str) -> Result<Checkpoint> {
    let bad = |reason: String| Error::Malformed {
        file: file.into(),
        format: "MLC shard list",
        reason,
    };
    let list: ShardList = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let mut out = Checkpoint::default();
    for (key, value) in list.metadata {
        out.metadata.insert(
            key,
            value
                .as_str()
                .map_or_else(|| value.to_string(), String::from),
        );
    }
    for (index, shard) in list.records.into_iter().enumerate() {
        if shard.data_path.starts_with('/')
            || shard.data_path.split(['/', '\\']).any(|part| part == "..")
        {
            return Err(bad(format!(
                "the shard path '{}' leaves the repository",
                shard.data_path
            )));
        }
        for record in shard.records {
            let info = tensor(index, shard.nbytes, &record).map_err(&bad)?;
            if out.tensors.insert(record.name.clone(), info).is_some() {
                return Err(bad(format!(
                    "the parameter {} is listed twice",
                    record.name
                )));
            }
        }
        out.files.push(CheckpointFile {
            name: shard.data_path,
            size: shard.nbytes,
        });
    }
    Ok(out)
}

/// Whether a checkpoint comes from a shard list.
pub fn is_mlc(checkpoint: &Checkpoint) -> bool {
    checkpoint
        .files
        .first()
        .is_some_and(|f| f.name.contains("params_shard"))
}

fn tensor(file: usize, size: u64, record: &ShardRecord) -> Result<TensorInfo, String> {
    // TVM stores f32 parameters truncated to bf16 where the list says so.
    let dtype = match (record.dtype.as_str(), record.format.as_str()) {
        ("float32", "f32-to-bf16") => Dtype::BF16,
        ("float32", _) => Dtype::F32,
        ("float16", _) => Dtype::F16,
        ("bfloat16", _) => Dtype::BF16,
        ("uint32", _) => Dtype::U32,
        ("int32", _) => Dtype::I32,
        ("uint8", _) => Dtype::U8,
        ("int8", _) => Dtype::I8,
        ("float8_e4m3fn" | "e4m3_float8", _) => Dtype::F8E4M3,
        (other, _) => {
            return Err(format!(
                "the parameter {} has the unknown type {other}",
                record.name
            ));
        }
    };
    let elements = record
        .shape
        .iter()
        .try_fold(1u64, |n, d| n.checked_mul(*d as u64));
    if elements.and_then(|n| n.checked_mul(dtype.bits() / 8)) != Some(record.nbytes) {
        return Err(format!(
            "the parameter {} of shape {:?} has {} bytes, which does not match its shape",
            record.name, record.shape, record.nbytes
        ));
    }
    let end = record
        .byte_offset
        .checked_add(record.nbytes)
        .filter(|end| *end <= size);
    let end = end.ok_or_else(|| {
        format!(
            "the parameter {} ends beyond its shard of {size} bytes",
            record.name
        )
    })?;
    Ok(TensorInfo {
        name: record.name.clone(),
        dtype,
        shape: record.shape.clone(),
        file,
        range: record.byte_offset..end,
    })
}

/// Converts `mlc-chat-config.json` to the original's config.json, as far as MLC stores it. `find`
/// maps MLC's `model_type` to its family.
///
/// # Errors
/// `Config` for a missing field; the error of `find` for an unknown family.
pub fn config(
    text: &str,
    find: impl Fn(&str) -> Result<&'static MlcSpec>,
) -> Result<(Value, &'static MlcSpec)> {
    const FILE: &str = "mlc-chat-config.json";
    let bad = |reason: &str| Error::Config {
        file: FILE.into(),
        reason: reason.into(),
    };
    let chat: Value = serde_json::from_str(text).map_err(|e| bad(&e.to_string()))?;
    let model_type = chat["model_type"]
        .as_str()
        .ok_or_else(|| bad("'model_type' is missing"))?;
    let mut out = chat["model_config"]
        .as_object()
        .cloned()
        .ok_or_else(|| bad("'model_config' is missing"))?;
    if let Some(text_config) = out.get("text_config").and_then(Value::as_object).cloned() {
        out.extend(text_config);
    }
    let family = find(model_type)?;
    out.insert("model_type".into(), json!(family.model_type));
    out.insert("architectures".into(), json!([family.class]));
    if let Some(base) = out
        .remove("position_embedding_base")
        .filter(|b| b.as_f64().is_some_and(|b| b > 0.0))
    {
        out.entry("rope_theta").or_insert(base);
    }
    for key in ["bos_token_id", "eos_token_id", "pad_token_id", "vocab_size"] {
        if let Some(value) = chat.get(key).filter(|v| !v.is_null()) {
            out.entry(key).or_insert_with(|| value.clone());
        }
    }
    let window = out
        .get("context_window_size")
        .and_then(Value::as_i64)
        .filter(|w| *w > 0);
    if let Some(window) = window.or_else(|| chat["context_window_size"].as_i64().filter(|w| *w > 0))
    {
        out.entry("max_position_embeddings")
            .or_insert(json!(window));
    }
    if let Some(window) = chat["sliding_window_size"].as_i64().filter(|w| *w > 0) {
        out.entry("sliding_window").or_insert(json!(window));
    }
    let (field, activation) = family.activation;
    let given = ["hidden_activation", "hidden_act"]
        .iter()
        .find_map(|f| out.get(*f).filter(|v| !v.is_null()).cloned());
    out.entry(field)
        .or_insert(given.unwrap_or(json!(activation)));
    out.entry("tie_word_embeddings")
        .or_insert(json!(family.tied_head));
    out.remove("dtype");
    out.insert("torch_dtype".into(), json!("float16"));
    Ok((Value::Object(out), family))
}

/// The weights of a shard list by HuggingFace name.
///
/// `config` is the result of [`config`]: its head counts split fused projections.
///
/// # Errors
/// `MissingTensor`, `UnsupportedEncoding`, `Shape` or `Config` with the parameter or field.
pub fn weights(
    checkpoint: &Checkpoint,
    config: &Value,
    family: &MlcSpec,
) -> Result<Vec<WeightSource>> {
    let mut out = Vec::new();
    for (name, info) in &checkpoint.tensors {
        let Some(source) = stored_weight(checkpoint, name, info)? else {
            continue;
        };
        let mut source = rename(source, family.names);
        if family.norm_plus_one && source.name.contains("norm") {
            source.offset = -1.0;
        }
        split_fused(source, config, family.fused_projections, &mut out)?;
    }
    Ok(out)
}

/// The weight of this tensor under MLC's name; `None` for scales.
fn stored_weight(
    checkpoint: &Checkpoint,
    name: &str,
    info: &TensorInfo,
) -> Result<Option<WeightSource>> {
    if name.ends_with(".q_scale") {
        return Ok(None);
    }
    let Some(base) = name.strip_suffix(".q_weight") else {
        let float = float_type(info.dtype).ok_or_else(|| unsupported(name, info.dtype.name()))?;
        let part = StoredPart {
            role: PartRole::Weight,
            info: info.clone(),
        };
        return Ok(Some(WeightSource::new(
            name,
            info.shape.clone(),
            Encoding::Dense(float),
            vec![part],
        )));
    };

    let scales = checkpoint
        .tensors
        .get(&format!("{base}.q_scale"))
        .ok_or_else(|| Error::MissingTensor {
            tensor: format!("{base}.q_scale"),
            architecture: "its q_weight".into(),
        })?;
    let scale = float_type(scales.dtype).ok_or_else(|| unsupported(name, scales.dtype.name()))?;
    let weight_shape = &info.shape;
    let scale_shape = &scales.shape;

    let rank = weight_shape.len();
    if info.dtype != Dtype::U32 || rank < 2 || scale_shape.len() != rank {
        return Err(unsupported(
            name,
            &format!(
                "{} {weight_shape:?} with scales {scale_shape:?}",
                info.dtype
            ),
        ));
    }
    let last = rank - 1;
    let first = rank - 2;

    let transposed = match (
        weight_shape[last],
        scale_shape[last],
        weight_shape[first],
        scale_shape[first],
    ) {
        (w, s, n, m) if n == m && w == s.saturating_mul(4) => false,
        (n, m, w, s) if n == m && rank == 2 && w == s.saturating_mul(4) => true,
        _ => {
            return Err(unsupported(
                name,
                &format!("{weight_shape:?} with scales {scale_shape:?}"),
            ));
        }
    };
    let mut shape = weight_shape.clone();
    if transposed {
        shape = vec![weight_shape[1], weight_shape[0].saturating_mul(8)];
    } else {
        shape[last] = shape[last].saturating_mul(8);
    }
    let parts = vec![
        StoredPart {
            role: PartRole::Weight,
            info: info.clone(),
        },
        StoredPart {
            role: PartRole::Scales,
            info: scales.clone(),
        },
    ];
    Ok(Some(WeightSource::new(
        &format!("{base}.weight"),
        shape,
        Encoding::Mlc { transposed, scale },
        parts,
    )))
}

fn unsupported(name: &str, what: &str) -> Error {
    Error::UnsupportedEncoding {
        tensor: name.into(),
        encoding: format!("MLC {what}"),
        hint: "Use a q4f16_1, q4f32_1, q4f16_0, q0f16 or q0f32 build.".into(),
    }
}

/// Renames a weight from MLC's to the original's name.
fn rename(mut source: WeightSource, names: &[(&str, &str)]) -> WeightSource {
    let name = source
        .name
        .strip_prefix("language_model.")
        .unwrap_or(&source.name);
    let name = name.replace(".self_attn.c_attn.", ".self_attn.qkv_proj.");
    source.name = names
        .iter()
        .fold(name, |name, (from, to)| name.replace(from, to));
    source
}

/// Splits fused projections unless the original fuses them too.
fn split_fused(
    source: WeightSource,
    config: &Value,
    fused: bool,
    out: &mut Vec<WeightSource>,
) -> Result<()> {
    let (rows, cols) = source.rows_cols();
    let number = |key: &str| config[key].as_u64().and_then(|n| usize::try_from(n).ok());
    let (marker, names, sizes) = if source.name.contains(".qkv_proj.") && !fused {
        let q = number("num_attention_heads");
        let kv = number("num_key_value_heads").or(number("num_attention_heads"));

        let (Some(q), Some(kv)) = (q, kv) else {
            return Err(missing_field("num_attention_heads"));
        };
        let total = kv
            .checked_mul(2)
            .and_then(|kv| kv.checked_add(q))
            .filter(|t| *t > 0);
        let is_vector = source.shape.len() == 1;
        let head = total
            .map(|t| if is_vector { cols / t } else { rows / t })
            .unwrap_or(0);
        (
            "qkv_proj",
            vec!["q_proj", "k_proj", "v_proj"],
            vec![q * head, kv * head, kv * head],
        )
    } else if source.name.contains(".gate_up_proj.") && !fused {
        (
            "gate_up_proj",
            vec!["gate_proj", "up_proj"],
            vec![rows / 2; 2],
        )
    } else {
        out.push(source);
        return Ok(());
    };
    let mut first = 0;
    for (part, size) in names.iter().zip(sizes) {
        let name = source.name.replace(marker, part);
        let piece = source.slice_rows(&name, first, size);
        out.push(piece.ok_or_else(|| Error::Shape {
            tensor: source.name.clone(),
            found: source.shape.clone(),
            expected: vec![first + size, cols],
        })?);
        first += size;
    }
    Ok(())
}

fn missing_field(field: &str) -> Error {
    Error::Config {
        file: "mlc-chat-config.json".into(),
        reason: format!("'model_config.{field}' is missing"),
    }
}

/// Decodes `w = (q - 7) * scale`, group 32, codes 0 to 14; K × N if transposed.
pub(super) fn decode_q4(
    job: &TranscodeJob<'_>,
    transposed: bool,
    scale: Float,
) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    if !k.is_multiple_of(32) {
        return Err(job.malformed(format!(
            "{k} columns are not a multiple of the group size 32"
        )));
    }
    let codes = job.part(PartRole::Weight, n.checked_mul(k / 2))?;
    let scales = job.part(PartRole::Scales, n.checked_mul(k / 32 * scale.bytes()))?;
    let at = |row: usize, line: usize, lines: usize| {
        if transposed {
            line * n + row
        } else {
            row * lines + line
        }
    };
    Ok(job.affine(
        |row, k| (read_u32(codes, at(row, k / 8, job.cols / 8)) >> (4 * (k % 8)) & 15) as u8,
        |row, k| {
            (
                scale
                    .get(scales, at(row, k / 32, job.cols / 32))
                    .unwrap_or(0.0),
                7.0,
            )
        },
    ))
}
