//! Device capabilities, tuning results and the shader registry: the inputs of kernel selection.
//! Does not depend on the GPU backends.

mod caps;
pub mod memory;
pub mod preprocess;
pub mod registry;
pub mod tuning_table;
mod user_agent;
// A module of the build script; its tests run here.
#[cfg(all(test, not(target_arch = "wasm32")))]
#[path = "../../units.rs"]
mod units;

pub use caps::{
    Caps, DeviceOptions, MatrixDialect, SubgroupMatrix, SubmitGrouping, VariantOverride,
};
pub use user_agent::WebGpuImplementation;

/// Dispatch size in workgroups.
pub type Grid = [u32; 3];
