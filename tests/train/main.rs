//! Training: kernels against CPU references, central differences and PyTorch.

mod checkpointing;
mod embedding;
mod gradients;
mod kernels;
mod layers;
mod lora;
mod models;
mod networks;
mod page;
mod preference;
mod torch;

use jerboa::gpu::{Backend, Buffer, BufferUsage, Command, DeviceOptions, Gpu, VariantOverride};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::{bytes, floats, gpu, open, relative_l2};
use jerboa_train::kernel::{TrainLaunch, TrainPipelines};
use pollster::block_on;
use std::cell::RefCell;

/// Maximum relative L2 distance of an f32 kernel.
const LIMIT: f64 = 1e-4;

/// Runs launches in order; buffers are indices into `contents`. Returns their contents afterwards.
fn run(launches: &[TrainLaunch<usize>], contents: &[Vec<u8>]) -> Vec<Vec<f32>> {
    thread_local!(static COMPILED: RefCell<Option<&'static RefCell<TrainPipelines>>> = const { RefCell::new(None) });
    // Never dropped: wgpu cannot be in a thread's destructors.
    let pipelines =
        COMPILED.with_borrow_mut(|all| *all.get_or_insert_with(|| Box::leak(Box::default())));
    run_on(gpu(), &mut pipelines.borrow_mut(), launches, contents)
}

/// Runs launches with this device's kernels, and with a GPU's if they differ.
fn run_as_each_device(launches: &[TrainLaunch<usize>], contents: &[Vec<u8>]) -> Vec<Vec<Vec<f32>>> {
    let as_gpu = open(&DeviceOptions {
        gpu_kernels: true,
        ..DeviceOptions::default()
    });
    let mut found = vec![run(launches, contents)];
    if as_gpu.caps().software {
        // Never dropped: wgpu cannot be in a thread's destructors.
        let pipelines: &mut TrainPipelines = Box::leak(Box::default());
        found.push(run_on(&as_gpu, pipelines, launches, contents));
    }
    found
}

/// Runs launches on subgroup matrices, which are emulated where a device has none.
fn run_on_matrices(
    launches: &[TrainLaunch<usize>],
    contents: &[Vec<u8>],
    f16: bool,
) -> Vec<Vec<f32>> {
    let device = open(&DeviceOptions {
        f16,
        gpu_kernels: true,
        variant_override: Some(VariantOverride {
            kernel: Kernel::GemmMatrix,
            name: "BM",
            value: 32,
        }),
        ..DeviceOptions::default()
    });
    // Never dropped: wgpu cannot be in a thread's destructors.
    let pipelines: &mut TrainPipelines = Box::leak(Box::default());
    run_on(&device, pipelines, launches, contents)
}

fn run_on(
    gpu: &Gpu,
    pipelines: &mut TrainPipelines,
    launches: &[TrainLaunch<usize>],
    contents: &[Vec<u8>],
) -> Vec<Vec<f32>> {
    block_on(pipelines.compile(gpu, launches.iter())).expect("valid kernels");
    let buffers: Vec<Buffer> = contents
        .iter()
        .map(|bytes| {
            let size = bytes.len() as u64;
            let buffer = gpu
                .buffer("test", size, BufferUsage::Storage)
                .expect("a buffer");
            gpu.write(&buffer, 0, bytes);
            buffer
        })
        .collect();
    let steps = launches
        .iter()
        .filter_map(|launch| {
            let launch = launch.clone().map(|index| buffers[*index].clone());
            launch.dispatch(pipelines).expect("a complete launch")
        })
        .collect();
    let program = gpu.program("test", steps).expect("a program");
    let work = [Command::Run {
        program: &program,
        grids: None,
    }];
    gpu.submit(&work).expect("a submit");
    let read = |(buffer, bytes): (&Buffer, &Vec<u8>)| {
        floats(&block_on(gpu.read(buffer, 0, bytes.len() as u64)).expect("a readback"))
    };
    let read = buffers.iter().zip(contents).map(read).collect();
    block_on(gpu.check()).expect("no device error");
    read
}

/// Compares f32 values with a reference.
#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let expected: Vec<f32> = expected.iter().map(|v| *v as f32).collect();
    let error = relative_l2(found, &expected);
    assert!(error < LIMIT, "{what}: relative L2 {error:e}");
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Values nothing has written: reads of them spread NaN.
fn unwritten(count: usize) -> Vec<u8> {
    bytes(&vec![f32::NAN; count])
}
