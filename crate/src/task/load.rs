//! Loads a model for its task: generate, embed, rerank, transcribe or speak. The caller or the
//! files name the task.

use super::chat_model::ChatModel;
use super::embed::Embedder;
use super::gguf::{can_generate, gguf_embedding_config, gguf_task};
use super::kind::Task;
use super::rerank::{PromptStyle, Reranker};
use super::sentence_transformers::SentenceTransformersConfig;
use super::speak::SpeechSynthesizer;
use super::text_pipeline::{TextPipeline, TokenizerSources};
use super::transcribe::Transcriber;
use crate::arch::{self, EncoderHead, LoadConfig};
use crate::exec::{EncoderModel, ModelFiles, RunOptions};
use crate::format::gguf::Gguf;
use crate::gpu::{Backend, Gpu};
use crate::hub::{Phase, Source};
use crate::ir::Pooling;
use crate::{Error, Result};
use serde_json::Value;
use std::pin::Pin;
use std::rc::Rc;

/// A loaded model of any task.
pub enum TaskModel {
    /// Text generation.
    Generate(Box<ChatModel>),
    /// Embedding of text, and of images for joint models.
    Embed(Box<Embedder>),
    /// Scoring of documents for a query.
    Rerank(Box<Reranker>),
    /// Speech to text.
    Transcribe(Box<Transcriber>),
    /// Text to speech.
    Speak(Box<SpeechSynthesizer>),
}

impl TaskModel {
    /// Loads a model for `task`, or for the task that its files imply.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        name: &str,
        task: Option<Task>,
        options: RunOptions,
    ) -> Result<Self> {
        Self::load_with(gpu, source, None, name, task, options).await
    }

    /// Loads a model together with the audio codec that text-to-speech models need.
    ///
    /// # Errors
    /// As [`Self::load`]; `Request` for a text-to-speech model without a codec.
    pub async fn load_with(
        gpu: Gpu,
        source: &Source,
        codec: Option<&Source>,
        name: &str,
        task: Option<Task>,
        options: RunOptions,
    ) -> Result<Self> {
        source.progress().phase(Phase::Config);
        // A GGUF file that the caller names holds its own configuration.
        let config = if source.gguf().is_some() {
            None
        } else {
            ModelFiles::config(source).await?
        };
        let sentence = match (&config, task) {
            (None, _) | (_, Some(Task::Generate)) => None,
            _ => SentenceTransformersConfig::read(source).await?,
        };
        let Some(config) = config else {
            return of_container(gpu, source, name, task, options).await;
        };

        let task = task.unwrap_or_else(|| {
            if codec.is_some() {
                Task::Speak
            } else {
                infer_task(&config, sentence.is_some(), name)
            }
        });
        task.check(&config, name)?;
        match task {
            Task::Speak => {
                let reason =
                    "a text-to-speech model needs an audio codec. Name its repository in 'codec'."
                        .into();
                let codec = codec.ok_or(Error::Request {
                    parameter: "codec".into(),
                    reason,
                })?;
                Ok(Self::Speak(Box::new(
                    SpeechSynthesizer::load(gpu, source, codec, name, options).await?,
                )))
            }
            Task::Generate => Ok(Self::Generate(Box::new(
                Box::pin(ChatModel::load(gpu, source, name, options)).await?,
            ))),
            Task::Embed => {
                let modules = sentence.iter().flat_map(|sentence| &sentence.dense);
                let folders: Vec<&str> = modules.map(|dense| dense.path.as_str()).collect();
                let files = open_encoder(source, config, &folders).await?;
                let model = load_embedder(gpu, source, name, files, sentence, options).await?;
                Ok(Self::Embed(Box::new(model)))
            }
            Task::Rerank => {
                let files = open_encoder(source, config, &[]).await?;
                let model = load_reranker(gpu, source, name, files, options).await?;
                Ok(Self::Rerank(Box::new(model)))
            }
            Task::Transcribe => Ok(Self::Transcribe(Box::new(
                Transcriber::load(gpu, source, name, options).await?,
            ))),
        }
    }

    /// Loads a GGUF file or an MLC repository, which hold their own configuration.
    async fn of_container(
        gpu: Gpu,
        source: &Source,
        name: &str,
        task: Option<Task>,
        options: RunOptions,
    ) -> Result<Self> {
        let files = open_files(source).await?;

        let own = files.gguf.as_ref().map_or(Task::Generate, |header: &Gguf| {
            gguf_task(header).unwrap_or_else(|| infer_task(&files.config, false, name))
        });
        let refuse = |reason: String| {
            Err(Error::Request {
                parameter: "task".into(),
                reason,
            })
        };
        match (task.unwrap_or(own), &files.gguf) {
            (Task::Generate, _) if own == Task::Embed && !can_generate(&files) => {
                refuse("'generate' is not possible: the attention of this model is bidirectional. Use 'embed'.".into())
            }
            (Task::Generate, _) => load_chat_model(gpu, source, files, name, options).await,
            (Task::Embed, Some(_)) => {
                let model = load_embedder(gpu, source, name, files, None, options).await?;
                Ok(Self::Embed(Box::new(model)))
            }
            (Task::Rerank, Some(_)) => {
                let model = load_reranker(gpu, source, name, files, options).await?;
                Ok(Self::Rerank(Box::new(model)))
            }
            (other, Some(_)) => refuse(format!(
                "GGUF models support generate, embed and rerank, not '{}'. Load the original safetensors.",
                other.name()
            )),
            (other, None) => refuse(format!(
                "MLC models support generate only, not '{}'. Load the original checkpoint.",
                other.name()
            )),
        }
    }

    /// Returns `model.info` as JSON, with the JavaScript API's field names.
    pub fn info(&self) -> Value {
        match self {
            Self::Generate(model) => model.info(),
            Self::Embed(model) => model.info(),
            Self::Rerank(model) => model.info(),
            Self::Transcribe(model) => model.info(),
            Self::Speak(model) => model.info(),
        }
    }

    /// Tokenizer and chat template.
    pub fn text(&self) -> &Rc<TextPipeline> {
        match self {
            Self::Generate(model) => &model.text,
            Self::Embed(model) => &model.text,
            Self::Rerank(model) => &model.text,
            Self::Transcribe(model) => &model.text,
            Self::Speak(model) => &model.text,
        }
    }

    /// Returns the device.
    pub fn gpu(&self) -> &Gpu {
        match self {
            Self::Generate(loaded) => loaded.session.gpu(),
            Self::Embed(model) => &model.encoder.gpu,
            Self::Rerank(model) => &model.encoder.gpu,
            Self::Transcribe(model) => model.session.gpu(),
            Self::Speak(model) => model.session.gpu(),
        }
    }

    /// Returns the model's task.
    pub fn task(&self) -> Task {
        match self {
            Self::Generate(_) => Task::Generate,
            Self::Embed(_) => Task::Embed,
            Self::Rerank(_) => Task::Rerank,
            Self::Transcribe(_) => Task::Transcribe,
            Self::Speak(_) => Task::Speak,
        }
    }

    /// Bytes of GPU memory in use.
    pub fn gpu_bytes(&self) -> u64 {
        self.gpu().resource_counts().bytes
    }
}

/// A boxed load future. Separate `#[inline(never)]` functions build each one, so that the futures
/// of callers stay small: a page has a short stack.
type LoadFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

#[inline(never)]
fn of_container<'a>(
    gpu: Gpu,
    source: &'a Source,
    name: &'a str,
    task: Option<Task>,
    options: RunOptions,
) -> LoadFuture<'a, TaskModel> {
    Box::pin(TaskModel::of_container(gpu, source, name, task, options))
}

#[inline(never)]
fn load_chat_model<'a>(
    gpu: Gpu,
    source: &'a Source,
    files: ModelFiles,
    name: &'a str,
    options: RunOptions,
) -> LoadFuture<'a, TaskModel> {
    let load = ChatModel::load_opened(gpu, source, files, name, options);
    Box::pin(async move { Ok(TaskModel::Generate(Box::new(load.await?))) })
}

#[inline(never)]
fn load_embedder<'a>(
    gpu: Gpu,
    source: &'a Source,
    name: &'a str,
    files: ModelFiles,
    sentence: Option<SentenceTransformersConfig>,
    options: RunOptions,
) -> LoadFuture<'a, Embedder> {
    Box::pin(build_embedder(gpu, source, name, files, sentence, options))
}

#[inline(never)]
fn load_reranker<'a>(
    gpu: Gpu,
    source: &'a Source,
    name: &'a str,
    files: ModelFiles,
    options: RunOptions,
) -> LoadFuture<'a, Reranker> {
    Box::pin(build_reranker(gpu, source, name, files, options))
}

#[inline(never)]
fn open_files(source: &Source) -> LoadFuture<'_, ModelFiles> {
    Box::pin(ModelFiles::open(source, None))
}

/// Infers the task from the files. A decoder is a reranker only if its name contains "reranker".
fn infer_task(config: &LoadConfig, pools: bool, name: &str) -> Task {
    if config.class().ends_with("ForSequenceClassification") {
        return Task::Rerank;
    }
    if arch::is_speech_to_text(config) {
        return Task::Transcribe;
    }
    if config.get("tokens_per_frame").is_some() {
        return Task::Speak;
    }
    if pools || arch::is_encoder(config) {
        return Task::Embed;
    }
    let last = name
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or("")
        .to_lowercase();
    if last.contains("reranker") {
        Task::Rerank
    } else {
        Task::Generate
    }
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

/// Opens the files of an embedding or reranking model: safetensors, or else the preferred GGUF
/// file.
async fn open_encoder(source: &Source, config: LoadConfig, folders: &[&str]) -> Result<ModelFiles> {
    match ModelFiles::encoder(source, config, folders).await {
        Err(error @ Error::MissingFile { .. }) => {
            ModelFiles::preferred_gguf(source).await?.ok_or(error)
        }
        files => files,
    }
}

/// Reads the tokenizer files of a folder or a GGUF file.
async fn text_files(
    source: &Source,
    files: &ModelFiles,
    warnings: &mut Vec<String>,
) -> Result<TokenizerSources> {
    match &files.gguf {
        Some(header) => {
            warnings.extend(header.warnings());
            TokenizerSources::from_gguf(header)
        }
        None => TokenizerSources::from_source(source).await,
    }
}

async fn build_embedder(
    gpu: Gpu,
    source: &Source,
    name: &str,
    mut files: ModelFiles,
    sentence: Option<SentenceTransformersConfig>,
    options: RunOptions,
) -> Result<Embedder> {
    let progress = source.progress();
    let mut warnings = Vec::new();
    let sentence = match &files.gguf {
        Some(_) => Some(gguf_embedding_config(&files, &mut warnings)?),
        None => sentence,
    };
    let shared = arch::joint_embedding(&files.config);
    let mut sentence = sentence.unwrap_or_else(|| {
        if shared.is_some() {
            return SentenceTransformersConfig {
                normalize: true,
                ..SentenceTransformersConfig::with_pooling(Pooling::Last)
            };
        }
        let decoder = !arch::is_encoder(&files.config);
        warnings.push(
            "modules.json is missing: embeddings use the default pooling of sentence-transformers."
                .to_string(),
        );
        SentenceTransformersConfig::with_pooling(if decoder {
            Pooling::Last
        } else {
            Pooling::Mean
        })
    });
    let head = EncoderHead::Vector {
        pooling: sentence.pooling,
        dense: sentence.dense.clone(),
    };
    let positions = files.headless_encoder()?.positions();
    progress.phase(Phase::Tokenizer);
    let text = text_files(source, &files, &mut warnings).await?;
    if shared.is_some() {
        sentence.max_length = Some(positions.max_tokens);
    }
    let padding = text.pad_token();
    let longest = sentence.max_length.or(model_max_length(
        text.tokenizer_config.as_deref(),
        &files.config,
    ));
    let text = text.build()?;
    if shared.is_some_and(|s| s.padded) {
        let named = padding.and_then(|token| text.tokenizer().ok()?.token_to_id(&token));
        let own = files
            .config
            .get("text_config")
            .and_then(|c| c.get("pad_token_id"))
            .and_then(Value::as_u64);
        let token = named.unwrap_or(own.unwrap_or(1) as u32);
        sentence = SentenceTransformersConfig {
            lower_case: true,
            padding: Some((token, positions.max_tokens)),
            ..sentence
        };
    }
    progress.phase(Phase::Weights);
    let encoder = EncoderModel::load(gpu, source, files, &head, longest, options).await?;
    if let Some(tokenizer) = text.tokenizer.as_ref().filter(|_| encoder.vocab() > 0) {
        tokenizer.check_added_ids(encoder.vocab())?;
    }
    progress.phase(Phase::Ready);
    warnings.extend(
        source
            .warnings()
            .iter()
            .map(ToString::to_string)
            .chain(text.warning()),
    );
    let name = name.to_string();
    let revision = source.commit();

    Ok(Embedder {
        encoder,
        text: Rc::new(text),
        config: sentence,
        name,
        revision,
        warnings,
        vision: None,
    })
}

async fn build_reranker(
    gpu: Gpu,
    source: &Source,
    name: &str,
    files: ModelFiles,
    options: RunOptions,
) -> Result<Reranker> {
    let progress = source.progress();
    progress.phase(Phase::Tokenizer);
    let config = &files.config;
    let mut warnings = Vec::new();
    let text = text_files(source, &files, &mut warnings).await?;
    let longest = model_max_length(text.tokenizer_config.as_deref(), config);
    let text = text.build()?;
    let architecture = config.class();
    let (head, asking) = if architecture.ends_with("ForSequenceClassification") {
        (EncoderHead::Score, PromptStyle::Pair)
    } else {
        let find = |token: &str| {
            let reason = || {
                format!(
                    "the vocabulary lacks the reranker's answer '{token}'. Use the original tokenizer."
                )
            };
            let id = text.tokenizer().ok().and_then(|t| t.token_to_id(token));
            id.ok_or_else(|| Error::Tokenizer { reason: reason() })
        };
        (
            EncoderHead::LogitDifference {
                yes: find("yes")?,
                no: Some(find("no")?),
            },
            PromptStyle::YesNo,
        )
    };
    let activation = config
        .get("sentence_transformers")
        .and_then(|s| s.get("activation_fn"))
        .or(config.get("sbert_ce_default_activation_function"))
        .and_then(Value::as_str)
        .unwrap_or("Sigmoid");
    let sigmoid = activation.ends_with("Sigmoid");
    if !sigmoid && !activation.ends_with("Identity") {
        return Err(Error::UnsupportedOption {
            architecture: architecture.into(),
            option: format!("activation_fn = {activation}"),
            hint: "Supported: Sigmoid and Identity.".into(),
        });
    }
    progress.phase(Phase::Weights);
    let encoder = EncoderModel::load(gpu, source, files, &head, longest, options).await?;
    if let Some(tokenizer) = text.tokenizer.as_ref().filter(|_| encoder.vocab() > 0) {
        tokenizer.check_added_ids(encoder.vocab())?;
    }
    if encoder.cols() != 1 {
        return Err(Error::UnsupportedOption {
            architecture: encoder.graph().name.clone(),
            option: format!("a head of {} labels", encoder.cols()),
            hint: "A reranker must have one label.".into(),
        });
    }
    progress.phase(Phase::Ready);
    warnings.extend(
        source
            .warnings()
            .iter()
            .map(ToString::to_string)
            .chain(text.warning()),
    );
    let name = name.to_string();
    let revision = source.commit();

    Ok(Reranker {
        encoder,
        text: Rc::new(text),
        prompt_style: asking,
        sigmoid,
        name,
        revision,
        warnings,
    })
}
