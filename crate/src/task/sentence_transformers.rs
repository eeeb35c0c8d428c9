//! Settings of sentence-transformers: pooling, dense layers, normalization, prompts and lengths, in
//! old and new file formats.

use crate::arch::{DenseLayer, EncoderHead};
use crate::hub::Source;
use crate::ir::{Activation, Pooling};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;

/// Model types in file names `sentence_{type}_config.json`; the first file found is used.
const CONFIG_MODEL_TYPES: [&str; 7] = [
    "bert",
    "roberta",
    "distilbert",
    "camembert",
    "albert",
    "xlm-roberta",
    "xlnet",
];

/// Settings that turn text into embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct SentenceTransformersConfig {
    /// Pooling of token rows into one row.
    pub pooling: Pooling,
    /// Whether pooling includes the prompt's tokens.
    pub include_prompt: bool,
    /// Dense layers after pooling.
    pub dense: Vec<DenseLayer>,
    /// Whether embeddings are scaled to length 1.
    pub normalize: bool,
    /// Prompts by name.
    pub prompts: SortedMap<String, String>,
    /// Name of the default prompt.
    pub default_prompt: Option<String>,
    /// Maximum input length in tokens.
    pub max_length: Option<usize>,
    /// Whether input is lowercased before tokenization.
    pub lower_case: bool,
    /// Padding token, and the length that inputs are padded to.
    pub padding: Option<(u32, usize)>,
}

impl SentenceTransformersConfig {
    /// Returns the settings of a checkpoint without files of sentence-transformers.
    pub fn with_pooling(pooling: Pooling) -> Self {
        Self {
            pooling,
            include_prompt: true,
            dense: Vec::new(),
            normalize: false,
            prompts: SortedMap::new(),
            default_prompt: None,
            max_length: None,
            lower_case: false,
            padding: None,
        }
    }

    /// Reads modules.json and the files it names. None without modules.json or without a Pooling
    /// module.
    ///
    /// # Errors
    /// `Config` for a file that does not parse; `UnsupportedOption` for an unsupported module.
    pub async fn read(source: &Source) -> Result<Option<Self>> {
        let Some(modules) = read_json(source, "modules.json").await? else {
            return Ok(None);
        };
        let modules: Vec<(String, String)> = modules
            .as_array()
            .into_iter()
            .flatten()
            .map(parse_module)
            .collect();
        if !modules.iter().any(|(kind, _)| kind == "Pooling") {
            return Ok(None);
        }
        let mut config = Self::with_pooling(Pooling::Mean);
        for (kind, path) in &modules {
            let own = format!("{path}/config.json");
            match kind.as_str() {
                "Transformer" | "Dropout" => {}
                _ if config.normalize => {
                    return Err(unsupported(&format!("{kind} after Normalize")));
                }
                "Pooling" => {
                    config.read_pooling(&read_json(source, &own).await?.unwrap_or_default())?;
                }
                "Dense" => {
                    let settings = read_json(source, &own).await?.unwrap_or_default();
                    config.dense.push(parse_dense(&own, path, &settings)?);
                }
                "Normalize" => config.normalize = true,
                other => return Err(unsupported(other)),
            }
        }
        // The Transformer module may have its own folder.
        let own = modules
            .iter()
            .find(|(kind, path)| kind == "Transformer" && !path.is_empty());
        let folders = own
            .map(|(_, path)| format!("{path}/"))
            .into_iter()
            .chain([String::new()]);
        let files = folders.flat_map(|folder| {
            CONFIG_MODEL_TYPES.map(|kind| format!("{folder}sentence_{kind}_config.json"))
        });
        for file in files.collect::<Vec<_>>() {
            let own = read_json(source, &file).await?;
            let Some(own) = own.filter(|own| own.as_object().is_some_and(|o| !o.is_empty())) else {
                continue;
            };
            let count =
                |value: Option<&Value>| value.and_then(Value::as_u64).filter(|n| *n < 1 << 24);
            let of_tokenizer = ["tokenizer_args", "processor_kwargs"]
                .iter()
                .find_map(|name| own.get(*name));
            let named = count(of_tokenizer.and_then(|args| args.get("model_max_length")));
            config.max_length = named
                .or(count(own.get("max_seq_length")))
                .map(|n| n as usize);
            config.lower_case = own
                .get("do_lower_case")
                .and_then(Value::as_bool)
                .unwrap_or(false);
            break;
        }
        if let Some(own) = read_json(source, "config_sentence_transformers.json").await? {
            let prompts = own
                .get("prompts")
                .and_then(Value::as_object)
                .into_iter()
                .flatten();
            config.prompts = prompts
                .filter_map(|(n, p)| Some((n.clone(), p.as_str()?.to_string())))
                .collect();
            config.default_prompt = own
                .get("default_prompt_name")
                .and_then(Value::as_str)
                .map(str::to_string);
        }
        Ok(Some(config))
    }

    /// The head that pools tokens and applies the dense layers.
    pub fn head(&self) -> EncoderHead {
        EncoderHead::Vector {
            pooling: self.pooling,
            dense: self.dense.clone(),
        }
    }

    fn read_pooling(&mut self, settings: &Value) -> Result<()> {
        let named = |mode: &str| {
            Some(match mode {
                "mean" => Pooling::Mean,
                "cls" => Pooling::First,
                "lasttoken" => Pooling::Last,
                "max" => Pooling::Max,
                "mean_sqrt_len_tokens" => Pooling::MeanSqrt,
                "weightedmean" => Pooling::Weighted,
                _ => return None,
            })
        };
        let flags = [
            ("pooling_mode_cls_token", Pooling::First),
            ("pooling_mode_mean_tokens", Pooling::Mean),
            ("pooling_mode_max_tokens", Pooling::Max),
            ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrt),
            ("pooling_mode_weightedmean_tokens", Pooling::Weighted),
            ("pooling_mode_lasttoken", Pooling::Last),
        ];
        let set = |name: &str| settings.get(name).and_then(Value::as_bool).unwrap_or(false);
        let chosen: Vec<Pooling> = match settings.get("pooling_mode") {
            Some(Value::String(mode)) => named(mode).into_iter().collect(),
            Some(Value::Array(modes)) => modes.iter().filter_map(|m| named(m.as_str()?)).collect(),
            _ => flags
                .iter()
                .filter(|(name, _)| set(name))
                .map(|(_, pooling)| *pooling)
                .collect(),
        };
        match chosen[..] {
            [one] => self.pooling = one,
            [] if settings.get("pooling_mode").is_none() => self.pooling = Pooling::Mean,
            _ => return Err(unsupported("Pooling with several modes or an unknown one")),
        }
        self.include_prompt = settings
            .get("include_prompt")
            .and_then(Value::as_bool)
            .unwrap_or(true);
        Ok(())
    }

    /// Returns the prompt put before each input: `prompt` itself, else the one named by `task`,
    /// else the default.
    ///
    /// # Errors
    /// `Request` for a task without a prompt, except `query` and `document`.
    pub fn prompt<'a>(&'a self, task: Option<&str>, prompt: Option<&'a str>) -> Result<&'a str> {
        if let Some(prompt) = prompt {
            return Ok(prompt);
        }
        let find = |name: &str| self.prompts.get(name).map(String::as_str);
        match task {
            None => Ok(self.default_prompt.as_deref().and_then(find).unwrap_or("")),
            Some("document") => Ok(["document", "passage", "corpus"]
                .into_iter()
                .find_map(find)
                .unwrap_or("")),
            Some("query") => Ok(find("query").unwrap_or("")),
            Some(name) => find(name).ok_or_else(|| {
                let known: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
                let known = if known.is_empty() {
                    "none".to_string()
                } else {
                    known.join(", ")
                };
                Error::Request {
                    parameter: "task".into(),
                    reason: format!("unknown prompt '{name}'. This model has: {known}."),
                }
            }),
        }
    }
}

/// Returns a module's type without its package, and its folder.
fn parse_module(value: &Value) -> (String, String) {
    let text = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_string()
    };
    let kind = text("type");
    (
        kind.rsplit('.').next().unwrap_or("").to_string(),
        text("path"),
    )
}

fn parse_dense(file: &str, path: &str, settings: &Value) -> Result<DenseLayer> {
    let count = |name: &str| {
        let number = settings
            .get(name)
            .and_then(Value::as_u64)
            .filter(|n| (1..1 << 20).contains(n));
        let reason = || format!("'{name}' is missing or not an integer from 1 to 1048575");
        number.map(|n| n as usize).ok_or_else(|| Error::Config {
            file: file.into(),
            reason: reason(),
        })
    };
    if settings.get("use_residual").and_then(Value::as_bool) == Some(true) {
        return Err(unsupported("Dense with use_residual"));
    }
    let name = settings
        .get("activation_function")
        .and_then(Value::as_str)
        .unwrap_or("torch.nn.modules.activation.Tanh");
    let act = match name.rsplit('.').next().unwrap_or("") {
        "Identity" => Activation::None,
        "Tanh" => Activation::Tanh,
        "GELU" => Activation::Gelu,
        "ReLU" => Activation::Relu,
        "SiLU" => Activation::Silu,
        "Sigmoid" => Activation::Sigmoid,
        other => return Err(unsupported(&format!("Dense with {other}"))),
    };
    let bias = settings
        .get("bias")
        .and_then(Value::as_bool)
        .unwrap_or(true);
    Ok(DenseLayer {
        path: path.into(),
        inputs: count("in_features")?,
        outputs: count("out_features")?,
        bias,
        act,
    })
}

fn unsupported(module: &str) -> Error {
    Error::UnsupportedOption {
        architecture: "sentence-transformers".into(),
        option: format!("{module} in modules.json"),
        hint: "Supported: Transformer, Pooling with one mode, Dense and Normalize, in this order."
            .into(),
    }
}

/// Reads a JSON file; None if it is missing.
pub(super) async fn read_json(source: &Source, file: &str) -> Result<Option<Value>> {
    let Some(bytes) = source.read_optional(file).await? else {
        return Ok(None);
    };

    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e: serde_json::Error| Error::Config {
            file: file.into(),
            reason: format!("is not JSON: {e}"),
        })
}
