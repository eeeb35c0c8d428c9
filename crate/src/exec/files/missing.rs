//! Explains a missing config.json or missing weights by the files that are present.

use crate::hub::{SINGLE_FILE_NAME, Source};
use crate::{Error, Result};
use serde_json::Value;

/// Maximum number of files that a message lists.
const MAX_LISTED: usize = 3;
/// Ends of the names of weight files in formats that are not read.
const OTHER_FORMATS: [&str; 8] = [
    ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".npz",
];

const CONFIG_FILE: &str = "config.json";

/// Returns the error of a source without config.json or weights with a hint by the files that it
/// has; `error` unchanged if it is another one, or if they explain nothing.
pub(crate) async fn explain_missing(source: &Source, error: Error) -> Error {
    let file = match &error {
        Error::MissingFile { file, .. } if file == SINGLE_FILE_NAME => SINGLE_FILE_NAME,
        Error::MissingFile { file, .. } if file != CONFIG_FILE => return error,
        Error::MissingFile { .. } | Error::NotFound { .. } => CONFIG_FILE,
        _ => return error,
    };
    let hint = match adapter_hint(source).await {
        Ok(Some(hint)) => Some(hint),
        // The name or the revision may be wrong.
        _ if matches!(error, Error::NotFound { .. }) => None,
        _ => {
            let names = source.list().await.unwrap_or_default();
            found_hint(names, file == CONFIG_FILE)
        }
    };
    match hint {
        Some(hint) => Error::MissingFile {
            file: file.into(),
            location: source.name().into(),
            hint,
        },
        None => error,
    }
}

/// The hint for a source that is an adapter.
async fn adapter_hint(source: &Source) -> Result<Option<String>> {
    let Some(bytes) = source.read_optional("adapter_config.json").await? else {
        return Ok(None);
    };
    let config: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let base = ["base_model_name_or_path", "model"]
        .iter()
        .find_map(|field| config[*field].as_str())
        .filter(|base| !base.is_empty());
    let base = base.map_or_else(|| "its base model".to_owned(), |base| format!("'{base}'"));
    let kind = config["peft_type"].as_str().unwrap_or("LORA");
    Ok(Some(if config.get("fine_tune_type").is_some() {
        format!(
            "This is an MLX adapter of {base}, which is not supported. Merge it with mlx_lm.fuse, and load the result."
        )
    } else if kind == "LORA" {
        format!(
            "This is a LoRA adapter of {base}. Load {base}, then pass the adapter to model.loadAdapter."
        )
    } else {
        format!(
            "This is an adapter of {base} of the type {kind}, which is not supported. Merge it with peft's merge_and_unload, and load the result."
        )
    }))
}

/// The hint for weights under other names, or a configuration in a subfolder.
fn found_hint(mut names: Vec<String>, needs_config: bool) -> Option<String> {
    names.sort();
    let ending = |ends: &[&str]| -> Vec<&String> {
        let has_end = |name: &&String| ends.iter().any(|end| name.ends_with(end));
        names.iter().filter(has_end).collect()
    };
    let below = ending(&["/config.json"]);
    let weights = ending(&[".safetensors"]);
    let others = ending(&OTHER_FORMATS);
    let any = |part: &str| weights.iter().any(|name| name.contains(part));

    let (found, advice) = if needs_config && !below.is_empty() {
        (
            below,
            "Pass the folder that has config.json and the weights.",
        )
    } else if any("consolidated") {
        let advice = "These weights have other tensor names than those of transformers: choose a repository with model.safetensors, or convert them.";
        (weights, advice)
    } else if needs_config {
        let advice = "Add the config.json that transformers' save_pretrained writes, or choose a repository that has it.";
        (weights, advice)
    } else if any("-of-") {
        let advice = "Add model.safetensors.index.json, which lists the shards under their names.";
        (weights, advice)
    } else if weights.iter().any(|name| !name.contains('/')) {
        (weights, "Rename the model's weights to model.safetensors.")
    } else if !weights.is_empty() {
        let advice =
            "Move the model's weights next to config.json, with the name model.safetensors.";
        (weights, advice)
    } else {
        let advice = "Convert the weights to safetensors, or choose a repository that has them.";
        (others, advice)
    };
    (!found.is_empty()).then(|| format!("Found: {}. {advice}", listed(&found)))
}

fn listed(names: &[&String]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_LISTED).map(|n| n.as_str()).collect();
    let more = names.len().saturating_sub(MAX_LISTED);
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
