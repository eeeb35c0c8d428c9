//! The GPU device behind one trait: capabilities, buffers, pipelines, recorded programs and
//! readback. `native.rs` uses wgpu, `browser.rs` uses the browser's WebGPU. Does not depend on
//! models.

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;

pub use crate::device::{
    Caps, DeviceOptions, Grid, SubmitGrouping, VariantOverride, WebGpuImplementation,
};
#[cfg(target_arch = "wasm32")]
pub use browser::{BrowserGpu as Gpu, Buffer, HostBytes, Pipeline, Program, Readback};
#[cfg(not(target_arch = "wasm32"))]
pub use native::{Buffer, HostBytes, NativeGpu as Gpu, Pipeline, Program, Readback};

use std::collections::HashMap;

use crate::device::registry::Shader;
use crate::{Error, Result};

/// Opens the machine's GPU, or the browser's.
///
/// # Errors
/// `NoWebGpu` if there is none.
pub async fn open_gpu(options: &DeviceOptions) -> Result<Gpu> {
    Gpu::open(options).await
}

/// Builds `OutOfMemory` for an allocation of `needed` bytes.
fn out_of_memory(what: impl Into<String>, needed: u64, limit: u64) -> Error {
    let hint =
        "Load a smaller model or a lower-bit quantization, or set a smaller 'maxContext'.".into();
    Error::OutOfMemory {
        what: what.into(),
        needed,
        limit,
        hint,
    }
}

/// Sizes of the buffers that [`Backend::probe`] allocates; js/gpu.js has the same.
#[cfg(not(target_arch = "wasm32"))]
const PROBE_BUFFER_BYTES: u64 = 32 << 20;

/// An allocation that the device refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Bytes that were allocated before.
    pub held: u64,
    /// The same with the refused buffer.
    pub needed: u64,
    /// Whether only [`Backend::probe`] wanted it.
    pub is_probe: bool,
}

impl Refusal {
    /// A refusal of an unknown buffer while `held` bytes were allocated.
    fn unknown(held: u64) -> Self {
        Self {
            held,
            needed: held,
            is_probe: false,
        }
    }

    fn error(self, what: impl Into<String>) -> Error {
        out_of_memory(what, self.needed, self.held)
    }
}

/// How a buffer is used; every buffer can be a copy source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferUsage {
    /// Read and written by shaders.
    Storage,
    /// Read by shaders as `var<uniform>`.
    Uniform,
}

/// Maximum bytes of pooled staging buffers; js/gpu.js has the same limit.
#[cfg(not(target_arch = "wasm32"))]
const MAX_STAGED_BYTES: u64 = 32 << 20;

/// One dispatch of a program before it is recorded.
#[derive(Debug, Clone)]
pub struct DispatchDesc {
    /// Name in profiles and errors.
    pub label: String,
    /// The kernel.
    pub pipeline: Pipeline,
    /// Binding numbers with their buffers, each bound whole.
    pub buffers: Vec<(u32, Buffer)>,
    /// The u32 words of the kernel's `Params` with their uniform binding.
    pub params: Option<(u32, Vec<u32>)>,
    /// Workgroups; a submit can override them.
    pub grid: Grid,
}

/// The parameters of all dispatches of a program in one uniform buffer. Equal parameters share a
/// slot, which stays in the GPU's caches from layer to layer.
struct UniformArena {
    bytes: Vec<u8>,
    /// Byte offset of each dispatch's parameters.
    offsets: Vec<usize>,
}

impl UniformArena {
    /// Uniform offset alignment that every device supports, in bytes.
    const ALIGNMENT: usize = 256;

    fn pack(steps: &[DispatchDesc]) -> Self {
        let mut places = HashMap::new();
        let mut bytes = Vec::new();
        let starts = steps.iter().map(|step| {
            let words = step.params.as_ref().map_or(&[][..], |(_, words)| words);
            *places.entry(words).or_insert_with(|| {
                let start = bytes.len();
                bytes.extend_from_slice(bytemuck::cast_slice(words));
                bytes.resize(
                    start + (4 * words.len()).max(1).next_multiple_of(Self::ALIGNMENT),
                    0,
                );
                start
            })
        });
        let offsets = starts.collect();
        Self { bytes, offsets }
    }
}

/// One command of a submit.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// Runs all dispatches of a program in one compute pass; `grids` overrides the recorded grids.
    Run {
        /// The program.
        program: &'a Program,
        /// One grid per dispatch; a zero skips the dispatch.
        grids: Option<&'a [Grid]>,
    },
    /// Copies between buffers.
    Copy {
        /// Source buffer and byte offset, a multiple of 4.
        from: (&'a Buffer, u64),
        /// Destination buffer and byte offset, a multiple of 4.
        to: (&'a Buffer, u64),
        /// Number of bytes, a multiple of 4.
        size: u64,
    },
}

/// Number of device objects created so far. A decode step must not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceCounts {
    /// Buffers, staging buffers included.
    pub buffers: u64,
    /// Compute pipelines.
    pub pipelines: u64,
    /// Bind groups.
    pub bind_groups: u64,
    /// Bytes of all live buffers.
    pub bytes: u64,
}

/// The device operations that the engine needs. Handles are cheap to clone; the last one frees the
/// resource.
#[allow(async_fn_in_trait)] // single-threaded by design: no Send bound needed
pub trait Backend: Sized {
    /// Opens the device. Retries for some seconds because the first request after a browser starts
    /// can fail.
    async fn open(options: &DeviceOptions) -> Result<Self>;

    /// Capabilities of the device after applying the options.
    fn caps(&self) -> &Caps;

    /// Checks a buffer size against the device's limit.
    ///
    /// # Errors
    /// `OutOfMemory` when the size is over the device's limit.
    fn check_size(&self, label: &str, size: u64) -> Result<()> {
        let limit = self.caps().max_weight_buffer();
        if size > limit {
            Err(out_of_memory(label, size, limit))
        } else {
            Ok(())
        }
    }

    /// Creates a zeroed buffer of `size` bytes, rounded up to a multiple of 16.
    ///
    /// # Errors
    /// `OutOfMemory` when the size is over the device's limit.
    fn buffer(&self, label: &str, size: u64, usage: BufferUsage) -> Result<Buffer>;

    /// Allocates `bytes` more and frees them at once, to learn whether the device has room for them:
    /// [`Self::allocations`] and [`Self::check`] report a refusal. Does nothing on a software
    /// adapter, whose memory is the system's.
    fn probe(&self, bytes: u64);

    /// Waits until the device has answered all allocations so far, but not for other work.
    ///
    /// # Errors
    /// `OutOfMemory` when it refused one; `DeviceLost`.
    fn allocations(&self) -> impl Future<Output = Result<()>>;

    /// The first allocation that the device refused since the last call.
    fn take_refusal(&self) -> Option<Refusal>;

    /// Writes bytes at an offset, both multiples of 4, before the next submit.
    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]);

    /// Writes the first `size` bytes of `data`, as [`Self::write`].
    fn write_host(&self, buffer: &Buffer, offset: u64, data: &HostBytes, size: u64);

    /// Waits until a large write is fast: a browser has few buffers that its GPU process shares.
    ///
    /// # Errors
    /// `DeviceLost`.
    async fn upload_room(&self) -> Result<()>;

    /// Compiles shaders, in parallel where supported. Compilation starts with the call, not with
    /// the first poll.
    fn pipelines(
        &self,
        shaders: &[Shader],
    ) -> impl Future<Output = Result<Vec<Pipeline>>> + use<Self>;

    /// Records a chain of dispatches: uploads its uniforms and creates its bind groups.
    fn program(&self, label: &str, steps: Vec<DispatchDesc>) -> Result<Program>;

    /// Replaces the grids of a program, one per dispatch, for later submits.
    fn set_grids(&self, program: &Program, grids: &[Grid]);

    /// Submits commands in order as one command buffer.
    fn submit(&self, work: &[Command<'_>]) -> Result<()>;

    /// Starts reading bytes (multiples of 4) as they are after all work submitted so far.
    fn start_read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Readback>;

    /// Reads bytes and waits for them.
    async fn read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Vec<u8>> {
        self.start_read(buffer, offset, size)?.wait().await
    }

    /// Waits for all work submitted before the call, whenever the future is awaited.
    fn wait_idle(&self) -> impl Future<Output = Result<()>>;

    /// Runs a program with timestamps around each dispatch. Returns nanoseconds per dispatch.
    /// Requires `caps().timestamps`.
    async fn profile(&self, program: &Program, grids: Option<&[Grid]>) -> Result<Vec<f64>>;

    /// The first error that the device reported since the last call: failed allocation, invalid use
    /// or device loss.
    async fn check(&self) -> Result<()>;

    /// Number of objects created so far.
    fn resource_counts(&self) -> ResourceCounts;
}
