//! Converts GGUF metadata to the original checkpoint's config.json. Family-specific facts are data
//! from the caller. Of the tensor data only the RoPE factors are used.

use super::names::GgufSpec;
use super::{Gguf, MetadataValue as Meta};
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// The tensors whose values the configuration needs: divisors of the RoPE frequencies.
pub const FACTOR_TENSORS: [&str; 3] = [
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
];

/// The values of [`FACTOR_TENSORS`] (f32); empty if absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RopeFactors {
    /// `rope_freqs.weight`: one set for all context lengths.
    pub all: Vec<f32>,
    /// `rope_factors_long.weight`.
    pub long: Vec<f32>,
    /// `rope_factors_short.weight`.
    pub short: Vec<f32>,
}

/// Metadata fields copied unchanged: GGUF's name without the architecture, config.json's.
const COMMON_FIELDS: [(&str, &str); 25] = [
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("context_length", "max_position_embeddings"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    (
        "rope.scaling.original_context_length",
        "original_max_position_embeddings",
    ),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    (
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
    ),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("attention.scale", "attention_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("shortconv.l_cache", "conv_L_cache"),
    ("attention.value_length", "v_head_dim"),
    ("attention.causal", "is_causal"),
];

impl Gguf {
    /// Builds the original's config.json, as far as the file stores it.
    pub fn config(&self, architecture: &GgufSpec, factors: &RopeFactors) -> Value {
        let mut out = Map::new();
        out.insert("model_type".into(), json!(architecture.model_type));
        out.insert("architectures".into(), json!([architecture.class]));
        for (field, key) in COMMON_FIELDS.iter().chain(architecture.extra_fields) {
            match self.field(field) {
                Some(Meta::Ints(list)) => drop(out.insert((*key).into(), json!(list.iter().max()))),
                Some(value) => drop(value.json().map(|v| out.insert((*key).into(), v))),
                None => {}
            }
        }
        // `block_count` includes multi-token prediction layers, which are not part of the model's
        // layers.
        if let (Some(all), Some(further)) = (
            self.float_field("block_count"),
            self.float_field("nextn_predict_layers"),
        ) {
            out.insert(
                "num_hidden_layers".into(),
                json!((all - further).max(0.0) as u64),
            );
        }
        match self.field("attention.sliding_window_pattern") {
            Some(Meta::Int(every)) => {
                drop(out.insert("sliding_window_pattern".into(), json!(every)));
            }
            Some(Meta::Ints(slides)) => {
                let kinds: Vec<&str> = slides
                    .iter()
                    .map(|slides| match slides {
                        0 => "full_attention",
                        _ => "sliding_attention",
                    })
                    .collect();
                out.insert("layer_types".into(), json!(kinds));
            }
            _ => {}
        }
        self.add_vocabulary(&mut out);
        self.add_experts(&mut out);
        self.add_rope(factors, &mut out);
        out.entry("rope_theta").or_insert(json!(10_000.0));
        (architecture.set_fixed_fields)(self, &mut out);
        Value::Object(out)
    }

    /// Whether the model has experts.
    pub fn has_experts(&self) -> bool {
        self.field("expert_count")
            .and_then(Meta::as_i64)
            .is_some_and(|n| n > 0)
    }

    /// Pooling type: 0 none, 1 mean, 2 first token, 3 last token, 4 rank; `None` if not specified.
    pub fn pooling_type(&self) -> Option<i64> {
        self.field("pooling_type").and_then(Meta::as_i64)
    }

    /// The dense layers after pooling: [rows, columns], the original's module name, whether there
    /// is a bias.
    pub fn dense_layers(&self) -> Vec<([usize; 2], &'static str, bool)> {
        [("dense_2", "2_Dense"), ("dense_3", "3_Dense")]
            .into_iter()
            .filter_map(|(tensor, module): (&str, &'static str)| {
                match self.tensors.get(&format!("{tensor}.weight"))?.shape {
                    ref shape if shape.len() == 2 => Some((
                        [shape[0], shape[1]],
                        module,
                        self.has_tensor(&format!("{tensor}.bias")),
                    )),
                    _ => None,
                }
            })
            .collect()
    }

    /// Warnings for the user who loads the file.
    pub fn warnings(&self) -> Vec<String> {
        let text = |key: &str| self.text(key).unwrap_or_default();
        let cut = text("tokenizer.ggml.model") == "gpt2"
            && self.text("tokenizer.huggingface.json").is_none();
        let unnamed = cut && matches!(text("tokenizer.ggml.pre"), "" | "default");
        let note = "Tokenization may be inaccurate: the GGUF file names no pre-tokenizer, so llama.cpp's default \
            is used. Convert the model again, or use another GGUF file of it.";
        let mut warnings: Vec<String> = unnamed.then(|| note.to_string()).into_iter().collect();
        let has_tokens = self.metadata.contains_key("tokenizer.ggml.tokens");
        let kind = text("tokenizer.ggml.model");
        if has_tokens && !self.has_tokenizer() && !matches!(kind, "none" | "no_vocab") {
            let missing = if kind.is_empty() { "model" } else { "scores" };
            warnings.push(format!(
                "The GGUF file's tokenizer is not used: it has no 'tokenizer.ggml.{missing}'. Use token ids, or another \
                GGUF file of the model."
            ));
        }
        warnings
    }

    /// Whether the attention's projections have biases.
    pub fn has_qkv_bias(&self) -> bool {
        self.has_tensor("blk.0.attn_q.bias") || self.has_tensor("blk.0.attn_qkv.bias")
    }

    /// Whether the tensor exists.
    pub fn has_tensor(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// A metadata field of the file's architecture.
    pub fn field(&self, name: &str) -> Option<&Meta> {
        self.metadata
            .get(&format!("{}.{name}", self.architecture()))
    }

    /// A numeric metadata field of the file's architecture.
    pub fn float_field(&self, name: &str) -> Option<f64> {
        self.float(&format!("{}.{name}", self.architecture()))
    }

    /// Columns per head of a state-space model.
    pub fn ssm_head_dim(&self) -> Option<u64> {
        let inner = self.float_field("ssm.inner_size")?;
        let heads = self.float_field("ssm.time_step_rank")?;
        Some((inner / heads.max(1.0)) as u64)
    }

    /// Adds vocabulary size, special tokens, and whether head and embedding are tied.
    fn add_vocabulary(&self, out: &mut Map<String, Value>) {
        let embedding = self
            .tensors
            .get("token_embd.weight")
            .and_then(|t| t.shape.first().copied());
        if let Some(rows) = embedding {
            out.insert("vocab_size".into(), json!(rows));
        }
        out.insert(
            "tie_word_embeddings".into(),
            json!(!self.tensors.contains_key("output.weight")),
        );
        for (key, name) in [
            ("bos_token_id", "tokenizer.ggml.bos_token_id"),
            ("eos_token_id", "tokenizer.ggml.eos_token_id"),
            ("pad_token_id", "tokenizer.ggml.padding_token_id"),
        ] {
            if let Some(id) = self.int(name) {
                out.insert(key.into(), json!(id));
            }
        }
        out.insert("torch_dtype".into(), json!("float32"));
    }

    fn add_experts(&self, out: &mut Map<String, Value>) {
        let Some(count) = self
            .field("expert_count")
            .and_then(Meta::as_i64)
            .filter(|n| *n > 0)
        else {
            return;
        };
        // Families use one or the other name.
        out.insert("num_experts".into(), json!(count));
        out.insert("num_local_experts".into(), json!(count));
        out.insert("decoder_sparse_step".into(), json!(1));
        out.insert("mlp_only_layers".into(), json!([]));
    }

    /// Adds RoPE settings: partial width and scaling.
    fn add_rope(&self, factors: &RopeFactors, out: &mut Map<String, Value>) {
        let heads = self
            .float_field("attention.head_count")
            .filter(|h| *h > 0.0);
        let head_dim = self.float_field("attention.key_length");
        let head_dim = head_dim.or_else(|| Some(self.float_field("embedding_length")? / heads?));
        let rotary = self.float_field("rope.dimension_count");
        if let (Some(head), Some(rotary)) = (head_dim.filter(|h| *h > 0.0), rotary)
            && rotary > 0.0
            && rotary < head
        {
            out.insert("partial_rotary_factor".into(), json!(rotary / head));
        }
        let original = self
            .float_field("rope.scaling.original_context_length")
            .map(|n| n as u64);
        let kind = self
            .text(&format!("{}.rope.scaling.type", self.architecture()))
            .unwrap_or("linear");
        let factor = self
            .float_field("rope.scaling.factor")
            .or_else(|| self.float_field("rope.scale_linear"));
        let factor = factor.filter(|f| *f > 0.0);
        let scaling = if !factors.long.is_empty() && !factors.short.is_empty() {
            Some(
                json!({"rope_type": "longrope", "type": "longrope", "long_factor": factors.long,
                "short_factor": factors.short, "original_max_position_embeddings": original}),
            )
        } else if !factors.all.is_empty() {
            let base = self.float_field("rope.freq_base").unwrap_or(10_000.0);
            Some(
                llama3_scaling(&factors.all, base, rotary.or(head_dim)).unwrap_or_else(|| {
                    // Other factors are expressed as longrope with the same set at every length.
                    json!({"rope_type": "longrope", "type": "longrope", "long_factor": factors.all,
                    "short_factor": factors.all, "attention_factor": 1.0})
                }),
            )
        } else {
            match (kind, factor) {
                ("linear", Some(1.0)) | ("none" | "linear" | "yarn", None) | ("none", _) => None,
                ("linear", Some(factor)) => {
                    Some(json!({"rope_type": "linear", "type": "linear", "factor": factor}))
                }
                ("yarn", Some(factor)) => Some(self.yarn(factor, original)),
                // Unknown types are rejected by name when the graph is built.
                (other, _) => Some(json!({"rope_type": other, "type": other})),
            }
        };
        // M-RoPE sections; the fourth value is always 0.
        let sections = match self.field("rope.dimension_sections") {
            Some(Meta::Ints(list)) if list.len() >= 3 => Some(&list[..3]),
            _ => None,
        };
        let plain = || json!({"rope_type": "default", "type": "default"});
        if let Some(mut scaling) = scaling.or_else(|| sections.map(|_| plain())) {
            if let Some(map) = scaling.as_object_mut() {
                map.insert("mrope_section".into(), json!(sections));
                map.retain(|_, v| !v.is_null());
            }
            out.insert("rope_scaling".into(), scaling);
        }
    }
}

impl Gguf {
    /// YaRN scaling with the values that the file sets. `attn_factor` multiplies the attention
    /// factor that follows from the length.
    fn yarn(&self, factor: f64, original: Option<u64>) -> Value {
        let number = |name: &str| self.float_field(&format!("rope.scaling.{name}"));
        let usual = 1.0 + 0.1 * factor.max(1.0).ln();
        let attention = match (number("yarn_attn_factor"), number("attn_factor")) {
            (None, None) => None,
            (whole, own) => Some(whole.unwrap_or(usual) * own.unwrap_or(1.0)),
        };
        let all = number("yarn_log_multiplier").filter(|all| *all != 0.0);
        json!({"rope_type": "yarn", "type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            "attention_factor": attention, "beta_fast": number("yarn_beta_fast"), "beta_slow": number("yarn_beta_slow"),
            "mscale": all.map(|_| 1.0), "mscale_all_dim": all})
    }

    /// Rejects per-layer sizes that differ, for families with uniform layers.
    ///
    /// # Errors
    /// `UnsupportedOption` with the name of the list.
    pub fn check_uniform_layers(&self) -> Result<()> {
        for name in [
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
            "expert_used_count",
        ] {
            let Some(Meta::Ints(list)) = self.field(name) else {
                continue;
            };
            // Layers of other kinds have size 0.
            let mut sizes = list.iter().filter(|n| **n > 0);
            let first = sizes.next();
            if let Some(other) = sizes.find(|n| Some(*n) != first) {
                return Err(Error::UnsupportedOption {
                    architecture: format!("GGUF {}", self.architecture()),
                    option: format!(
                        "a different {name} per layer ({} and {other})",
                        first.unwrap_or(&0)
                    ),
                    hint: "Use a model of this family with layers of equal size.".into(),
                });
            }
        }
        Ok(())
    }
}

impl Meta {
    /// The value as an integer, if it is one.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Meta::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The value as JSON, for numbers, strings and booleans; f32 values get their shortest decimal
    /// form.
    pub(super) fn json(&self) -> Option<Value> {
        Some(match self {
            Meta::Int(n) => json!(n),
            Meta::Float(x) => {
                let short: f64 = (*x as f32).to_string().parse().ok()?;
                json!(if f64::from(*x as f32) == *x {
                    short
                } else {
                    *x
                })
            }
            Meta::Bool(b) => json!(b),
            Meta::Text(t) => json!(t),
            _ => return None,
        })
    }
}

/// Finds the llama3 scaling that produces these factors; `None` if there is none.
///
/// All published Llama 3 files have low 1, high 4 and 8192 positions; the factor is the largest of
/// the set.
fn llama3_scaling(factors: &[f32], base: f64, rotary: Option<f64>) -> Option<Value> {
    let low = 1.0;
    let high = 4.0;
    let original = 8192.0;

    let factor = f64::from(factors.iter().copied().fold(1.0f32, f32::max));
    let width = rotary.unwrap_or(factors.len() as f64 * 2.0);
    for (i, found) in factors.iter().enumerate() {
        let wavelength = std::f64::consts::TAU * base.powf(2.0 * i as f64 / width);
        let expected = if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        };
        if (expected - f64::from(*found)).abs() > 1e-3 * expected {
            return None;
        }
    }
    Some(
        json!({"rope_type": "llama3", "type": "llama3", "factor": factor, "low_freq_factor": low,
        "high_freq_factor": high, "original_max_position_embeddings": original as u32}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_factors_are_recognised() {
        let base = 500_000.0f64;
        let width = 64.0;

        let factors: Vec<f32> = (0..32)
            .map(|i| {
                let wave = std::f64::consts::TAU * base.powf(2.0 * f64::from(i) / width);
                let smooth = ((8192.0 / wave - 1.0) / 3.0).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / 32.0 + smooth)) as f32
            })
            .collect();
        let scaling = llama3_scaling(&factors, base, Some(width)).expect("llama3");
        assert_eq!(scaling["factor"], 32.0);
        assert_eq!(llama3_scaling(&[1.0, 3.0, 2.0], base, Some(6.0)), None);
    }
}
