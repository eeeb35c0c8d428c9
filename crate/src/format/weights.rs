//! The weights of a checkpoint by name, with the error of each unsupported one.

use super::encoding::WeightSource;
use crate::util::map::SortedMap;
use crate::{Error, Result};

/// What to use instead of a checkpoint with an unknown `quant_method`.
const UNKNOWN_METHOD: &str = "Use a checkpoint without quantization, or one of GPTQ, AWQ, AutoRound, bitsandbytes, \
     compressed-tensors, FP8, MXFP4, NVFP4, BitNet, MLX or GGUF.";

/// The weights of a model by HuggingFace name.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    pub(super) sources: SortedMap<String, WeightSource>,
    unsupported: SortedMap<String, Error>,
    /// The `quant_method` of config.json if it is not supported.
    pub(super) unknown_method: Option<String>,
}

impl Weights {
    /// Collects weights from a list.
    pub fn from_list(list: Vec<WeightSource>) -> Weights {
        Weights {
            sources: list.into_iter().map(|s| (s.name.clone(), s)).collect(),
            ..Weights::default()
        }
    }

    /// The weight of that name.
    ///
    /// # Errors
    /// `MissingTensor`, or the reason why the weight is not supported.
    pub fn get(&self, name: &str, architecture: &str) -> Result<&WeightSource> {
        if let Some(source) = self.sources.get(name) {
            return Ok(source);
        }
        Err(match (self.unsupported.get(name), &self.unknown_method) {
            (Some(error), _) => error.clone(),
            (None, Some(method)) => Error::UnsupportedEncoding {
                tensor: name.into(),
                encoding: method.clone(),
                hint: UNKNOWN_METHOD.into(),
            },
            (None, None) => Error::MissingTensor {
                tensor: name.into(),
                architecture: architecture.into(),
            },
        })
    }

    /// Whether a weight of that name exists, supported or not.
    pub fn contains(&self, name: &str) -> bool {
        self.sources.contains_key(name) || self.unsupported.contains_key(name)
    }

    /// All supported weights, by name.
    pub fn iter(&self) -> impl Iterator<Item = &WeightSource> {
        self.sources.values()
    }

    /// The unsupported weights with their errors.
    pub fn unsupported(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.unsupported
            .iter()
            .map(|(name, error)| (name.as_str(), error))
    }

    /// All supported weights, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut WeightSource> {
        self.sources.values_mut()
    }

    /// Renames weights; a weight for which `name` returns `None` is not renamed.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<String>) {
        let renamed = |old: String| name(&old).unwrap_or(old);
        self.sources = std::mem::take(&mut self.sources)
            .into_values()
            .map(|mut source| {
                source.name = renamed(source.name);
                (source.name.clone(), source)
            })
            .collect();
        self.unsupported = std::mem::take(&mut self.unsupported)
            .into_iter()
            .map(|(old, e)| (renamed(old), e))
            .collect();
    }

    pub(super) fn insert(&mut self, name: &str, source: Result<WeightSource>) {
        match source {
            Ok(source) => drop(self.sources.insert(source.name.clone(), source)),
            Err(error) => drop(self.unsupported.insert(name.into(), error)),
        }
    }
}
