//! Container formats and weight encodings: named tensors with element type, shape and byte range,
//! and the transcoding of every encoding to a layout in GPU memory. Does not depend on the network,
//! the GPU or the architectures.

pub mod awq;
pub mod bitnet;
pub mod bnb;
pub mod checkpoint;
pub mod compressed;
pub mod detect;
pub mod encoding;
pub mod fp8;
pub mod ggml;
mod ggml_type;
pub mod gguf;
pub mod gptq;
mod iquants;
pub mod layout;
pub(crate) mod lfs;
pub mod mlc;
pub mod mlc_chat;
pub mod mlx;
pub mod mxfp4;
pub mod nemo;
pub mod quantize;
pub mod safetensors;
pub mod shard_index;
pub mod transcode;
mod transcode_job;
mod weight_norm;
mod weights;

pub use checkpoint::{Checkpoint, CheckpointFile, Dtype, TensorInfo};
pub use detect::detect;
pub use encoding::{Encoding, PartRole, RowOrder, StoredPart, WeightSource};
pub use layout::{AffineForm, Float, PackedMatrix, WeightLayout};
pub use shard_index::ShardIndex;
pub use transcode::{PartBytes, check_parts, transcode, transcode_to};
pub use weights::Weights;
