//! Helpers shared by the test targets of this crate: devices, kernel runs on plain vectors,
//! comparisons.

pub mod capped;
pub mod checkpoint;
pub mod gguf;
pub mod golden;
pub mod grammar;

use jerboa::gpu::{
    Backend, BufferUsage, DeviceOptions, DispatchDesc, Gpu, Pipeline, VariantOverride,
};
use jerboa::ir::{Activation, Pooling};
use jerboa::kernels::Launch;
use jerboa::kernels::registry::{Kernel, Shader};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

/// All activations.
pub const ACTIVATIONS: [Activation; 9] = [
    Activation::None,
    Activation::Silu,
    Activation::GeluTanh,
    Activation::Gelu,
    Activation::Relu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Relu2,
    Activation::QuickGelu,
];

/// All ways to pool a sequence.
pub const POOLINGS: [Pooling; 6] = [
    Pooling::Mean,
    Pooling::First,
    Pooling::Last,
    Pooling::Max,
    Pooling::MeanSqrt,
    Pooling::Weighted,
];

/// A device of a test thread. It is never dropped, since wgpu cannot be used in a thread's
/// destructors; when the thread ends, its work is waited for.
struct ThreadGpu(&'static Gpu);

impl ThreadGpu {
    fn open(options: &DeviceOptions) -> ThreadGpu {
        ThreadGpu(Box::leak(Box::new(open_alone(options))))
    }
}

impl Drop for ThreadGpu {
    fn drop(&mut self) {
        // A panic there is one of wgpu, after the test's own result.
        let _ = std::thread::spawn(self.0.idle_waiter()).join();
    }
}

/// This test thread's device with all its features.
pub fn gpu() -> &'static Gpu {
    thread_local!(static GPU: OnceCell<ThreadGpu> = const { OnceCell::new() });
    GPU.with(|cell| {
        cell.get_or_init(|| ThreadGpu::open(&DeviceOptions::default()))
            .0
    })
}

/// Whether all tests use WebGPU's minimum features and limits: `JERBOA_LEAST=1`.
pub fn least() -> bool {
    std::env::var_os("JERBOA_LEAST").is_some()
}

/// Says that a test checks nothing here, and why: a silent return reads as a pass.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// A device with some features disabled, shared by requests with equal options, since a software
/// adapter compiles kernels slowly.
pub fn open(options: &DeviceOptions) -> Gpu {
    type Features = [bool; 4];
    thread_local!(static OPEN: RefCell<Vec<(Features, ThreadGpu)>> = RefCell::default());
    let options = &allowed(options);
    let features = [
        options.f16,
        options.subgroups,
        options.matrix,
        options.min_limits,
    ];
    let known = OPEN.with_borrow(|all| {
        all.iter()
            .find(|(known, _)| *known == features)
            .map(|(_, opened)| opened.0)
    });
    let gpu = known.unwrap_or_else(|| {
        let opened = ThreadGpu::open(options);
        let gpu = opened.0;
        gpu.cache_kernels();
        OPEN.with_borrow_mut(|all| all.push((features, opened)));
        gpu
    });
    gpu.with_options(options)
}

/// A new, unshared device: for tests that lose it or count compilations.
pub fn open_alone(options: &DeviceOptions) -> Gpu {
    let opened = pollster::block_on(Gpu::open(&allowed(options)));
    opened.expect("a Vulkan adapter; mesa-vulkan-drivers has one for the CPU")
}

/// These options, reduced to WebGPU's minimum if `JERBOA_LEAST` is set.
fn allowed(options: &DeviceOptions) -> DeviceOptions {
    let few = |options| DeviceOptions {
        f16: false,
        subgroups: false,
        min_limits: true,
        ..options
    };
    if least() {
        few(options.clone())
    } else {
        options.clone()
    }
}

/// Deterministic numbers in [-1, 1) from a seed. Plain loops: this crate is compiled without
/// optimization, and tests take millions of numbers.
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = first_state(seed);
    let mut values = vec![0.0; count];
    for value in &mut values {
        *value = next_number(&mut state);
    }
    values
}

/// One of these numbers, by its index, without a generator's state.
pub fn number(seed: u64, place: usize) -> f32 {
    let mut state = first_state(seed);
    for _ in 0..place {
        next_number(&mut state);
    }
    next_number(&mut state)
}

fn first_state(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn next_number(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// A device whose GEMMs use f16 subgroup matrices in tiles of this height, emulated where the
/// device has none.
pub fn on_units(tile: u32) -> DeviceOptions {
    let force = Some(VariantOverride {
        kernel: Kernel::GemmMatrix,
        name: "BM",
        value: tile,
    });
    DeviceOptions {
        variant_override: force,
        ..DeviceOptions::default()
    }
}

/// Maximum error against the reference on a device: `exact`, or more where its GEMMs use f16.
pub fn limit(gpu: &Gpu, exact: f64) -> f64 {
    if gpu.caps().subgroup_matrix().is_some_and(|units| units.half) {
        1e-2
    } else {
        exact
    }
}

/// Runs one launch whose buffers are indices into `buffers`; returns the contents of all buffers
/// afterwards.
pub fn run(gpu: &Gpu, launch: &Launch<usize>, rows: u32, buffers: &[Vec<u8>]) -> Vec<Vec<u8>> {
    run_all(gpu, std::slice::from_ref(launch), rows, buffers)
}

/// Runs launches in order on the same buffers.
pub fn run_all(
    gpu: &Gpu,
    launches: &[Launch<usize>],
    rows: u32,
    buffers: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let handles: Vec<_> = buffers
        .iter()
        .map(|bytes: &Vec<u8>| {
            let buffer = gpu
                .buffer("test", bytes.len() as u64, BufferUsage::Storage)
                .expect("buffer");
            let mut padded = bytes.clone();
            padded.resize(bytes.len().next_multiple_of(4), 0);
            gpu.write(&buffer, 0, &padded);
            buffer
        })
        .collect();
    let mut steps = Vec::new();
    for launch in launches {
        let shader = launch.variant.shader(false).expect("a declared variant");
        let resolved = launch.resolve(&shader).expect("a complete launch");
        let pipeline = compile(gpu, shader);
        let bound = resolved
            .buffers
            .into_iter()
            .map(|(binding, index)| (binding, handles[index].clone()))
            .collect();
        let params = resolved.params;
        let grid = launch.grid.at(rows);

        steps.push(DispatchDesc {
            label: launch.label.clone(),
            pipeline,
            buffers: bound,
            params,
            grid,
        });
    }
    let program = gpu.program("test", steps).expect("program");
    gpu.submit(&[jerboa::gpu::Command::Run {
        program: &program,
        grids: None,
    }])
    .expect("submit");

    let result = handles
        .iter()
        .zip(buffers)
        .map(|(handle, bytes): (&jerboa::gpu::Buffer, &Vec<u8>)| {
            let size = bytes.len().next_multiple_of(4) as u64;
            pollster::block_on(gpu.read(handle, 0, size)).expect("readback")
        })
        .collect();
    pollster::block_on(gpu.check()).expect("no device error");
    result
}

/// Compiles a kernel once per device: a software device compiles slowly.
fn compile(gpu: &Gpu, shader: Shader) -> Pipeline {
    thread_local!(static COMPILED: RefCell<HashMap<(usize, String), Pipeline>> = RefCell::default());
    let key = (std::ptr::from_ref(gpu) as usize, shader.text.clone());
    if let Some(found) = COMPILED.with_borrow(|all| all.get(&key).cloned()) {
        return found;
    }
    let pipeline = pollster::block_on(gpu.pipelines(&[shader]))
        .expect("a valid kernel")
        .remove(0);
    // A copy that is never dropped: wgpu cannot be in a thread's destructors.
    std::mem::forget(pipeline.clone());
    COMPILED.with_borrow_mut(|all| all.insert(key, pipeline.clone()));
    pipeline
}

/// Converts f32s to bytes.
pub fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Converts bytes to f32s.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// Mean square error divided by the mean square of the expectation; NaN if either is not finite.
pub fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error: f64 = found
        .iter()
        .zip(expected)
        .map(|(f, e)| f64::from(f - e).powi(2))
        .sum();
    let size: f64 = expected.iter().map(|e| f64::from(*e).powi(2)).sum();
    error / size.max(1e-30)
}

/// Relative L2 distance.
pub fn relative_l2(found: &[f32], expected: &[f32]) -> f64 {
    nmse(found, expected).sqrt()
}
