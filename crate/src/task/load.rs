//! Loads a model for its task and dispatches to it. `task_models!` lists the model of each task.

use super::chat_model::ChatModel;
use super::embed::Embedder;
use super::kind::Task;
use super::rerank::Reranker;
use super::serves_task::{LoadFuture, ServesTask, TaskLoad};
use super::speak::SpeechSynthesizer;
use super::task_files::open_task_files;
use super::text_pipeline::TextPipeline;
use super::transcribe::Transcriber;
use super::vision::VisionPipeline;
use crate::device::memory::{MeasuredMemory, RECORD_NAME, read_measured, with_measured};
use crate::exec::RunOptions;
use crate::gpu::{Backend, Caps, Gpu};
use crate::hub::Source;
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
        let (files, task) = open_task_files(source, name, task, codec.is_some()).await?;
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
