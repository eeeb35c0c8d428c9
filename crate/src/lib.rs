//! Jerboa runs HuggingFace checkpoints on WebGPU: in a web page as WebAssembly, natively through wgpu.
//!
//! The way of a token: `hub` finds the bytes, `format` names the tensors in them, `arch` turns config.json into a
//! `ir::Graph`, `plan` turns the graph into steps over buffers, `exec` runs the steps on a `gpu` device, `sample`
//! picks the next token, `text` turns it into characters, `task` is what a user asks for and `web` its JavaScript face.

pub mod arch;
pub mod audio;
pub mod device;
pub mod diag;
pub mod error;
pub mod exec;
pub mod format;
pub mod gpu;
pub mod hub;
pub mod ir;
pub mod kernels;
pub mod plan;
pub mod reference;
pub mod sample;
pub mod task;
pub mod text;
mod util;
pub mod vision;
#[cfg(target_arch = "wasm32")]
pub mod web;

pub use error::{Error, Result};
pub use util::map::{SortedMap, SortedSet};
