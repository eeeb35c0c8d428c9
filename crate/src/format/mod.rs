//! Containers and what they hold: named tensors with their element type, shape and place in a file.
//! Knows no network, no GPU and no architecture: it is given bytes and says where the tensors are.

pub mod checkpoint;
pub mod index;
pub mod layout;
pub mod safetensors;

pub use checkpoint::{Checkpoint, CheckpointFile, Dtype, TensorInfo};
pub use index::ShardIndex;
