//! Container formats and weight encodings: named tensors with element type, shape and byte range, and the transcoding
//! of every encoding to a layout in GPU memory. Does not depend on the network, the GPU or the architectures.

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
pub mod index;
mod iquants;
mod job;
pub mod layout;
pub mod mlc;
pub mod mlc_chat;
pub mod mlx;
pub mod mxfp4;
pub mod nemo;
mod normed;
pub mod quantize;
pub mod safetensors;
pub mod transcode;
mod weights;

pub use checkpoint::{Checkpoint, CheckpointFile, Dtype, TensorInfo};
pub use detect::detect;
pub use encoding::{Encoding, Part, Role, RowOrder, WeightSource};
pub use index::ShardIndex;
pub use layout::{Float, Form, Layout, Packed};
pub use transcode::{Bytes, check_parts, transcode, transcode_to};
pub use weights::Weights;
