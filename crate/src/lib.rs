//! Runs Hugging Face models on WebGPU: in browsers as WebAssembly, natively through wgpu.
//!
//! # Example
//!
//! The example `chat` answers a question with a model from the Hub or a folder:
//!
//! ```no_run
#![doc = include_str!("../examples/chat.rs")]
//! ```
//!
//! # From a name to tokens
//!
//! | step | types |
//! |---|---|
//! | Open a device | [`open_gpu`], [`DeviceOptions`] |
//! | Find the model's files | [`ModelRef`], [`HubOptions`], [`Source`], [`Progress`] |
//! | Load it for its task | [`TaskModel`], or [`ChatModel`], [`Embedder`], [`Reranker`], [`Transcriber`], [`SpeechSynthesizer`] with [`RunOptions`] |
//! | Send a request | [`GenerateRequest`], [`EmbedRequest`], [`RerankRequest`], [`TranscribeRequest`], [`SpeakRequest`] |
//! | Stop it early | [`AbortFlag`] |
//!
//! Requests have the field names of the JavaScript API when they are read from JSON. A function that
//! can fail returns [`Error`]: its code is stable, its message says what to do.
//!
//! The engine is single-threaded: its futures are not `Send`. Natively any executor for one thread
//! runs them, such as pollster.
//!
//! # Below this API
//!
//! The other modules have no stable interface and are hidden here. They are public for the
//! workspace: the module for training, the native runner and the tests build on them.
//! docs/architecture.md explains them.

// The engine's modules, from top to bottom. Hidden because they change without notice; public for
// `jerboa-train`, the examples and the tests.
#[doc(hidden)]
pub mod arch;
#[doc(hidden)]
pub mod audio;
#[doc(hidden)]
pub mod chat;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod diag;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod exec;
#[doc(hidden)]
pub mod format;
#[doc(hidden)]
pub mod gpu;
#[doc(hidden)]
pub mod hub;
#[doc(hidden)]
pub mod ir;
#[doc(hidden)]
pub mod kernels;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod reference;
#[doc(hidden)]
pub mod sample;
#[doc(hidden)]
pub mod schema;
#[doc(hidden)]
pub mod task;
#[doc(hidden)]
pub mod text;
mod util;
#[doc(hidden)]
pub mod vision;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod web;

#[doc(inline)]
pub use chat::AnswerPart;
#[doc(inline)]
pub use error::{Error, Result};
#[doc(inline)]
pub use exec::{ExpertBudget, Precision, PrecisionOptions, RunOptions};
#[doc(inline)]
pub use gpu::{DeviceOptions, Gpu, open_gpu};
#[doc(inline)]
pub use hub::{
    AbortFlag, CachedModel, HubOptions, ModelRef, Phase, Progress, ProgressEvent, RetryPolicy,
    Source, cached_models, delete_cached,
};
#[doc(inline)]
pub use sample::{SamplingOptions, TokenConstraint};
#[doc(inline)]
pub use task::{
    AudioCodec, ChatModel, ContextOverflow, EmbedRequest, Embedder, FinishReason, GenerateRequest,
    GenerationResult, RerankRequest, Reranker, SegmentEvent, SpeakRequest, SpeechSynthesizer,
    SynthesisResult, Task, TaskModel, TimestampMode, TokenEvent, TranscribeRequest, Transcriber,
};
#[doc(inline)]
pub use vision::RgbImage;

#[doc(hidden)]
pub use util::map::{SortedMap, SortedSet};
