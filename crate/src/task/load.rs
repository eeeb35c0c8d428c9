//! Loads a model for its task and dispatches to it. `task_models!` lists the model of each task.

use super::chat_model::ChatModel;
use super::embed::Embedder;
use super::gguf::can_generate;
use super::kind::{Task, TaskHints, refuse};
use super::rerank::Reranker;
use super::sentence_transformers::SentenceTransformersConfig;
use super::serves_task::{LoadFuture, ServesTask, TaskFiles, TaskLoad};
use super::speak::SpeechSynthesizer;
use super::text_pipeline::TextPipeline;
use super::transcribe::Transcriber;
use super::vision::VisionPipeline;
use crate::device::memory::{MeasuredMemory, RECORD_NAME, read_measured, with_measured};
use crate::exec::{ModelFiles, RunOptions};
use crate::format::gguf::Gguf;
use crate::gpu::{Backend, Caps, Gpu};
use crate::hub::{Phase, Source};
use crate::util::clock::now_ms;
use crate::{Error, Result};
use futures_util::future::join;
use serde_json::Value;
use std::future::ready;
use std::rc::Rc;

macro_rules! task_models {
    ($($(#[$doc:meta])* $task:ident($model:ty),)*) => {
        /// A loaded model of any task.
        pub enum TaskModel {
            $($(#[$doc])* $task(Box<$model>),)*
        }

        fn load_model(task: Task, request: TaskLoad<'_>) -> LoadFuture<'_, TaskModel> {
            match task {
                $(Task::$task => {
                    let model = <$model as ServesTask>::load_task(request);
                    Box::pin(async move { Ok(TaskModel::$task(Box::new(model.await?))) })
                })*
            }
        }

        impl TaskModel {
            /// The model's task.
            pub fn task(&self) -> Task {
                match self {
                    $(Self::$task(_) => Task::$task,)*
                }
            }

            /// Returns `model.info` as JSON, with the JavaScript API's field names.
            pub fn info(&self) -> Value {
                match self {
                    $(Self::$task(model) => model.info(),)*
                }
            }

            /// Tokenizer and chat template.
            pub fn text(&self) -> &Rc<TextPipeline> {
                match self {
                    $(Self::$task(model) => ServesTask::text(&**model),)*
                }
            }

            /// The device.
            pub fn gpu(&self) -> &Gpu {
                match self {
                    $(Self::$task(model) => ServesTask::gpu(&**model),)*
                }
            }

            /// Enables image input, if the model has it.
            ///
            /// # Errors
            /// Errors of the source.
            pub async fn enable_images(
                &mut self,
                source: Rc<Source>,
                options: RunOptions,
            ) -> Result<()> {
                match self {
                    $(Self::$task(model) => model.enable_images(source, options).await,)*
                }
            }

            /// Image and video input, once it is enabled.
            pub fn images(&self) -> Option<&Rc<VisionPipeline>> {
                match self {
                    $(Self::$task(model) => model.images(),)*
                }
            }
        }
    };
}

task_models! {
    /// Text generation.
    Generate(ChatModel),
    /// Embedding of text, and of images for joint models.
    Embed(Embedder),
    /// Scoring of documents for a query.
    Rerank(Reranker),
    /// Speech to text.
    Transcribe(Transcriber),
    /// Text to speech.
    Speak(SpeechSynthesizer),
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
        let caps = gpu.caps().clone();
        let loading = Self::load_files(gpu, source, codec, name, task, options);
        with_memory_record(&caps, source, loading).await
    }

    async fn load_files(
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
        let files = match config {
            None => TaskFiles::Container(Box::new(open_container(source).await?)),
            Some(config) => TaskFiles::Folder {
                config: Box::new(config),
                sentence: match task {
                    Some(Task::Generate) => None,
                    _ => SentenceTransformersConfig::read(source).await?,
                },
            },
        };
        let hints = match &files {
            TaskFiles::Folder { config, sentence } => TaskHints {
                pools: sentence.is_some(),
                has_codec: codec.is_some(),
                name,
                ..TaskHints::of_config(config)
            },
            TaskFiles::Container(files) => TaskHints {
                gguf_pooling: files.gguf.as_ref().and_then(Gguf::pooling_type),
                name,
                ..TaskHints::of_config(&files.config)
            },
        };
        let implied = Task::implied_by(&hints);
        let task = task.unwrap_or(implied);
        match &files {
            TaskFiles::Folder { config, .. } => task.check(config, name)?,
            TaskFiles::Container(files) => {
                task.check_container(files.config.container())?;
                if task == Task::Generate && implied == Task::Embed && !can_generate(files) {
                    let reason = "'generate' is not possible: the attention of this model is bidirectional. Use 'embed'.";
                    return Err(refuse(reason.into()));
                }
            }
        }
        let request = TaskLoad {
            gpu,
            source,
            codec,
            files,
            name,
            options,
        };
        load_model(task, request).await
    }

    /// Loads a draft model for a text-generation model: see [`ChatModel::load_draft`].
    ///
    /// # Errors
    /// As [`ChatModel::load_draft`]; `Request` for a model of another task.
    pub fn load_draft<'a>(
        &'a mut self,
        source: &'a Source,
        name: &'a str,
        options: RunOptions,
    ) -> LoadFuture<'a, ()> {
        match self {
            Self::Generate(chat) => Box::pin(chat.load_draft(source, name, options)),
            other => {
                let model = other.task().spec().model;
                let reason = format!(
                    "it works with text-generation models, and this is {model}. Leave it out."
                );
                Box::pin(ready(Err(Error::Request {
                    parameter: "draft".into(),
                    reason,
                })))
            }
        }
    }
}

/// Runs a load with what earlier ones have found the device to hold, and persists what this one
/// finds. The record arrives before the files are open.
async fn with_memory_record<T>(
    caps: &Caps,
    source: &Source,
    loading: impl Future<Output = Result<T>>,
) -> Result<T> {
    let record = async {
        let record = source.read_persisted(RECORD_NAME).await;
        let record = record.unwrap_or_default();
        let known = read_measured(&record, caps, now_ms());
        if caps.measured.get() == MeasuredMemory::default() {
            caps.measured.set(known);
        }
        (record, known)
    };
    let ((record, known), loaded) = join(record, loading).await;
    let measured = caps.measured.get();
    if measured.differs_from(known) {
        let record = with_measured(&record, caps, measured);
        source.persist(RECORD_NAME, record).await;
    }
    loaded
}

#[inline(never)]
fn open_container(source: &Source) -> LoadFuture<'_, ModelFiles> {
    Box::pin(ModelFiles::open(source, None))
}
