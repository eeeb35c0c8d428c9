//! Running a model: weights in buffers, plans as programs, prefill in chunks, the decode ring, the KV cache.
//! It knows token ids and logits, not text.

mod album;
mod asked;
mod decide;
mod decode;
mod encoder;
mod files;
mod inspect;
mod limits;
mod load;
mod load_times;
mod measure;
mod model;
mod options;
mod pace;
mod pictures;
mod sampling;
mod saved;
mod session;
mod short;
mod speculate;
mod step;
mod tail;
mod tower;
mod trace;
mod tune;

pub use album::Album;
pub use decide::ROOM;
pub use decode::{Decode, Start};
pub use encoder::{Encoder, Outputs, Tokens};
pub use files::Files;
pub use inspect::{Inspection, Seen};
pub use limits::{Limits, limits};
pub use load::float_of;
pub use load_times::LoadTimes;
pub use measure::{HostCost, MeasureOptions, Measurement, Profile, Share};
pub use model::{Bytes, Model};
pub use options::{Overrides, Precision, RunOptions};
pub use saved::Snapshot;
pub use session::Session;
pub use speculate::Lookup;
pub use step::StepTimes;
pub use tail::Tail;
pub use tower::{Encoded, Eye, content, processor};
pub use trace::Traced;
pub use tune::{Choice, Origin, Tune, Tuning};
