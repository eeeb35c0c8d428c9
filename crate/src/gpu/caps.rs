//! What a device can do, and how a caller restricts it. Kernels choose their variants by these facts alone.

use serde::Serialize;

/// The facts that decisions depend on.
#[derive(Debug, Clone, Serialize)]
pub struct Caps {
    /// `nvidia`, `apple`, …, as the browser says it, or the driver's name.
    pub vendor: String,
    /// The GPU's generation, or the backend.
    pub architecture: String,
    /// A sentence for people.
    pub description: String,
    /// Whether `enable f16` may be used.
    pub f16: bool,
    /// Whether subgroup operations may be used.
    pub subgroups: bool,
    /// The smallest and largest subgroup.
    pub subgroup_size: (u32, u32),
    /// Whether passes can be timed.
    pub timestamps: bool,
    /// The largest buffer in bytes.
    pub max_buffer_size: u64,
    /// The largest storage binding in bytes.
    pub max_binding_size: u64,
    /// Bytes of workgroup memory.
    pub max_workgroup_storage: u32,
    /// Whether it is Safari's implementation; known by the user agent, since Chrome on a Mac says `apple` too.
    pub webkit: bool,
    /// Whether the device is a software renderer, whose speed says nothing.
    pub software: bool,
}

impl Caps {
    /// The largest number of bytes one buffer of weights may have.
    pub fn max_weight_buffer(&self) -> u64 {
        self.max_buffer_size.min(self.max_binding_size)
    }

    /// The subgroup size when it is known for sure, else `None`.
    pub fn fixed_subgroup(&self) -> Option<u32> {
        (self.subgroups && self.subgroup_size.0 == self.subgroup_size.1).then_some(self.subgroup_size.0)
    }
}

/// What a caller asks of the device.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Use f16 arithmetic where the device has it.
    pub f16: bool,
    /// Use subgroups where the device has them.
    pub subgroups: bool,
    /// Pretend that no buffer may be larger, in bytes; for tests.
    pub max_buffer_size: Option<u64>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { f16: true, subgroups: true, max_buffer_size: None }
    }
}
