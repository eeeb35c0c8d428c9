//! Task and embedding settings of a GGUF file, from its metadata.

use super::sentence_transformers::SentenceTransformersConfig;
use crate::arch::{self, DenseLayer};
use crate::exec::ModelFiles;
use crate::ir::{Activation, Pooling};
use crate::{Error, Result};

/// Returns the embedding settings of a GGUF model.
pub(super) fn gguf_embedding_config(
    files: &ModelFiles,
    warnings: &mut Vec<String>,
) -> Result<SentenceTransformersConfig> {
    let Some(header) = &files.gguf else {
        return Err(Error::Internal("the GGUF header is missing".into()));
    };
    let architecture = header.architecture();
    let is_bidirectional = arch::is_bidirectional(&files.config);
    let refuse = |option: String, hint: &str| {
        Err(Error::UnsupportedOption {
            architecture: format!("GGUF {architecture}"),
            option,
            hint: hint.into(),
        })
    };
    let pooling = match header.pooling_type() {
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        Some(4) => {
            return refuse(
                "task 'embed' of a reranking model".into(),
                "Load it with the task 'rerank'.",
            );
        }
        None | Some(0) => {
            let (pooling, by) = match is_bidirectional {
                true => (Pooling::Mean, "the mean of all tokens"),
                false => (Pooling::Last, "the last token"),
            };
            warnings.push(format!(
                "{architecture}.pooling_type is missing: embeddings are {by}."
            ));
            pooling
        }
        Some(other) => {
            return refuse(
                format!("{architecture}.pooling_type = {other}"),
                "Supported: 1 (mean), 2 (cls) and 3 (last).",
            );
        }
    };
    let layers = header.dense_layers().into_iter();
    let dense = layers.map(|([outputs, inputs], path, bias)| DenseLayer {
        path: path.into(),
        inputs,
        outputs,
        bias,
        act: Activation::None,
    });
    let dense: Vec<DenseLayer> = dense.collect();
    if architecture == "gemma-embedding" && dense.is_empty() {
        warnings
            .push("The file lacks the dense layers after pooling: embeddings differ from the original model's.".into());
    }
    Ok(SentenceTransformersConfig {
        dense,
        normalize: true,
        ..SentenceTransformersConfig::with_pooling(pooling)
    })
}
