//! Runs Hugging Face checkpoints on WebGPU: in browsers as WebAssembly, natively through wgpu.
//!
//! Data flow: `hub` downloads files, `format` reads their tensors, `arch` turns config.json into an
//! `ir::Graph`, `plan` turns the graph into steps over buffers. `exec` runs the steps on a `gpu`
//! device, `sample` selects the next token, and `text` decodes it. `task` implements generation,
//! embedding and speech; `web` is the JavaScript API.

pub mod arch;
pub mod audio;
pub mod chat;
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
pub mod schema;
pub mod task;
pub mod text;
mod util;
pub mod vision;
#[cfg(target_arch = "wasm32")]
pub mod web;

pub use error::{Error, Result};
pub use util::map::{SortedMap, SortedSet};
