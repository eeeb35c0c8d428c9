//! Whether a device computes what it should. Knows kernels and buffers, no model.

pub mod chain;
mod checks;

pub use checks::{Check, checks};
