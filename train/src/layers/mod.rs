//! Networks of layers, trained and run on the GPU: descriptions in JSON, shapes inferred and
//! checked, weights under PyTorch's names. `build` makes the layers, `record` their launches,
//! `network` runs them.

pub mod build;
pub mod fields;
pub mod fit;
pub mod network;
pub mod record;
#[cfg(target_arch = "wasm32")]
pub mod web;
