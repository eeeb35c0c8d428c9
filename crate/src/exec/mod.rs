//! Model execution: weights in buffers, plans as programs, chunked prefill, the decode loop, the KV cache. Works on
//! token ids and logits, not on text.

mod album;
mod asked;
mod decide;
mod decode;
mod ear;
mod encoder;
mod files;
#[cfg(not(target_arch = "wasm32"))]
mod foresee;
mod grow;
mod inspect;
mod limits;
mod load;
mod load_times;
mod measure;
mod mixed;
mod model;
mod options;
mod pace;
mod paged;
mod pager;
mod pages;
mod pictures;
mod resident;
mod sampling;
mod saved;
mod session;
mod short;
mod side;
mod speculate;
mod step;
mod tail;
mod tied;
mod tower;
mod trace;
mod tune;
mod twin;
mod verify;

pub use album::Album;
pub use decide::ROOM;
pub use decode::{Decode, Start};
pub use ear::Ear;
pub use encoder::{Encoder, Outputs, Tokens};
pub use files::Files;
#[cfg(not(target_arch = "wasm32"))]
pub use foresee::{Foreseen, StateBytes};
pub use inspect::{Inspection, Seen};
pub use limits::{Limits, limits, steps};
pub use load::float_of;
pub use load_times::LoadTimes;
pub use measure::{HostCost, MeasureOptions, Measurement, Profile, Share};
pub use model::{Bytes, Model};
pub use options::{Overrides, Precision, Resident, RunOptions};
pub use pages::Paging;
pub use saved::Snapshot;
pub use session::Session;
pub use side::{Side, flatten};
pub use speculate::Lookup;
pub use step::{StepTimes, narrowed};
pub use tail::Tail;
pub use tower::{Encoded, Eye, content, processors};
pub use trace::Traced;
pub use tune::{Choice, Contest, Origin, Tune, Tuning, What, measure_forms};
pub use verify::contradiction;
