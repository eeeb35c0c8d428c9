//! GGUF files that are not models: adapters, vision encoders, importance matrices, control vectors,
//! vocabularies.

use super::Gguf;
use crate::{Error, Result};

/// The metadata field of a vocabulary.
const TOKENS: &str = "tokenizer.ggml.tokens";

impl Gguf {
    /// Refuses a file that is not a model. For a split model, all headers are needed.
    ///
    /// # Errors
    /// `Config` with the kind of the file and what to load instead.
    pub fn check_is_model(&self) -> Result<()> {
        let architecture = self.architecture();
        let reason = match self.text("general.type").unwrap_or_default() {
            "adapter" => {
                let base = self.text("general.base_model.0.name");
                let of = base.map_or_else(String::new, |name| format!(" of {name}"));
                format!(
                    "this is an adapter{of}, not a model. Load the base model, then pass the adapter's \
                     safetensors files to loadAdapter; adapters in GGUF files are not supported."
                )
            }
            "imatrix" => importance_matrix(),
            _ if self.metadata.contains_key("imatrix.chunk_count") => importance_matrix(),
            _ if architecture == "clip" => {
                "this is the vision or audio encoder of a model. Put it next to the model's GGUF file, \
                 with 'mmproj' in its name, and load that file."
                    .into()
            }
            _ if architecture == "controlvector" => {
                "this is a control vector, not a model, and control vectors are not supported. Load \
                 the model's GGUF file."
                    .into()
            }
            _ if architecture.is_empty() => {
                "the GGUF metadata has no 'general.architecture'. Use another GGUF file of the model."
                    .into()
            }
            _ if self.tensors.is_empty() && self.metadata.contains_key(TOKENS) =>
            {
                "this file has a vocabulary but no weights. Load the model's GGUF file.".into()
            }
            _ => return Ok(()),
        };
        Err(Error::Config {
            file: self.file.clone(),
            reason,
        })
    }
}

fn importance_matrix() -> String {
    "this is an importance matrix (imatrix) for quantization, not a model. Load the model's GGUF file."
        .into()
}
