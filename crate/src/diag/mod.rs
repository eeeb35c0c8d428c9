//! Diagnostics: checks of a device's computations and of a loaded model.

pub mod chain;
mod checks;
mod integrity;

pub use checks::{DiagnosticResult, run_device_checks};
pub use integrity::verify_model;
