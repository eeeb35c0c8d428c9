//! Diagnostics: checks of a device's computations and of a loaded model.

pub mod chain;
mod checks;
mod integrity;

pub use checks::{Check, checks};
pub use integrity::integrity;
