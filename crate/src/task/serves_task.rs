//! What the models of all tasks share: how they are loaded and described.

use super::sentence_transformers::SentenceTransformersConfig;
use super::text_pipeline::TextPipeline;
use super::vision::VisionPipeline;
use crate::Result;
use crate::arch::LoadConfig;
use crate::exec::{ModelFiles, RunOptions};
use crate::gpu::Gpu;
use crate::hub::Source;
use serde_json::Value;
use std::pin::Pin;
use std::rc::Rc;

/// The future of a load, on the heap: a page has a short stack.
pub type LoadFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// A model that serves a task.
pub trait ServesTask: Sized {
    /// Loads the model.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    fn load_task(request: TaskLoad<'_>) -> LoadFuture<'_, Self>;

    /// Returns `model.info` as JSON, with the JavaScript API's field names.
    fn info(&self) -> Value;

    /// Tokenizer and chat template.
    fn text(&self) -> &Rc<TextPipeline>;

    /// The device.
    fn gpu(&self) -> &Gpu;

    /// Enables image input, if the model has it. The vision encoder loads with the first image.
    ///
    /// # Errors
    /// Errors of the source.
    fn enable_images(&mut self, _source: Rc<Source>, _options: RunOptions) -> LoadFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Image and video input, once it is enabled.
    fn images(&self) -> Option<&Rc<VisionPipeline>> {
        None
    }
}

/// A request to load a model for a task.
pub struct TaskLoad<'a> {
    /// The device.
    pub gpu: Gpu,
    /// The model's files.
    pub source: &'a Source,
    /// The files of its audio codec.
    pub codec: Option<&'a Source>,
    /// What is known of the files.
    pub files: TaskFiles,
    /// Name that the model is loaded by.
    pub name: &'a str,
    /// Options of the load.
    pub options: RunOptions,
}

/// What is known of a model's files before its task loads them.
pub enum TaskFiles {
    /// config.json, and the settings of sentence-transformers.
    Folder {
        /// The configuration.
        config: Box<LoadConfig>,
        /// The settings, if the task reads them.
        sentence: Option<SentenceTransformersConfig>,
    },
    /// The opened files of a GGUF or MLC model, which hold their own configuration.
    Container(Box<ModelFiles>),
}
