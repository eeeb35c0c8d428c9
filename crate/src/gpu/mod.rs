//! The device: capabilities, buffers, pipelines, recorded programs and readback, behind one trait.
//! `native.rs` drives wgpu, `browser.rs` drives the browser's WebGPU. Nothing here knows what a model is.

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;

pub use crate::device::{Caps, DeviceOptions, Force, Grid, Group, Implementation};
#[cfg(target_arch = "wasm32")]
pub use browser::{BrowserGpu as Gpu, Buffer, Pipeline, Program, Readback};
#[cfg(not(target_arch = "wasm32"))]
pub use native::{Buffer, NativeGpu as Gpu, Pipeline, Program, Readback};

use std::collections::HashMap;

use crate::device::registry::Shader;
use crate::{Error, Result};

/// The error for what the device has no room for.
fn out_of_memory(what: impl Into<String>, needed: u64, limit: u64) -> Error {
    let hint = "Load a smaller or more strongly quantized model, or a smaller maxContext.".into();
    Error::OutOfMemory { what: what.into(), needed, limit, hint }
}

/// How a buffer is used; all of them may be copied from and to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Read and written by shaders.
    Storage,
    /// Read by shaders as `var<uniform>`.
    Uniform,
}

/// Bytes of staging buffers that are kept for later reads; js/gpu.js keeps as many.
#[cfg(not(target_arch = "wasm32"))]
const MOST_STAGED: u64 = 32 << 20;

/// One dispatch of a program before it is recorded.
#[derive(Debug, Clone)]
pub struct StepDesc {
    /// For profiles and errors.
    pub label: String,
    /// What runs.
    pub pipeline: Pipeline,
    /// Binding number and buffer, bound whole.
    pub buffers: Vec<(u32, Buffer)>,
    /// The words of the kernel's `Params`, with the binding of its uniform.
    pub params: Option<(u32, Vec<u32>)>,
    /// Workgroups; may be replaced at each submit.
    pub grid: Grid,
}

/// The parameters of a program's steps in one buffer. Steps with the same ones share a place, which so stays in the
/// device's caches from layer to layer.
struct Uniforms {
    bytes: Vec<u8>,
    /// Where each step's begin.
    starts: Vec<usize>,
}

impl Uniforms {
    /// The least distance between two places that every device allows, in bytes.
    const STRIDE: usize = 256;

    fn of(steps: &[StepDesc]) -> Self {
        let mut places = HashMap::new();
        let mut bytes = Vec::new();
        let starts = steps.iter().map(|step| {
            let words = step.params.as_ref().map_or(&[][..], |(_, words)| words);
            *places.entry(words).or_insert_with(|| {
                let start = bytes.len();
                bytes.extend_from_slice(bytemuck::cast_slice(words));
                bytes.resize(start + (4 * words.len()).max(1).next_multiple_of(Self::STRIDE), 0);
                start
            })
        });
        let starts = starts.collect();
        Self { bytes, starts }
    }
}

/// A part of one submit.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// All steps of a program in one compute pass; `grids` replaces the recorded grids.
    Run {
        /// The program.
        program: &'a Program,
        /// One grid per step; a grid with a zero skips the step.
        grids: Option<&'a [Grid]>,
    },
    /// A copy between buffers (bytes, multiples of 4).
    Copy {
        /// From where.
        from: (&'a Buffer, u64),
        /// To where.
        to: (&'a Buffer, u64),
        /// How many bytes.
        size: u64,
    },
}

/// How many objects of the device were made since its creation: what a decode step must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Created {
    /// Buffers, staging buffers included.
    pub buffers: u64,
    /// Compute pipelines.
    pub pipelines: u64,
    /// Bind groups.
    pub bind_groups: u64,
    /// Bytes of the buffers that are alive.
    pub bytes: u64,
}

/// What the engine asks of a device. Handles are cheap to clone and free what they own when the last one goes.
#[allow(async_fn_in_trait)] // single-threaded by design: no Send bound is wanted
pub trait Backend: Sized {
    /// Opens the device, retrying for some seconds: the first request after a browser's start can fail.
    async fn open(options: &DeviceOptions) -> Result<Self>;

    /// What the device can do, after the options' restrictions.
    fn caps(&self) -> &Caps;

    /// Whether the device has buffers of so many bytes at all.
    ///
    /// # Errors
    /// `OutOfMemory` when the size is over the device's limit.
    fn fits(&self, label: &str, size: u64) -> Result<()> {
        let limit = self.caps().max_weight_buffer();
        if size > limit { Err(out_of_memory(label, size, limit)) } else { Ok(()) }
    }

    /// A zeroed buffer of `size` bytes, rounded up to a multiple of 16.
    ///
    /// # Errors
    /// `OutOfMemory` when the size is over the device's limit.
    fn buffer(&self, label: &str, size: u64, usage: Usage) -> Result<Buffer>;

    /// Writes bytes at an offset, both multiples of 4, before the next submit.
    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]);

    /// Compiles shaders, all at once where the device can; it begins when it is asked, not when it is waited for.
    fn pipelines(&self, shaders: &[Shader]) -> impl Future<Output = Result<Vec<Pipeline>>> + use<Self>;

    /// Makes everything constant of a chain of dispatches: uniforms and bind groups.
    fn program(&self, label: &str, steps: Vec<StepDesc>) -> Result<Program>;

    /// Gives a program other grids than it was recorded with, one per step, for what is submitted from now on.
    fn regrid(&self, program: &Program, grids: &[Grid]);

    /// Submits work in order, as one command buffer.
    fn submit(&self, work: &[Work<'_>]) -> Result<()>;

    /// Starts to read bytes (multiples of 4) as they are after all work submitted so far.
    fn read_later(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Readback>;

    /// Reads bytes, waiting for them.
    async fn read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Vec<u8>> {
        self.read_later(buffer, offset, size)?.wait().await
    }

    /// Waits until all work is done that was submitted before the call, whenever that is awaited.
    fn wait_idle(&self) -> impl Future<Output = Result<()>>;

    /// Runs a program with a timestamp around each step: nanoseconds per step. Needs `caps().timestamps`.
    async fn profile(&self, program: &Program, grids: Option<&[Grid]>) -> Result<Vec<f64>>;

    /// The first error the device reported since the last call: allocation failures, invalid use, loss.
    async fn check(&self) -> Result<()>;

    /// Objects made so far.
    fn created(&self) -> Created;
}
