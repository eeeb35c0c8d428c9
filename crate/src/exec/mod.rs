//! Running a model: weights in buffers, plans as programs, prefill in chunks, the decode ring, the KV cache.
//! It knows token ids and logits, not text.

mod decode;
mod files;
mod load;
mod model;
mod options;
mod step;

pub use decode::GreedyDecode;
pub use files::Files;
pub use load::float_of;
pub use model::{Bytes, Model};
pub use options::{Overrides, Precision, RunOptions};
pub use step::StepTimes;
