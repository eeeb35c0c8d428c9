//! Tasks of loaded models: text generation, embedding, reranking, transcription and speech
//! synthesis. Works on text, audio samples and token ids; `exec` runs the graphs.

mod adapters;
mod chat_model;
mod embed;
mod gguf;
mod kind;
mod language_model;
mod load;
mod load_request;
mod request;
mod rerank;
mod sentence_transformers;
mod serves_task;
mod speak;
mod task_files;
mod text_encoder;
mod text_pipeline;
mod text_stream;
mod token_loop;
mod transcribe;
mod vision;

pub use chat_model::{
    ChatLease, ChatModel, ChatPool, FinishReason, GenerationHooks, GenerationResult, TokenEvent,
};
pub use embed::{EmbedEncoder, EmbedInput, Embedder, EmbedderFiles};
pub use kind::{Task, TaskHints, TaskSpec};
pub use language_model::Provenance;
pub use load::TaskModel;
pub use load_request::{
    DeviceFeatures, FEATURE_OPTIONS, LOAD_OPTIONS, LoadRequest, MTP_DRAFT, parse_submit_group,
};
pub use request::{
    ContextOverflow, EMBED_OPTIONS, EmbedRequest, GENERATE_OPTIONS, GenerateRequest,
    RERANK_OPTIONS, RerankRequest,
};
pub use rerank::{PromptStyle, Reranker};
pub use sentence_transformers::SentenceTransformersConfig;
pub use serves_task::{LoadFuture, ServesTask, TaskFiles, TaskLoad};
pub use speak::{AudioCodec, SPEAK_OPTIONS, SpeakRequest, SpeechSynthesizer, SynthesisResult};
pub use task_files::task_of;
pub use text_encoder::TextEncoder;
pub use text_pipeline::TextPipeline;
#[cfg(all(target_arch = "wasm32", feature = "engine-api"))]
pub(crate) use text_pipeline::{TEXT_FILES, TOKENIZER_FORM};
pub use text_stream::TokenInfo;
pub use transcribe::{
    AsrTimings, SegmentEvent, TRANSCRIBE_OPTIONS, TimestampMode, TranscribeRequest, Transcriber,
};
pub use vision::{ImageInfo, VisionPipeline};
