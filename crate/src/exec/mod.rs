//! Model execution: weights in buffers, plans as programs, chunked prefill, the decode loop, the KV
//! cache. Works on token ids and logits, not on text.

mod audio_encoder;
mod checkpoint;
mod cpu_check;
mod decode;
mod encoder;
#[cfg(not(target_arch = "wasm32"))]
mod estimate;
mod files;
mod graph_runner;
mod image_cache;
mod inspect;
mod kv_growth;
mod lazy_programs;
mod load;
mod load_plan;
mod load_times;
mod logits_pipeline;
mod lru;
mod measure;
mod mixed;
mod model;
mod offload;
mod options;
mod roofline;
mod sampling;
mod session;
mod short_prefill;
mod soft_tokens;
mod speculate;
mod speculation_controller;
mod step;
mod submit;
mod tied;
mod trace;
mod tune;
mod verify;
mod vision_encoder;
mod weight_paging;

pub use audio_encoder::AudioEncoder;
pub use checkpoint::SessionSnapshot;
pub use decode::{DecodeLoop, DecodeParams};
pub use encoder::{EncoderInput, EncoderModel, PendingRows};
#[cfg(not(target_arch = "wasm32"))]
pub use estimate::{StateBytes, StepEstimate};
pub use files::ModelFiles;
pub use graph_runner::{GraphRunner, flatten_convolutions};
pub use image_cache::ImageCache;
pub use inspect::{Inspection, WeightReport};
pub use load::float_of;
pub use load_plan::HEADROOM_BYTES;
pub use load_times::LoadTimes;
pub use logits_pipeline::{LogitsPipeline, LogitsStage};
pub use measure::{HostOverhead, KernelShare, MeasureOptions, Measurement, Profile};
pub use model::{MemoryUse, Model};
pub use options::{ExpertBudget, Precision, PrecisionOptions, RunOptions};
pub use roofline::{Roofline, build_dispatches, measure_roofline};
pub use session::Session;
pub use speculate::PromptLookup;
pub use step::{StepTimes, strip_padding};
pub use trace::TracedValue;
pub use tune::{
    TuneMode, TunedChoice, Tuning, TuningCase, TuningSource, TuningTarget, time_candidates,
};
pub use verify::check_prefill_vs_decode;
pub use vision_encoder::{EncodedImage, VisionEncoder, content_hash, load_processors};
pub use weight_paging::PagingStats;
