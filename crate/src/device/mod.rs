//! Device capabilities, tuning results and the shader registry: the inputs of kernel selection. Does not depend on the
//! GPU backends.

mod agent;
mod caps;
pub mod preprocess;
pub mod registry;
pub mod tuned;
// A module of the build script; its tests run here.
#[cfg(all(test, not(target_arch = "wasm32")))]
#[path = "../../units.rs"]
mod units;

pub use agent::Implementation;
pub use caps::{Caps, DeviceOptions, Force, Group, MatrixUnits, MatrixWords};

/// Dispatch size in workgroups.
pub type Grid = [u32; 3];
