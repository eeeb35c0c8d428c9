//! What kernels are chosen by and made of: a device's capabilities, what was measured on it, and the shader texts that
//! it is given. Knows neither what a kernel computes nor how a device is driven.

mod agent;
mod caps;
pub mod preprocess;
pub mod registry;
pub mod tuned;
// The build script's; it is tested here.
#[cfg(all(test, not(target_arch = "wasm32")))]
#[path = "../../units.rs"]
mod units;

pub use agent::Implementation;
pub use caps::{Caps, DeviceOptions, Force, Group, MatrixUnits, MatrixWords};

/// The size of a dispatch in workgroups.
pub type Grid = [u32; 3];
