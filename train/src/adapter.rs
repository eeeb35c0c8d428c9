//! Adapters in peft's format: adapter_config.json and adapter_model.safetensors.

use crate::tensors::{NamedTensor, read_safetensors, write_safetensors};
use jerboa::{Error, Result};
use serde_json::{Value, json};

/// File of an adapter's settings.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// File of an adapter's weights.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// peft's name of the task of text models.
pub const CAUSAL_LM: &str = "CAUSAL_LM";
/// peft's name of the task of embedding models.
pub const FEATURE_EXTRACTION: &str = "FEATURE_EXTRACTION";

/// A tensor of an adapter, f32.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterTensor {
    /// Name, with peft's prefix.
    pub name: String,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Values, row after row.
    pub values: Vec<f32>,
}

/// A LoRA adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraAdapter {
    /// Rank of the updates.
    pub rank: usize,
    /// The updates are multiplied by alpha / rank.
    pub alpha: f32,
    /// Name of the model.
    pub base: String,
    /// Last names of the updated matrices.
    pub targets: Vec<String>,
    /// Whether the model stores its matrices transposed (GPT-2).
    pub transposed: bool,
    /// peft's name of the model's task, such as [`CAUSAL_LM`].
    pub task_type: String,
    /// The factors of all updates.
    pub tensors: Vec<AdapterTensor>,
}

impl LoraAdapter {
    /// The text of adapter_config.json.
    pub fn config(&self) -> String {
        let config = json!({
            "base_model_name_or_path": self.base,
            "bias": "none",
            "fan_in_fan_out": self.transposed,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": self.targets,
            "task_type": self.task_type,
            "use_dora": false,
            "use_rslora": false,
        });
        format!("{config:#}\n")
    }

    /// The bytes of adapter_model.safetensors.
    pub fn safetensors(&self) -> Vec<u8> {
        let named = |tensor: &AdapterTensor| NamedTensor {
            name: tensor.name.clone(),
            shape: tensor.shape.to_vec(),
            values: tensor.values.clone(),
        };
        write_safetensors(&self.tensors.iter().map(named).collect::<Vec<NamedTensor>>())
    }

    /// Reads an adapter with factors of F32, F16 or BF16, from its two files.
    ///
    /// # Errors
    /// `Malformed` for damaged files or other element types.
    pub fn parse(config: &[u8], weights: &[u8]) -> Result<Self> {
        let fault = |file: &str, reason: String| Error::Malformed {
            file: file.into(),
            format: "peft",
            reason,
        };
        let config: Value = serde_json::from_slice(config)
            .map_err(|e| fault(CONFIG_FILE, format!("invalid JSON: {e}")))?;
        let tensors = parse_tensors(weights).map_err(|reason| fault(WEIGHTS_FILE, reason))?;
        let targets = config["target_modules"].as_array();
        let targets = targets.into_iter().flatten();
        Ok(Self {
            rank: config["r"].as_u64().unwrap_or(8) as usize,
            alpha: config["lora_alpha"].as_f64().unwrap_or(8.0) as f32,
            base: config["base_model_name_or_path"]
                .as_str()
                .unwrap_or("")
                .into(),
            targets: targets
                .filter_map(|target| Some(target.as_str()?.to_owned()))
                .collect(),
            transposed: config["fan_in_fan_out"] == Value::Bool(true),
            task_type: config["task_type"].as_str().unwrap_or(CAUSAL_LM).into(),
            tensors,
        })
    }
}

fn parse_tensors(bytes: &[u8]) -> Result<Vec<AdapterTensor>, String> {
    let matrix = |tensor: NamedTensor| {
        let shape = tensor.shape.try_into();
        Ok(AdapterTensor {
            shape: shape.map_err(|_| format!("{} is not a matrix", tensor.name))?,
            name: tensor.name,
            values: tensor.values,
        })
    };
    read_safetensors(bytes)?.into_iter().map(matrix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter() -> LoraAdapter {
        let tensor = |name: &str, shape: [usize; 2]| AdapterTensor {
            name: name.into(),
            shape,
            values: (0..shape[0] * shape[1]).map(|i| i as f32 - 2.5).collect(),
        };
        LoraAdapter {
            rank: 2,
            alpha: 3.0,
            base: "org/name".into(),
            targets: vec!["q_proj".into()],
            transposed: false,
            task_type: FEATURE_EXTRACTION.into(),
            tensors: vec![
                tensor("a.lora_A.weight", [2, 3]),
                tensor("a.lora_B.weight", [5, 2]),
            ],
        }
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let adapter = adapter();
        let read = LoraAdapter::parse(adapter.config().as_bytes(), &adapter.safetensors());
        assert_eq!(read.expect("an adapter"), adapter);
    }

    #[test]
    fn damaged_files_are_refused() {
        let adapter = adapter();
        let config = adapter.config();
        let weights = adapter.safetensors();
        for end in [0, 7, 8, 40, weights.len() - 1] {
            let error = LoraAdapter::parse(config.as_bytes(), &weights[..end]);
            assert!(error.is_err(), "{end} bytes");
        }
        assert!(LoraAdapter::parse(b"{", &weights).is_err());
    }
}
