//! The part that embedding and reranking models share: an encoder with its tokenizer, opened from
//! safetensors or GGUF.

use super::kind::Task;
use super::language_model::{Provenance, common_info};
use super::serves_task::{LoadFuture, TaskFiles};
use super::text_pipeline::{TextPipeline, TokenizerSources};
use crate::arch::{EncoderHead, LoadConfig};
use crate::exec::{EncoderModel, ModelFiles, RunOptions, explain_missing};
use crate::gpu::Gpu;
use crate::hub::{Phase, Source};
use crate::{Error, Result};
use serde_json::{Value, json};
use std::rc::Rc;

/// A loaded encoder with its tokenizer.
pub struct TextEncoder {
    /// Encoder graph and weights.
    pub model: EncoderModel,
    /// Tokenizer and chat template.
    pub text: Rc<TextPipeline>,
    /// Name, revision and warnings of the load.
    pub origin: Provenance,
}

/// Tokenizer files of an encoder, and what they say about its inputs.
pub(super) struct EncoderText {
    /// The files.
    pub sources: TokenizerSources,
    /// Maximum input length in tokens, if the files name one.
    pub max_length: Option<usize>,
    /// Warnings of the files.
    pub warnings: Vec<String>,
}

impl EncoderText {
    /// Reads the tokenizer files of a folder or a GGUF file.
    ///
    /// # Errors
    /// Errors of the source or the tokenizer.
    pub async fn read(source: &Source, files: &ModelFiles) -> Result<Self> {
        source.progress().phase(Phase::Tokenizer);
        let mut warnings = Vec::new();
        let sources = match &files.gguf {
            Some(header) => {
                warnings.extend(header.warnings());
                TokenizerSources::from_gguf(header)?
            }
            None => TokenizerSources::from_source(source).await?,
        };
        let config = sources.tokenizer_config.as_deref();
        Ok(Self {
            max_length: model_max_length(config, &files.config),
            sources,
            warnings,
        })
    }
}

impl TextEncoder {
    /// Loads the weights of opened files.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub(super) async fn load(
        gpu: Gpu,
        (source, name): (&Source, &str),
        files: ModelFiles,
        head: &EncoderHead,
        (text, max_length): (TextPipeline, Option<usize>),
        mut warnings: Vec<String>,
        options: RunOptions,
    ) -> Result<Self> {
        let progress = source.progress();
        progress.phase(Phase::Weights);
        let model = EncoderModel::load(gpu, source, files, head, max_length, options).await?;
        if let Some(tokenizer) = text.tokenizer.as_ref().filter(|_| model.vocab() > 0) {
            tokenizer.check_added_ids(model.vocab())?;
        }
        progress.phase(Phase::Ready);
        warnings.extend(source.warnings().iter().map(ToString::to_string));
        warnings.extend(text.warning());
        Ok(Self {
            model,
            text: Rc::new(text),
            origin: Provenance {
                name: name.to_string(),
                revision: source.commit(),
                warnings,
            },
        })
    }

    /// Returns `model.info` as JSON.
    pub(super) fn info(&self, task: Task) -> Value {
        let Self {
            model,
            text,
            origin,
        } = self;
        let mut info = common_info(&model.gpu, &model.config, model.weights(), model.bytes);
        info["model"] = json!(origin.name);
        info["revision"] = json!(origin.revision);
        info["architecture"] = json!(model.graph().name);
        info["task"] = json!(task.name());
        info["parameters"] = json!(model.parameters());
        info["precision"] = json!(model.precision.name());
        info["contextLength"] = json!(model.max_sequence_len);
        info["vocabSize"] = json!(model.vocab());
        info["dispatchesPerBatch"] = json!(model.dispatches());
        info["load"] = json!(model.load);
        info["hasChatTemplate"] = json!(text.has_template());
        info["warnings"] = json!(origin.warnings);
        info
    }
}

/// Opens the files of an embedding or reranking model: safetensors with those of its modules, or
/// else the preferred GGUF file.
#[inline(never)]
pub(super) fn open_encoder<'a>(
    source: &'a Source,
    files: TaskFiles,
    folders: &'a [&'a str],
) -> LoadFuture<'a, ModelFiles> {
    Box::pin(async move {
        let config = match files {
            TaskFiles::Container(files) => return Ok(*files),
            TaskFiles::Folder { config, .. } => *config,
        };
        match ModelFiles::encoder(source, config, folders).await {
            Err(error @ Error::MissingFile { .. }) => {
                match ModelFiles::preferred_gguf(source).await? {
                    Some(files) => Ok(files),
                    None => Err(explain_missing(source, error).await),
                }
            }
            files => files,
        }
    })
}

/// Returns the maximum input length in tokens: `model_max_length` of tokenizer_config.json, at most
/// the model's positions. None for values from 1e7 on, which mean "no limit".
fn model_max_length(tokenizer_config: Option<&[u8]>, config: &LoadConfig) -> Option<usize> {
    let tokenizer: Value = serde_json::from_slice(tokenizer_config?).ok()?;
    let allowed = tokenizer
        .get("model_max_length")
        .and_then(Value::as_f64)
        .filter(|n| (1.0..1e7).contains(n))?;
    let positions = config
        .get("max_position_embeddings")
        .and_then(Value::as_f64)
        .filter(|n| *n >= 1.0);
    Some(positions.map_or(allowed, |n| n.min(allowed)) as usize)
}
