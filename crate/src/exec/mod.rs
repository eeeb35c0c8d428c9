//! Running a model: weights in buffers, plans as programs, prefill in chunks, the decode ring, the KV cache.
//! It knows token ids and logits, not text.

mod load;
mod model;
mod options;
mod step;

pub use load::load_weights;
pub use model::{Decoder, Model};
pub use options::{Overrides, Precision, RunOptions};
pub use step::StepTimes;
