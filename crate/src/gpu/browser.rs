//! The GPU device through the browser's WebGPU (js/gpu.js). Unlike wgpu on the web, it supports
//! asynchronous pipelines, subgroups, uploads that bypass WebAssembly memory, and replay of a
//! recorded program in one call.

use super::{
    Backend, BufferUsage, Caps, Command, DeviceOptions, DispatchDesc, Grid, Refusal,
    ResourceCounts, SubmitGrouping, UniformArena, WebGpuImplementation, out_of_memory,
};
use crate::device::preprocess::Access;
use crate::device::registry::Shader;
use crate::device::{MatrixDialect, SubgroupMatrix};
use crate::util::host;
use crate::{Error, Result};
use js_sys::{Array, Float64Array, Int32Array, Promise, Reflect, Uint8Array, Uint32Array};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, Range};
use std::rc::Rc;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

#[wasm_bindgen(module = "/js/gpu.js")]
extern "C" {
    type JsGpu;
    #[wasm_bindgen(static_method_of = JsGpu, catch)]
    async fn open(
        f16: bool,
        subgroups: bool,
        matrix: bool,
        min_limits: bool,
    ) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    fn facts(this: &JsGpu) -> JsValue;
    #[wasm_bindgen(method, setter)]
    fn set_group(this: &JsGpu, size: u32);
    #[wasm_bindgen(method, catch)]
    fn buffer(this: &JsGpu, label: &str, size: f64, uniform: bool) -> Result<u32, JsValue>;
    #[wasm_bindgen(method)]
    fn probe(this: &JsGpu, bytes: f64);
    #[wasm_bindgen(method)]
    fn allocations(this: &JsGpu) -> Promise;
    #[wasm_bindgen(method, js_name = takeRefusal)]
    fn take_refusal(this: &JsGpu) -> Float64Array;
    #[wasm_bindgen(method)]
    fn destroy(this: &JsGpu, slot: u32);
    #[wasm_bindgen(method)]
    fn write(this: &JsGpu, slot: u32, offset: f64, bytes: &Uint8Array);
    #[wasm_bindgen(method, js_name = uploadRoom)]
    fn upload_room(this: &JsGpu) -> Promise;
    // Passes a view of WebAssembly memory without a copy.
    #[wasm_bindgen(method, js_name = write)]
    fn write_from(this: &JsGpu, slot: u32, offset: f64, bytes: &[u8]);
    #[wasm_bindgen(method)]
    fn compile(this: &JsGpu, labels: &Array, texts: &Array, layouts: &Array) -> Promise;
    #[wasm_bindgen(method)]
    fn program(this: &JsGpu, label: &str, steps: &Int32Array, uniform: u32) -> u32;
    #[wasm_bindgen(method, js_name = dropProgram)]
    fn drop_program(this: &JsGpu, slot: u32);
    #[wasm_bindgen(method, js_name = setGrids)]
    fn set_grids(this: &JsGpu, slot: u32, grids: &Uint32Array);
    #[wasm_bindgen(method)]
    fn run(this: &JsGpu, programs: &[u32], grids: Option<Uint32Array>);
    #[wasm_bindgen(method)]
    fn copy(this: &JsGpu, from: u32, from_offset: f64, to: u32, to_offset: f64, size: f64);
    #[wasm_bindgen(method)]
    fn read(this: &JsGpu, slot: u32, offset: f64, size: f64) -> Promise;
    #[wasm_bindgen(method)]
    fn hurry(this: &JsGpu, readback: &Promise);
    #[wasm_bindgen(method)]
    fn idle(this: &JsGpu) -> Promise;
    #[wasm_bindgen(method)]
    fn profile(this: &JsGpu, slot: u32, grids: &Uint32Array) -> Promise;
    #[wasm_bindgen(method, js_name = takeError)]
    fn take_error(this: &JsGpu) -> Promise;
    #[wasm_bindgen(method)]
    fn created(this: &JsGpu) -> Float64Array;
    #[wasm_bindgen(method)]
    fn close(this: &JsGpu);
}

/// Closes the device when its last handle is dropped; on the main thread nothing else would end it.
struct OwnedJsGpu(JsGpu);

impl Deref for OwnedJsGpu {
    type Target = JsGpu;

    fn deref(&self) -> &JsGpu {
        &self.0
    }
}

impl Drop for OwnedJsGpu {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A WebGPU device of the browser.
pub struct BrowserGpu {
    js: Rc<OwnedJsGpu>,
    caps: Caps,
    bytes: Rc<Cell<u64>>,
    refusal: Cell<Option<Refusal>>,
}

struct BufferInner {
    js: Rc<OwnedJsGpu>,
    slot: u32,
    size: u64,
    bytes: Rc<Cell<u64>>,
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.bytes.set(self.bytes.get() - self.size);
        self.js.destroy(self.slot);
    }
}

/// A GPU buffer whose size counts towards [`ResourceCounts::bytes`] until it is dropped.
#[derive(Clone)]
pub struct Buffer(Rc<BufferInner>);

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
pub struct Pipeline(u32);

/// A recorded chain of dispatches.
pub struct Program {
    js: Rc<OwnedJsGpu>,
    slot: u32,
    labels: Vec<String>,
    grids: RefCell<Vec<Grid>>,
    /// Buffers that the bind groups reference.
    _owned: Vec<Buffer>,
}

impl Program {
    /// Labels of the dispatches.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.js.drop_program(self.slot);
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} steps)", self.labels.len())
    }
}

/// A read in progress.
pub struct Readback {
    bytes: Promise,
    js: Rc<OwnedJsGpu>,
}

impl Readback {
    /// Waits for the bytes.
    pub async fn wait(self) -> Result<Vec<u8>> {
        self.wait_urgently_if(true).await
    }

    /// Waits for the bytes, without hurry unless they are urgent: the caller may have submitted more
    /// work.
    pub async fn wait_urgently_if(self, is_urgent: bool) -> Result<Vec<u8>> {
        if is_urgent {
            self.js.hurry(&self.bytes);
        }
        Ok(self.wait_in_host().await?.0.to_vec())
    }

    /// Waits for the bytes, without hurry, and leaves them in main memory.
    pub async fn wait_in_host(self) -> Result<HostBytes> {
        let bytes = JsFuture::from(self.bytes)
            .await
            .map_err(|e| Error::DeviceLost {
                reason: exception_message(&e),
            })?;
        Ok(HostBytes(Uint8Array::from(bytes)))
    }
}

/// Bytes in the page's memory, outside WebAssembly's, which never shrinks.
pub struct HostBytes(Uint8Array);

impl HostBytes {
    /// Copies bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Uint8Array::from(bytes))
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        u64::from(self.0.length())
    }

    /// Copies a range of the bytes.
    pub fn copy(&self, range: Range<u64>) -> Vec<u8> {
        self.0
            .subarray(range.start as u32, range.end as u32)
            .to_vec()
    }
}

/// The message of a JavaScript exception.
fn exception_message(error: &JsValue) -> String {
    let text = Reflect::get(error, &"message".into())
        .ok()
        .and_then(|m| m.as_string());
    text.unwrap_or_else(|| format!("{error:?}"))
}

impl BrowserGpu {
    /// The first refusal since it was last taken.
    fn refusal(&self) -> Option<Refusal> {
        if let [held, needed, is_probe] = self.js.take_refusal().to_vec()[..] {
            self.refusal.set(self.refusal.get().or(Some(Refusal {
                held: held as u64,
                needed: needed as u64,
                is_probe: is_probe != 0.0,
            })));
        }
        self.refusal.get()
    }

    /// Writes bytes from JavaScript without copying them through WebAssembly memory.
    pub fn write_js(&self, buffer: &Buffer, offset: u64, bytes: &Uint8Array) {
        self.js.write(buffer.0.slot, offset as f64, bytes);
    }

    /// Reads bytes into JavaScript without copying them through WebAssembly memory.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub async fn read_js(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Uint8Array> {
        let read = JsFuture::from(self.js.read(buffer.0.slot, offset as f64, size as f64)).await;
        Ok(Uint8Array::from(read.map_err(|e| Error::DeviceLost {
            reason: exception_message(&e),
        })?))
    }

    /// Changes how many dispatches go into one command buffer, for later submits.
    pub fn set_submit_grouping(&self, group: SubmitGrouping) {
        self.js.set_group(group.size());
    }
}

/// What the user can do; www/src/no-webgpu.tsx gives the same advice in more detail.
const NO_WEBGPU_HINT: &str = "Use Chrome or Edge 113 or later, Safari 26 or later, or Firefox 141 or later (145 on the Mac). Open the page over https or from localhost and enable hardware acceleration in the browser's settings.";

impl Backend for BrowserGpu {
    async fn open(options: &DeviceOptions) -> Result<Self> {
        let agent = host::user_agent();
        let touch_points = host::member("touchPoints")
            .as_f64()
            .map_or(0, |n| n as u32)
            .max(options.touch_points);
        let implementation = WebGpuImplementation::from_user_agent(&agent, touch_points);
        let webkit = implementation.is_webkit();
        // WebKit miscompiles native f16.
        let opened = JsGpu::open(
            options.f16 && !webkit,
            options.subgroups,
            options.matrix,
            options.min_limits,
        )
        .await;
        let js: JsGpu = opened
            .map_err(|e| Error::NoWebGpu {
                reason: exception_message(&e),
                hint: host::member("gpuAdvice")
                    .as_string()
                    .unwrap_or_else(|| NO_WEBGPU_HINT.into()),
            })?
            .unchecked_into();
        js.set_group(
            options
                .submit_grouping
                .unwrap_or(if webkit {
                    SubmitGrouping::Dispatches(1)
                } else {
                    SubmitGrouping::Free
                })
                .size(),
        );
        let caps = Caps {
            agent,
            ..caps_of(&js.facts(), implementation, options)
        };
        Ok(Self {
            js: Rc::new(OwnedJsGpu(js)),
            caps,
            bytes: Rc::default(),
            refusal: Cell::default(),
        })
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn buffer(&self, label: &str, size: u64, usage: BufferUsage) -> Result<Buffer> {
        let size = size.max(16).next_multiple_of(16);
        self.check_size(label, size)?;
        let made = self
            .js
            .buffer(label, size as f64, usage == BufferUsage::Uniform);
        let slot = made.map_err(|_| out_of_memory(label, size, self.caps.max_weight_buffer()))?;
        self.bytes.set(self.bytes.get() + size);
        Ok(Buffer(Rc::new(BufferInner {
            js: self.js.clone(),
            slot,
            size,
            bytes: self.bytes.clone(),
        })))
    }

    fn probe(&self, bytes: u64) {
        if !self.caps.software {
            self.js.probe(bytes as f64);
        }
    }

    fn allocations(&self) -> impl Future<Output = Result<()>> {
        let answered = JsFuture::from(self.js.allocations());
        async {
            match answered.await {
                Ok(refused) if refused.is_falsy() => Ok(()),
                _ => self.check().await,
            }
        }
    }

    fn take_refusal(&self) -> Option<Refusal> {
        let refusal = self.refusal();
        self.refusal.set(None);
        refusal
    }

    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) {
        self.js.write_from(buffer.0.slot, offset as f64, data);
    }

    fn write_host(&self, buffer: &Buffer, offset: u64, data: &HostBytes, size: u64) {
        self.write_js(buffer, offset, &data.0.subarray(0, size as u32));
    }

    async fn upload_room(&self) -> Result<()> {
        let room = JsFuture::from(self.js.upload_room()).await;
        room.map(|_| ()).map_err(|e| Error::DeviceLost {
            reason: exception_message(&e),
        })
    }

    fn pipelines(&self, shaders: &[Shader]) -> impl Future<Output = Result<Vec<Pipeline>>> + use<> {
        let labels = Array::new();
        let texts = Array::new();
        let layouts = Array::new();

        for shader in shaders {
            labels.push(&shader.label.as_str().into());
            texts.push(&shader.text.as_str().into());
            let kind = |a: Access| match a {
                Access::Uniform => 0,
                Access::Read => 1,
                Access::ReadWrite => 2,
            };
            let pairs: Vec<u32> = shader
                .bindings
                .iter()
                .flat_map(|b| [b.binding, kind(b.access)])
                .collect();
            layouts.push(&Uint32Array::from(&pairs[..]));
        }
        let made = JsFuture::from(self.js.compile(&labels, &texts, &layouts));
        async {
            let made = made.await.map_err(|e| {
                let text = exception_message(&e);
                if let Some(reason) = text.strip_prefix("lost:") {
                    return Error::DeviceLost {
                        reason: reason.into(),
                    };
                }
                let (kernel, reason) = text.split_once('\n').unwrap_or(("", &text));
                Error::Kernel {
                    kernel: kernel.into(),
                    reason: reason.into(),
                }
            })?;
            Ok(Uint32Array::from(made)
                .to_vec()
                .into_iter()
                .map(Pipeline)
                .collect())
        }
    }

    fn program(&self, label: &str, steps: Vec<DispatchDesc>) -> Result<Program> {
        let uniforms = UniformArena::pack(&steps);
        let arena = self.buffer(
            label,
            uniforms.bytes.len().max(16) as u64,
            BufferUsage::Uniform,
        )?;
        self.write(&arena, 0, &uniforms.bytes);
        let mut packed = Vec::new();
        let mut labels = Vec::new();
        let mut grids = Vec::new();
        let mut owned = Vec::new();

        for (step, start) in steps.into_iter().zip(uniforms.offsets) {
            packed.push(step.pipeline.0 as i32);
            packed.extend(step.grid.map(|g| g as i32));
            match &step.params {
                Some((binding, words)) => {
                    packed.extend([
                        *binding as i32,
                        start as i32,
                        4 * words.len().next_multiple_of(4) as i32,
                    ]);
                }
                None => packed.extend([-1, 0, 0]),
            }
            packed.push(step.buffers.len() as i32);
            packed.extend(
                step.buffers
                    .iter()
                    .flat_map(|(binding, b)| [*binding as i32, b.0.slot as i32]),
            );
            labels.push(step.label);
            grids.push(step.grid);
            owned.extend(step.buffers.into_iter().map(|(_, b)| b));
        }
        let slot = self
            .js
            .program(label, &Int32Array::from(&packed[..]), arena.0.slot);
        owned.push(arena);
        Ok(Program {
            js: self.js.clone(),
            slot,
            labels,
            grids: grids.into(),
            _owned: owned,
        })
    }

    fn set_grids(&self, program: &Program, grids: &[Grid]) {
        self.js
            .set_grids(program.slot, &Uint32Array::from(grids.as_flattened()));
        *program.grids.borrow_mut() = grids.to_vec();
    }

    fn submit(&self, work: &[Command<'_>]) -> Result<()> {
        // Consecutive programs with recorded grids are replayed together: one call, one pass, one
        // submit.
        let mut programs = [0u32; 64];
        let mut count = 0;
        for part in work {
            match part {
                Command::Run {
                    program,
                    grids: None,
                } if count < programs.len() => {
                    programs[count] = program.slot;
                    count += 1;
                    continue;
                }
                _ if count > 0 => {
                    self.js.run(&programs[..count], None);
                    count = 0;
                }
                _ => {}
            }
            match part {
                Command::Run { program, grids } => {
                    let flat = grids.map(|g| Uint32Array::from(g.as_flattened()));
                    self.js.run(&[program.slot], flat);
                }
                Command::Copy { from, to, size } => {
                    self.js.copy(
                        from.0.0.slot,
                        from.1 as f64,
                        to.0.0.slot,
                        to.1 as f64,
                        *size as f64,
                    );
                }
            }
        }
        if count > 0 || work.is_empty() {
            self.js.run(&programs[..count], None);
        }
        Ok(())
    }

    fn start_read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Readback> {
        Ok(Readback {
            bytes: self.js.read(buffer.0.slot, offset as f64, size as f64),
            js: self.js.clone(),
        })
    }

    fn wait_idle(&self) -> impl Future<Output = Result<()>> {
        let done = JsFuture::from(self.js.idle());
        async {
            done.await.map(|_| ()).map_err(|e| Error::DeviceLost {
                reason: exception_message(&e),
            })
        }
    }

    async fn profile(&self, program: &Program, grids: Option<&[Grid]>) -> Result<Vec<f64>> {
        let profile = |grids: &[Grid]| {
            self.js
                .profile(program.slot, &Uint32Array::from(grids.as_flattened()))
        };
        let times = grids.map_or_else(|| profile(&program.grids.borrow()), profile);
        let times = JsFuture::from(times).await.map_err(|e| Error::DeviceLost {
            reason: exception_message(&e),
        })?;
        Ok(Float64Array::from(times).to_vec())
    }

    async fn check(&self) -> Result<()> {
        let error = JsFuture::from(self.js.take_error()).await;
        let text = match error {
            Ok(value) => value.as_string(),
            Err(e) => Some(format!("lost:{}", exception_message(&e))),
        };
        let Some(text) = text else { return Ok(()) };
        let (kind, reason) = text.split_once(':').unwrap_or(("invalid", &text));
        let (what, reason) = reason.split_once('\n').unwrap_or(("", reason));
        let named = |other: &str| {
            if what.is_empty() {
                other.to_string()
            } else {
                what.to_string()
            }
        };
        Err(match kind {
            "memory" => {
                let refusal = self.refusal();
                let refusal = refusal.unwrap_or(Refusal::unknown(self.bytes.get()));
                refusal.error(named("the model"))
            }
            "lost" => Error::DeviceLost {
                reason: reason.into(),
            },
            _ => Error::Kernel {
                kernel: named("(unnamed command)"),
                reason: reason.into(),
            },
        })
    }

    fn resource_counts(&self) -> ResourceCounts {
        let counts = self.js.created().to_vec();
        let [buffers, pipelines, bind_groups] =
            [0, 1, 2].map(|i| counts.get(i).copied().unwrap_or(0.0) as u64);
        ResourceCounts {
            buffers,
            pipelines,
            bind_groups,
            bytes: self.bytes.get(),
        }
    }
}

/// Estimates GPU memory, which browsers do not report: half of `navigator.deviceMemory` (at most 8
/// GB, not available everywhere), or the largest buffer where that is more.
fn estimate_memory(largest: u64) -> u64 {
    let gigabytes = host::member("deviceMemory").as_f64().unwrap_or(0.0);
    largest.max((gigabytes * 0.5 * f64::from(1 << 30)) as u64)
}

fn caps_of(facts: &JsValue, implementation: WebGpuImplementation, options: &DeviceOptions) -> Caps {
    let get = |name: &str| Reflect::get(facts, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let text = |name: &str| get(name).as_string().unwrap_or_default();
    let number = |name: &str| get(name).as_f64().unwrap_or(0.0);
    let flag = |name: &str| get(name).is_truthy();
    let cap = |limit: f64| options.limit_buffer_size(limit as u64);
    let webkit = implementation.is_webkit();
    let ends_pages = implementation.ends_pages(&host::user_agent());
    let estimate = implementation
        .memory_limit()
        .unwrap_or_else(|| estimate_memory(number("maxBufferSize") as u64));
    let storage = number("maxWorkgroupStorage") as u32;
    let vendor = text("vendor");
    let lanes = (number("subgroupMin") as u32, number("subgroupMax") as u32);

    // Subgroup size of the matrix kernels, which may request one of several sizes.
    let own = match number("matrixLanes") as u32 {
        0 => lanes,
        own => (own, own),
    };
    // Pairs of (matrix size, 1 for f16 inputs).
    let listed = Uint32Array::from(get("matrices")).to_vec();
    let listed: Vec<_> = listed
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1] == 1))
        .collect();
    let words = if flag("standardMatrices") {
        MatrixDialect::Standard
    } else {
        MatrixDialect::Chromium
    };
    Caps {
        matrix: SubgroupMatrix::best(&listed, own, &vendor, words),
        vendor,
        architecture: text("architecture"),
        description: text("description"),
        f16: flag("f16"),
        subgroups: flag("subgroups"),
        subgroup_size: lanes,
        timestamps: flag("timestamps"),
        max_buffer_size: cap(number("maxBufferSize")),
        max_binding_size: cap(number("maxBindingSize")),
        memory: ends_pages.then_some(estimate),
        estimated_memory: Some(estimate),
        measured: Rc::default(),
        max_workgroup_storage: if webkit {
            storage.min(16 << 10)
        } else {
            storage
        },
        max_invocations: number("maxInvocations") as u32,
        packed_dot: flag("packedDot"),
        webkit,
        ios: matches!(
            implementation,
            WebGpuImplementation::IPhone | WebGpuImplementation::IPad
        ),
        software: flag("software"),
        gpu_kernels: options.gpu_kernels,
        agent: String::new(),
        tuned: options.tuning_table(),
        force: options.variant_override,
    }
}
