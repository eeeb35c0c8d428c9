//! Model execution: weights in buffers, plans as programs, chunked prefill, the decode loop, the KV
//! cache. Works on token ids and logits, not on text.

mod adapter;
mod audio_encoder;
mod batch;
mod checkpoint;
mod decode;
mod decoder_steps;
mod draft_length;
mod encoder;
mod files;
mod graph_runner;
mod graph_weights;
mod kv_offload;
mod load;
mod load_plan;
mod load_times;
mod logits_pipeline;
mod lru;
mod mixed;
mod model;
mod offload;
mod options;
mod planned_graph;
mod prefill_check;
mod program_key;
mod roofline;
mod row_runner;
mod run_ahead;
mod scheduler;
mod session;
mod soft_tokens;
mod speculation_controller;
mod step;
mod step_costs;
mod tied;
mod tune;
mod turns;
mod vision_encoder;
mod weight_paging;
mod weight_store;

pub use audio_encoder::AudioEncoder;
pub use batch::{DecodeBatch, MAX_SEQUENCES, SequenceId, SequenceParams, SequenceTokens};
pub use checkpoint::SessionSnapshot;
pub use decode::{DecodeLoop, DecodeParams};
pub use encoder::{EncoderInput, EncoderModel, PendingRows};
pub(crate) use files::explain_missing;
pub use files::{Inspection, ModelFiles, WeightReport};
#[cfg(not(target_arch = "wasm32"))]
pub use files::{StateBytes, StepEstimate};
pub use graph_weights::GraphWeights;
pub use load::float_of;
pub use load_plan::HEADROOM_BYTES;
pub use load_times::LoadTimes;
pub use logits_pipeline::{LogitsPipeline, LogitsStage};
pub use model::{MemoryUse, Model};
pub use options::{
    ExpertBudget, Precision, PrecisionOptions, RunOptions, quantize_inputs_from_name,
};
pub use prefill_check::check_prefill_vs_decode;
pub use program_key::OverlayId;
pub use roofline::{Roofline, build_dispatches, measure_roofline};
pub use row_runner::{RowRunner, flatten_convolutions};
pub use run_ahead::RunAhead;
pub use scheduler::{BatchMember, BatchOutput, Scheduler, SharedSequence};
pub use session::{
    DraftSession, HostOverhead, KernelShare, MEASURE_OPTIONS, MeasureOptions, Measurement, Profile,
    PromptLookup, ReadPart, Session, TracedValue, WritePart,
};
pub use soft_tokens::{SoftEmbeddings, SoftTokenCache, SoftTokenLayout};
pub use step::{StepTimes, strip_padding};
pub use tune::{
    TUNING_RECORDS, TuneMode, TunedChoice, Tuning, TuningCase, TuningSource, TuningTarget,
    time_candidates,
};
pub use vision_encoder::{VisionEncoder, content_hash, load_processors};
pub use weight_paging::PagingStats;
