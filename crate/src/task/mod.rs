//! Tasks of loaded models: text generation, embedding, reranking, transcription and speech synthesis. Works on text,
//! audio samples and token ids; `exec` runs the graphs.

mod embed;
mod generate;
mod gguf;
mod kind;
mod language;
mod loaded;
mod open;
mod parts;
mod request;
mod rerank;
mod sentence;
mod sight;
mod speak;
mod transcribe;

pub use embed::{EmbedInput, EmbedRequest, Embedder};
pub use generate::{Event, Finish, Outcome, TokenInfo};
pub use kind::Task;
pub use language::Origin;
pub use loaded::Loaded;
pub use open::AnyModel;
pub use parts::TextParts;
pub use request::{GenerateRequest, Overflow};
pub use rerank::{Asking, Reranker};
pub use sentence::SentenceConfig;
pub use sight::{Seen, Sight};
pub use speak::{Codec, SpeakRequest, Speaker, Spoken};
pub use transcribe::{Heard, Timed, Times, TranscribeRequest, Transcriber};
