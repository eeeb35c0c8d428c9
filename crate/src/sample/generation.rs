//! Reads generation_config.json field by field, as `generate` of transformers 5.23 does. The
//! sampler applies the result.

use serde_json::Value;

use super::SamplingParams;
use super::rules::TokenRules;
use crate::{Error, Result};

/// Fields of transformers' `GenerationConfig` that are applied.
pub const APPLIED: &[&str] = &[
    "begin_suppress_tokens",
    "bad_words_ids",
    "do_sample",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "eos_token_id",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
];

/// Fields that cannot change the answer of a single decoder sequence. They tune beam search
/// (refused by [`UNSUPPORTED`]), speculation, caches, compilation and what is returned besides the
/// tokens.
pub const HARMLESS: &[&str] = &[
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "diversity_penalty",
    "early_stopping",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    // Logits that are not finite are always an error here.
    "remove_invalid_values",
    "renormalize_logits",
    "return_dict_in_generate",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
];

/// Unsupported fields that change the answer, each with its neutral value.
pub const UNSUPPORTED: &[(&str, f64)] = &[
    ("constraints", 0.0),
    ("dola_layers", 0.0),
    ("force_words_ids", 0.0),
    ("guidance_scale", 1.0),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("token_healing", 0.0),
    ("watermarking_config", 0.0),
];

/// Applied fields that speech-to-text models ignore.
const IGNORED_BY_ASR: &[(&str, f64)] = &[
    ("bad_words_ids", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("exponential_decay_length_penalty", 0.0),
    ("min_new_tokens", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("repetition_penalty", 1.0),
    ("sequence_bias", 0.0),
];

/// Generation defaults of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// How tokens are sampled.
    pub params: SamplingParams,
    /// Maximum number of answer tokens.
    pub max_new_tokens: Option<usize>,
    /// Maximum number of prompt and answer tokens, used if `max_new_tokens` is absent.
    pub max_length: Option<usize>,
    /// Time limit of an answer in milliseconds.
    pub max_ms: Option<f64>,
    /// Stop strings.
    pub stop_strings: Vec<String>,
    /// One warning for each unsupported field.
    pub warnings: Vec<String>,
    /// Biases of token sequences, including sequences of one token.
    sequences: Vec<(Vec<u32>, f64)>,
}

impl GenerationConfig {
    /// Reads generation_config.json.
    ///
    /// # Errors
    /// `Config` that names the field.
    pub fn read(config: &Value) -> Result<Self> {
        let config = &with_numbers(config);
        let fields = GenerationFields(config);
        let mut params = SamplingParams::from_generation_config(config)?;
        let cutoff = |name: &str| {
            Ok::<f64, Error>(
                fields
                    .number(name)?
                    .filter(|n| *n > 0.0 && *n < 1.0)
                    .unwrap_or(0.0),
            )
        };
        params.epsilon_cutoff = cutoff("epsilon_cutoff")?;
        params.eta_cutoff = cutoff("eta_cutoff")?;
        params.top_h = fields.number("top_h")?.unwrap_or(0.0);
        if fields.get("top_h").is_some() && !(params.top_h > 0.0 && params.top_h <= 1.0) {
            return Err(refuse("top_h", "must be above 0 and at most 1"));
        }
        let ends = fields.ids("eos_token_id")?;
        let count = |name: &str| Ok::<usize, Error>(fields.count(name)?.unwrap_or(0));
        let mut rules = TokenRules {
            prompt_repetition_penalty: fields.number("encoder_repetition_penalty")?.unwrap_or(1.0),
            no_repeat_ngram: count("no_repeat_ngram_size")?,
            no_repeat_prompt_ngram: count("encoder_no_repeat_ngram_size")?,
            min_length: count("min_length")?,
            min_new_tokens: count("min_new_tokens")?,
            forced_first: fields.ids("forced_bos_token_id")?.first().copied(),
            forced_last: fields.ids("forced_eos_token_id")?,
            suppress: fields.ids("suppress_tokens")?,
            begin_suppress: fields.ids("begin_suppress_tokens")?,
            ..TokenRules::default()
        };
        if rules.prompt_repetition_penalty <= 0.0 {
            return Err(refuse("encoder_repetition_penalty", "must be above 0"));
        }
        if rules.min_new_tokens > 0 {
            rules.min_length = 0;
        }
        if let Some(decay) = fields.get("exponential_decay_length_penalty") {
            let pair = decay[0].as_u64().zip(decay[1].as_f64());
            let (from, factor) = pair.ok_or_else(|| {
                refuse(
                    "exponential_decay_length_penalty",
                    "must be [start, factor]",
                )
            })?;
            rules.end_growth = Some((from as usize, factor, ends.clone()));
        }
        let mut sequences = Vec::new();
        for pair in fields.list("sequence_bias")? {
            let bias = pair[1].as_f64().filter(|bias| bias.is_finite());
            let of = token_ids(&pair[0])
                .zip(bias)
                .filter(|(ids, _)| !ids.is_empty());
            sequences.push(
                of.ok_or_else(|| refuse("sequence_bias", "must be a list of [[ids], bias]"))?,
            );
        }
        for word in fields.list("bad_words_ids")? {
            let ids = token_ids(word).filter(|ids| !ids.is_empty());
            let ids =
                ids.ok_or_else(|| refuse("bad_words_ids", "must be a list of lists of token ids"))?;
            if !(ids.len() == 1 && ends.contains(&ids[0])) {
                sequences.push((ids, f64::NEG_INFINITY));
            }
        }
        params.rules = rules;
        Ok(GenerationConfig {
            params,
            max_new_tokens: fields.count("max_new_tokens")?.filter(|n| *n > 0),
            max_length: fields.count("max_length")?.filter(|n| *n > 0),
            max_ms: fields.number("max_time")?.map(|seconds| seconds * 1000.0),
            stop_strings: fields.strings("stop_strings"),
            warnings: unsupported_warnings(config, UNSUPPORTED),
            sequences,
        })
    }

    /// Adapts the settings to a model with these end tokens and this vocabulary size. Bans of
    /// single tokens become logit biases.
    ///
    /// # Errors
    /// `Config` for a token outside the vocabulary.
    pub fn for_model(mut self, ends: &[u32], vocabulary: usize) -> Result<Self> {
        let known = |id: &u32| (*id as usize) < vocabulary;
        let SamplingParams {
            rules, logit_bias, ..
        } = &mut self.params;
        rules.end_tokens = ends.to_vec();
        rules.suppress.retain(known);
        for token in &rules.suppress {
            logit_bias.insert(*token, f64::NEG_INFINITY);
        }
        for (tokens, bias) in std::mem::take(&mut self.sequences) {
            if let Some(token) = tokens.iter().find(|id| !known(id)) {
                let field = if bias.is_finite() {
                    "sequence_bias"
                } else {
                    "bad_words_ids"
                };
                return Err(refuse(
                    field,
                    &format!("names token {token}, but the vocabulary has {vocabulary} tokens"),
                ));
            }
            match tokens[..] {
                [token] => *logit_bias.get_or_insert_with(token, || 0.0) += bias,
                _ => rules.sequences.push((tokens, bias)),
            }
        }
        Ok(self)
    }

    /// Returns the warnings about fields that a speech-to-text model does not apply.
    pub fn asr_warnings(config: &Value) -> Vec<String> {
        [
            unsupported_warnings(config, UNSUPPORTED),
            unsupported_warnings(config, IGNORED_BY_ASR),
        ]
        .concat()
    }
}

/// Replaces fields that store a number as a string by the number.
fn with_numbers(config: &Value) -> Value {
    let mut config = config.clone();
    for (name, value) in config.as_object_mut().into_iter().flatten() {
        let text = value.as_str().filter(|_| name != "stop_strings");
        let number = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(number) = number.filter(Value::is_number) {
            *value = number;
        }
    }
    config
}

/// Returns a warning for each listed field that is set to other than its neutral value.
fn unsupported_warnings(config: &Value, fields: &[(&str, f64)]) -> Vec<String> {
    let asks = |value: &Value, neutral: f64| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Number(number) => number.as_f64().is_some_and(|n| n != neutral && n != 0.0),
        _ => true,
    };
    let sampled = config["do_sample"] == true;
    let found = fields.iter().filter(|(name, neutral)| {
        // Contrastive search is greedy, so `penalty_alpha` has no effect on sampling.
        asks(&config[*name], *neutral) && !(*name == "penalty_alpha" && sampled)
    });

    found.map(|(name, _): &(&str, f64)| {
        let value = config[*name].to_string();
        let value = if value.len() > 40 {
            String::new()
        } else {
            format!(" = {value}")
        };
        format!(
            "generation_config.json: '{name}'{value} is not supported and is ignored; the output may differ from that of transformers."
        )
    }).collect()
}

/// Fields of generation_config.json; null counts as absent.
struct GenerationFields<'a>(&'a Value);

impl<'a> GenerationFields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name)
            .map(|value: &Value| {
                value
                    .as_f64()
                    .ok_or_else(|| refuse(name, "must be a number"))
            })
            .transpose()
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0;
        let number = self.number(name)?;
        if number.is_some_and(|n| !whole(&n)) {
            return Err(refuse(name, "must be a non-negative integer"));
        }
        Ok(number.map(|n| n as usize))
    }

    fn list(&self, name: &str) -> Result<&'a [Value]> {
        match self.get(name) {
            None => Ok(&[]),
            Some(value) => value
                .as_array()
                .map(Vec::as_slice)
                .ok_or_else(|| refuse(name, "must be a list")),
        }
    }

    /// Reads one id or a list of ids; skips negative ids.
    fn ids(&self, name: &str) -> Result<Vec<u32>> {
        let Some(value) = self.get(name) else {
            return Ok(Vec::new());
        };
        let list = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |value: &Value| {
            value
                .as_i64()
                .ok_or_else(|| refuse(name, "must be a token id or a list of them"))
        };
        let ids: Vec<i64> = list.iter().map(id).collect::<Result<_>>()?;
        Ok(ids
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok())
            .collect())
    }

    /// Reads one string or a list of strings.
    fn strings(&self, name: &str) -> Vec<String> {
        let Some(value) = self.get(name) else {
            return Vec::new();
        };
        let listed = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        value
            .as_str()
            .into_iter()
            .chain(listed)
            .filter(|text| !text.is_empty())
            .map(String::from)
            .collect()
    }
}

fn token_ids(value: &Value) -> Option<Vec<u32>> {
    value
        .as_array()?
        .iter()
        .map(|id| u32::try_from(id.as_u64()?).ok())
        .collect()
}

fn refuse(field: &str, must: &str) -> Error {
    Error::Config {
        file: "generation_config.json".into(),
        reason: format!("'{field}' {must}"),
    }
}
