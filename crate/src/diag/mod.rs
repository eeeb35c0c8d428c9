//! Whether a device computes what it should, and whether a loaded model is what its files say.

pub mod chain;
mod checks;
mod integrity;

pub use checks::{Check, checks};
pub use integrity::integrity;
