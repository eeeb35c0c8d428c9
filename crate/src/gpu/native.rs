//! The native GPU device through wgpu (Vulkan, Metal, DX12), used by tests, the native runner and
//! profiling.

mod adapter;
mod pipeline;

use super::{
    Backend, BufferUsage, Caps, Command, DeviceOptions, DispatchDesc, Grid, PROBE_BUFFER_BYTES,
    Refusal, ResourceCounts, UniformArena, out_of_memory,
};
use crate::device::registry::Shader;
use crate::{Error, Result};
use adapter::{caps_of, experimental, limits_of};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Poll;
use std::time::Duration;

/// How long error handling waits for a device-lost report.
const DEVICE_LOST_TIMEOUT: Duration = Duration::from_secs(2);

/// The one wgpu instance of the process, never dropped. When NVIDIA's driver is unloaded, every
/// thread that called it crashes on exit.
static INSTANCE: LazyLock<wgpu::Instance> = LazyLock::new(|| {
    wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env())
});

/// A wgpu device.
pub struct NativeGpu {
    inner: Rc<Inner>,
}

struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    caps: Caps,
    created: Rc<Cell<ResourceCounts>>,
    staging: RefCell<HashMap<u64, Vec<wgpu::Buffer>>>,
    error: Arc<Mutex<Option<Error>>>,
    /// Why the device was lost.
    lost: Arc<Mutex<Option<String>>>,
    /// Dispatches whose `program/label` contains this are skipped.
    omit: Option<&'static str>,
    /// Maximum total bytes of all buffers.
    max_bytes: Cell<u64>,
    /// The first refused allocation.
    refusal: Cell<Option<Refusal>>,
    /// Compiled kernels by WGSL source, where caching is enabled.
    kernel_cache: OnceCell<Kernels>,
}

type Kernels = Rc<RefCell<HashMap<String, Pipeline>>>;

/// A GPU buffer whose size counts towards [`ResourceCounts::bytes`] until it is dropped.
#[derive(Clone)]
pub struct Buffer(Rc<BufferInner>);

struct BufferInner {
    raw: wgpu::Buffer,
    size: u64,
    created: Rc<Cell<ResourceCounts>>,
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        let mut count = self.created.get();
        count.bytes -= self.size;
        self.created.set(count);
        self.raw.destroy();
    }
}

impl Buffer {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// Whether both handles refer to the same buffer.
    pub fn is_same_buffer(&self, other: &Buffer) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.size)
    }
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct Pipeline(Rc<(wgpu::ComputePipeline, wgpu::BindGroupLayout)>);

/// A recorded chain of dispatches.
#[derive(Debug)]
pub struct Program {
    steps: Vec<(Pipeline, wgpu::BindGroup, Cell<Grid>)>,
    labels: Vec<String>,
    /// Indices of dispatches that are skipped (`DeviceOptions::omit`).
    omitted: Vec<usize>,
    /// Buffers that the bind groups reference.
    _owned: Vec<Buffer>,
}

impl Program {
    /// Labels of the dispatches.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }
}

/// Lets other futures of this thread run before it blocks, as a browser does while it waits.
async fn let_others_run() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A read in progress.
pub struct Readback {
    gpu: Rc<Inner>,
    staging: wgpu::Buffer,
    size: u64,
    submission: wgpu::SubmissionIndex,
    result: Arc<Mutex<Option<Result<(), wgpu::BufferAsyncError>>>>,
}

impl Readback {
    /// Waits for the bytes.
    pub async fn wait(self) -> Result<Vec<u8>> {
        let lost = |reason: String| Error::DeviceLost { reason };
        let_others_run().await;
        // Waits for this submission only; later ones continue.
        let until = wgpu::PollType::Wait {
            submission_index: Some(self.submission),
            timeout: None,
        };
        self.gpu
            .device
            .poll(until)
            .map_err(|e| lost(e.to_string()))?;
        let result = self.result.lock().ok().and_then(|mut r| r.take());
        result
            .ok_or_else(|| lost("the readback buffer was not mapped".into()))?
            .map_err(|e| lost(e.to_string()))?;
        let view = self
            .staging
            .get_mapped_range(..self.size)
            .map_err(|e| lost(e.to_string()))?;
        let data = view.to_vec();
        drop(view);
        self.staging.unmap();
        self.gpu.recycle_staging(self.staging);
        Ok(data)
    }

    /// Waits for the bytes and leaves them in main memory.
    pub async fn wait_in_host(self) -> Result<HostBytes> {
        self.wait().await.map(HostBytes)
    }

    /// Waits for the bytes. All are urgent here.
    pub async fn wait_urgently_if(self, _is_urgent: bool) -> Result<Vec<u8>> {
        self.wait().await
    }
}

/// Bytes in main memory; in a browser outside WebAssembly's, which never shrinks.
pub struct HostBytes(Vec<u8>);

impl HostBytes {
    /// Copies bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        self.0.len() as u64
    }

    /// Copies a range of the bytes.
    pub fn copy(&self, range: Range<u64>) -> Vec<u8> {
        self.0[range.start as usize..range.end as usize].to_vec()
    }
}

impl Inner {
    /// Replaces an error by `DeviceLost` if the device is lost.
    fn or_device_lost(&self, error: Error) -> Error {
        // wgpu reports a loss only from a poll, after pending work ends.
        let _ = self.device.poll(wgpu::PollType::Wait {
            submission_index: None,
            timeout: Some(DEVICE_LOST_TIMEOUT),
        });
        let lost = self.lost.lock().ok().and_then(|lost| lost.clone());
        lost.map_or(error, |reason| Error::DeviceLost { reason })
    }

    /// Returns a staging buffer to the pool, or destroys it when the pool is full.
    fn recycle_staging(&self, staging: wgpu::Buffer) {
        let mut pools = self.staging.borrow_mut();
        let kept: u64 = pools
            .iter()
            .map(|(size, pool)| size * pool.len() as u64)
            .sum();
        if kept + staging.size() > super::MAX_STAGED_BYTES {
            staging.destroy();
        } else {
            pools.entry(staging.size()).or_default().push(staging);
        }
    }
}

impl NativeGpu {
    /// Whether the device refused memory and [`Backend::check`] has not reported it.
    fn is_refused(&self) -> bool {
        let error = self.inner.error.lock();
        error.is_ok_and(|error| matches!(*error, Some(Error::OutOfMemory { .. })))
    }

    /// Allocates a buffer after `held` bytes; notes if the device refuses.
    fn allocate(
        &self,
        descriptor: &wgpu::BufferDescriptor<'_>,
        held: u64,
        is_probe: bool,
    ) -> wgpu::Buffer {
        let was_refused = self.is_refused();
        let raw = self.inner.device.create_buffer(descriptor);
        let needed = held + descriptor.size;
        // Reported asynchronously, as a device does.
        if needed > self.inner.max_bytes.get()
            && let Ok(mut error) = self.inner.error.lock()
        {
            error.get_or_insert(out_of_memory("the model", 0, 0));
        }
        if !was_refused && self.is_refused() {
            self.inner.refusal.set(Some(Refusal {
                held,
                needed,
                is_probe,
            }));
        }
        raw
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.inner
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn update_counts(&self, change: impl Fn(&mut ResourceCounts)) {
        let mut created = self.inner.created.get();
        change(&mut created);
        self.inner.created.set(created);
    }

    fn staging(&self, size: u64) -> wgpu::Buffer {
        let size = size.next_power_of_two().max(256);
        if let Some(buffer) = self
            .inner
            .staging
            .borrow_mut()
            .get_mut(&size)
            .and_then(Vec::pop)
        {
            return buffer;
        }
        self.update_counts(|c| c.buffers += 1);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.inner.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("staging"),
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    fn record_program(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        program: &Program,
        grids: Option<&[Grid]>,
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let mut last: Option<&Pipeline> = None;
        for (index, (pipeline, group, grid)) in program.steps.iter().enumerate() {
            let [x, y, z] = grids.map_or(grid.get(), |g| g[index]);
            if x == 0 || y == 0 || z == 0 || program.omitted.contains(&index) {
                continue;
            }
            if last.is_none_or(|l| !Rc::ptr_eq(&l.0, &pipeline.0)) {
                pass.set_pipeline(&pipeline.0.0);
                last = Some(pipeline);
            }
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

impl Backend for NativeGpu {
    async fn open(options: &DeviceOptions) -> Result<Self> {
        let none = |reason: String| {
            Error::NoWebGpu {
            reason,
            hint: "Install a Vulkan, Metal or DX12 driver. The package mesa-vulkan-drivers includes one that runs on the CPU.".into(),
        }
        };
        let request = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = INSTANCE
            .request_adapter(&request)
            .await
            .map_err(|e| none(e.to_string()))?;
        let caps = caps_of(&adapter, options);
        let wanted = [
            (caps.f16, wgpu::Features::SHADER_F16),
            (caps.subgroups, wgpu::Features::SUBGROUP),
            (caps.timestamps, wgpu::Features::TIMESTAMP_QUERY),
            (
                caps.matrix.is_some(),
                wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX,
            ),
        ];
        let features = wanted
            .iter()
            .filter(|w| w.0)
            .fold(wgpu::Features::empty(), |all, w| all | w.1);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("jerboa"),
            required_features: features,
            required_limits: limits_of(&adapter, options),
            experimental_features: experimental(&caps),
            ..Default::default()
        };
        let (device, queue) = adapter
            .request_device(&descriptor)
            .await
            .map_err(|e| none(e.to_string()))?;
        let error = Arc::new(Mutex::new(None));
        let sink = error.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let reason = e.to_string();
            let found = match e {
                wgpu::Error::OutOfMemory { .. } => out_of_memory("the model", 0, 0),
                _ => Error::Kernel {
                    kernel: "(unnamed command)".into(),
                    reason,
                },
            };
            if let Ok(mut slot) = sink.lock() {
                slot.get_or_insert(found);
            }
        }));
        let lost = Arc::new(Mutex::new(None));
        let sink = lost.clone();
        device.set_device_lost_callback(move |reason, message| {
            if let Ok(mut slot) = sink.lock() {
                *slot = Some(format!("{reason:?}: {message}"));
            }
        });
        let created = Rc::default();
        Ok(Self {
            inner: Rc::new(Inner {
                device,
                queue,
                caps,
                created,
                staging: RefCell::default(),
                error,
                lost,
                omit: options.omit,
                max_bytes: Cell::new(u64::MAX),
                refusal: Cell::default(),
                kernel_cache: OnceCell::new(),
            }),
        })
    }

    fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    fn buffer(&self, label: &str, size: u64, usage: BufferUsage) -> Result<Buffer> {
        let size = size.max(16).next_multiple_of(16);
        self.check_size(label, size)?;
        let usage = match usage {
            BufferUsage::Storage => wgpu::BufferUsages::STORAGE,
            BufferUsage::Uniform => wgpu::BufferUsages::UNIFORM,
        } | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        };
        let raw = self.allocate(&descriptor, self.resource_counts().bytes, false);
        self.update_counts(|c| {
            c.buffers += 1;
            c.bytes += size;
        });
        Ok(Buffer(Rc::new(BufferInner {
            raw,
            size,
            created: self.inner.created.clone(),
        })))
    }

    fn probe(&self, bytes: u64) {
        if self.inner.caps.software && self.inner.max_bytes.get() == u64::MAX {
            return;
        }
        let held = self.resource_counts().bytes;
        let step = PROBE_BUFFER_BYTES.min(self.inner.caps.max_weight_buffer());
        let allocate = |at: u64| {
            let descriptor = wgpu::BufferDescriptor {
                label: Some("probe"),
                size: step.min(bytes - at).next_multiple_of(16),
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            };
            self.allocate(&descriptor, held + at, true)
        };
        let made: Vec<_> = (0..bytes).step_by(step as usize).map(allocate).collect();
        made.iter().for_each(wgpu::Buffer::destroy);
    }

    async fn allocations(&self) -> Result<()> {
        if self.is_refused() {
            self.check().await
        } else {
            Ok(())
        }
    }

    fn take_refusal(&self) -> Option<Refusal> {
        self.inner.refusal.take()
    }

    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) {
        self.inner.queue.write_buffer(&buffer.0.raw, offset, data);
    }

    fn write_host(&self, buffer: &Buffer, offset: u64, data: &HostBytes, size: u64) {
        self.write(buffer, offset, &data.0[..size as usize]);
    }

    async fn upload_room(&self) -> Result<()> {
        Ok(())
    }

    fn pipelines(&self, shaders: &[Shader]) -> impl Future<Output = Result<Vec<Pipeline>>> + use<> {
        std::future::ready(shaders.iter().map(|s| self.compile_cached(s)).collect())
    }

    fn program(&self, label: &str, steps: Vec<DispatchDesc>) -> Result<Program> {
        let uniforms = UniformArena::pack(&steps);
        let arena = self.buffer(
            label,
            uniforms.bytes.len().max(16) as u64,
            BufferUsage::Uniform,
        )?;
        self.write(&arena, 0, &uniforms.bytes);
        let mut recorded = Vec::new();
        let mut labels = Vec::new();
        let mut owned = Vec::new();
        let mut omitted = Vec::new();

        for (step, start) in steps.into_iter().zip(uniforms.offsets) {
            if self
                .inner
                .omit
                .is_some_and(|what| format!("{label}/{}", step.label).contains(what))
            {
                omitted.push(recorded.len());
            }
            let mut entries: Vec<wgpu::BindGroupEntry<'_>> = step
                .buffers
                .iter()
                .map(|(binding, b)| wgpu::BindGroupEntry {
                    binding: *binding,
                    resource: b.0.raw.as_entire_binding(),
                })
                .collect();
            if let Some((binding, words)) = &step.params {
                let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &arena.0.raw,
                    offset: start as u64,
                    size: std::num::NonZeroU64::new(4 * words.len().next_multiple_of(4) as u64),
                });
                entries.push(wgpu::BindGroupEntry {
                    binding: *binding,
                    resource,
                });
            }
            let descriptor = wgpu::BindGroupDescriptor {
                label: Some(&step.label),
                layout: &step.pipeline.0.1,
                entries: &entries,
            };
            let group = self.inner.device.create_bind_group(&descriptor);
            self.update_counts(|c| c.bind_groups += 1);
            labels.push(step.label);
            owned.extend(step.buffers.into_iter().map(|(_, buffer)| buffer));
            recorded.push((step.pipeline, group, Cell::new(step.grid)));
        }
        owned.push(arena);
        Ok(Program {
            steps: recorded,
            labels,
            omitted,
            _owned: owned,
        })
    }

    fn set_grids(&self, program: &Program, grids: &[Grid]) {
        program
            .steps
            .iter()
            .zip(grids)
            .for_each(|((_, _, recorded), grid)| recorded.set(*grid));
    }

    fn submit(&self, work: &[Command<'_>]) -> Result<()> {
        let mut encoder = self.encoder();
        for part in work {
            match part {
                Command::Run { program, grids } => {
                    self.record_program(&mut encoder, program, *grids);
                }
                Command::Copy { from, to, size } => {
                    encoder.copy_buffer_to_buffer(&from.0.0.raw, from.1, &to.0.0.raw, to.1, *size);
                }
            }
        }
        self.inner.queue.submit([encoder.finish()]);
        Ok(())
    }

    fn start_read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Readback> {
        let staging = self.staging(size);
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(&buffer.0.raw, offset, &staging, 0, size);
        let submission = self.inner.queue.submit([encoder.finish()]);
        let result = Arc::new(Mutex::new(None));
        let sink = result.clone();
        staging.map_async(wgpu::MapMode::Read, ..size, move |r| {
            if let Ok(mut slot) = sink.lock() {
                *slot = Some(r);
            }
        });
        Ok(Readback {
            gpu: self.inner.clone(),
            staging,
            size,
            submission,
            result,
        })
    }

    async fn wait_idle(&self) -> Result<()> {
        let_others_run().await;
        let done = self.inner.device.poll(wgpu::PollType::wait_indefinitely());
        done.map(|_| ()).map_err(|e| Error::DeviceLost {
            reason: e.to_string(),
        })
    }

    async fn profile(&self, program: &Program, grids: Option<&[Grid]>) -> Result<Vec<f64>> {
        let count = program.steps.len() as u32;
        let queries = self
            .inner
            .device
            .create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2 * count,
            });
        let resolved = self.inner.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: u64::from(count) * 16,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let mut encoder = self.encoder();
        for (index, (pipeline, group, grid)) in program.steps.iter().enumerate() {
            let [x, y, z] = grids.map_or(grid.get(), |g| g[index]);
            let writes = wgpu::ComputePassTimestampWrites {
                query_set: &queries,
                beginning_of_pass_write_index: Some(2 * index as u32),
                end_of_pass_write_index: Some(2 * index as u32 + 1),
            };
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(writes),
            });
            pass.set_pipeline(&pipeline.0.0);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        encoder.resolve_query_set(&queries, 0..2 * count, &resolved, 0);
        self.inner.queue.submit([encoder.finish()]);
        let created = self.inner.created.clone();
        let size = u64::from(count) * 16;
        self.update_counts(|c| c.bytes += size);
        let buffer = Buffer(Rc::new(BufferInner {
            raw: resolved,
            size,
            created,
        }));
        let bytes = self.read(&buffer, 0, size).await?;
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
        let period = f64::from(self.inner.queue.get_timestamp_period());
        Ok(ticks
            .chunks_exact(2)
            .map(|t| t[1].saturating_sub(t[0]) as f64 * period)
            .collect())
    }

    async fn check(&self) -> Result<()> {
        let taken = self.inner.error.lock().ok().and_then(|mut e| e.take());
        taken.map_or(Ok(()), |error| match error {
            // wgpu reports no size.
            Error::OutOfMemory { .. } => {
                let alive = self.resource_counts().bytes;
                let refusal = self.inner.refusal.get();
                let refusal = refusal.unwrap_or(Refusal::unknown(alive));
                Err(refusal.error("the model"))
            }
            other => Err(self.inner.or_device_lost(other)),
        })
    }

    fn resource_counts(&self) -> ResourceCounts {
        self.inner.created.get()
    }
}

impl NativeGpu {
    /// The same device with simulated options: a forced constant, a tuning table, skipped
    /// dispatches or a smaller buffer limit. Resources are counted separately. Compiled kernels are
    /// shared between all devices derived from one handle.
    pub fn with_options(&self, options: &DeviceOptions) -> Self {
        let inner = &self.inner;
        let caps = Caps {
            max_buffer_size: options.limit_buffer_size(inner.caps.max_buffer_size),
            max_binding_size: options.limit_buffer_size(inner.caps.max_binding_size),
            tuned: options.tuning_table(),
            force: options.variant_override,
            gpu_kernels: options.gpu_kernels,
            measured: Rc::default(),
            ..inner.caps.clone()
        };
        Self {
            inner: Rc::new(Inner {
                device: inner.device.clone(),
                queue: inner.queue.clone(),
                caps,
                created: Rc::default(),
                staging: RefCell::default(),
                error: inner.error.clone(),
                lost: inner.lost.clone(),
                omit: options.omit,
                max_bytes: Cell::new(u64::MAX),
                refusal: Cell::default(),
                kernel_cache: inner.kernel_cache.clone(),
            }),
        }
    }

    /// Enables the kernel cache. Call it before [`Self::under`].
    pub fn cache_kernels(&self) {
        let _ = self.inner.kernel_cache.set(Kernels::default());
    }

    /// Returns a function that destroys the device from any thread, for tests of device loss.
    pub fn device_destroyer(&self) -> impl FnOnce() + Send + 'static + use<> {
        let device = self.inner.device.clone();
        move || device.destroy()
    }

    /// Returns a function that waits, on any thread, until the device has done what was submitted.
    /// For devices that are never dropped, so that no thread of the driver works while the process
    /// exits.
    pub fn idle_waiter(&self) -> impl FnOnce() + Send + 'static + use<> {
        let device = self.inner.device.clone();
        // A lost device has nothing left to do.
        move || drop(device.poll(wgpu::PollType::wait_indefinitely()))
    }

    /// Simulates a limit of `bytes` more buffer memory, or no limit; for tests.
    pub fn simulate_memory_limit(&self, bytes: Option<u64>) {
        self.inner
            .max_bytes
            .set(bytes.map_or(u64::MAX, |bytes| self.resource_counts().bytes + bytes));
    }
}
