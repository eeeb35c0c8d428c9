//! Trains models on the GPU. A pass over the engine's `ir::Graph` adds the gradient of each
//! operation, optimizers update f32 weights, and `lora` trains adapters that the engine and `peft`
//! load. A crate of its own with its own shaders: a page that does not train downloads nothing of
//! it.
//!
//! `layers` has networks of layers that need no model. `tape` records the launches of a graph's
//! forward and backward pass, `checkpointing` decides which of them run twice, `ops` has the
//! gradient of each operation, `kernels` the launches that they use, `tiles` their sources on a
//! device, and `reference` their CPU references.

pub mod adapter;
pub mod batch;
pub mod checkpointing;
pub mod dataset;
pub mod dpo;
pub mod elements;
pub mod embedding;
pub mod embedding_data;
pub mod kernel;
pub mod kernels;
pub mod layers;
pub mod lora;
pub mod memory;
pub mod ops;
pub mod preference;
pub mod preference_data;
pub mod random;
pub mod reference;
pub mod run;
pub mod schedule;
pub mod session;
pub mod tape;
pub mod tensors;
mod tiles;
pub mod trainer;
#[cfg(target_arch = "wasm32")]
pub mod web;
