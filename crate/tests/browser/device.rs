//! The browser's device: kernels against their CPU references, replay, readback, errors, counters.

use jerboa::Error;
use jerboa::diag::run_device_checks;
use jerboa::gpu::{
    Backend, Buffer, BufferUsage, Command, DeviceOptions, DispatchDesc, Gpu, Program,
};
use jerboa::kernels::elementwise::{Elementwise, elementwise};
use jerboa::kernels::matmul::View;
use jerboa::kernels::registry::{Kernel, Variant};
use wasm_bindgen_test::wasm_bindgen_test;

/// Records `out = a + b` over this many columns.
async fn addition(gpu: &Gpu, cols: u32) -> (Program, [Buffer; 3]) {
    let make = |name| {
        gpu.buffer(name, u64::from(cols) * 4, BufferUsage::Storage)
            .expect("buffer")
    };
    let buffers = [make("a"), make("b"), make("out")];
    let view = |buffer: usize| View {
        buffer,
        offset: 0,
        stride: cols,
    };
    let launch = elementwise(
        "add",
        Elementwise::Add,
        &[view(0), view(1)],
        &view(2),
        cols,
        true,
    );
    let shader = launch.variant.shader(true).expect("a declared variant");
    let resolved = launch.resolve(&shader).expect("a complete launch");
    let pipeline = gpu
        .pipelines(&[shader])
        .await
        .expect("a valid kernel")
        .remove(0);
    let bound = resolved
        .buffers
        .into_iter()
        .map(|(binding, index)| (binding, buffers[index].clone()))
        .collect();
    let params = resolved.params;
    let grid = launch.grid.at(1);

    let step = DispatchDesc {
        label: "add".into(),
        pipeline,
        buffers: bound,
        params,
        grid,
    };
    (gpu.program("test", vec![step]).expect("program"), buffers)
}

#[wasm_bindgen_test]
async fn kernels_equal_their_cpu_references() {
    let gpu = Gpu::open(&DeviceOptions::default()).await.expect("WebGPU");
    let checks = run_device_checks(&gpu).await.expect("a working device");
    assert!(checks.len() >= 13, "{} checks", checks.len());
    for check in checks {
        assert!(check.ok, "{}: {}", check.name, check.problem);
    }
}

#[wasm_bindgen_test]
async fn a_program_computes_and_its_replay_makes_no_object() {
    let gpu = Gpu::open(&DeviceOptions::default()).await.expect("WebGPU");
    let (program, [a, b, out]) = addition(&gpu, 300).await;
    let left: Vec<f32> = (0..300).map(|i| i as f32).collect();
    gpu.write(&a, 0, bytemuck::cast_slice(&left));
    gpu.write(&b, 0, bytemuck::cast_slice(&vec![0.5f32; 300]));
    gpu.submit(&[Command::Run {
        program: &program,
        grids: None,
    }])
    .expect("submit");
    let bytes = gpu.read(&out, 0, 1200).await.expect("readback");
    let found: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
    assert!(found.iter().enumerate().all(|(i, v)| *v == i as f32 + 0.5));
    let before = gpu.resource_counts();
    for _ in 0..10 {
        let run = || Command::Run {
            program: &program,
            grids: None,
        };
        gpu.submit(&[run(), run()]).expect("submit");
        gpu.read(&out, 0, 1200).await.expect("readback");
    }
    assert_eq!(gpu.resource_counts(), before);
    gpu.check().await.expect("no device error");
}

#[wasm_bindgen_test]
async fn a_grid_of_zero_skips_a_step() {
    let gpu = Gpu::open(&DeviceOptions::default()).await.expect("WebGPU");
    let (program, [a, _, out]) = addition(&gpu, 8).await;
    gpu.write(&a, 0, bytemuck::cast_slice(&[1.0f32; 8]));
    gpu.submit(&[Command::Run {
        program: &program,
        grids: Some(&[[0, 1, 1]]),
    }])
    .expect("submit");
    assert_eq!(gpu.read(&out, 0, 32).await.expect("readback"), vec![0; 32]);
}

#[wasm_bindgen_test]
async fn a_broken_shader_is_an_error_that_names_the_kernel() {
    let gpu = Gpu::open(&DeviceOptions::default()).await.expect("WebGPU");
    let mut shader = Variant::new(Kernel::LastRow)
        .shader(true)
        .expect("a declared variant");
    shader.text.push_str("fn broken( {");
    let error = gpu
        .pipelines(&[shader])
        .await
        .expect_err("must not compile");
    assert!(
        matches!(&error, Error::Kernel { kernel, .. } if kernel.contains("last_row")),
        "{error}"
    );
    gpu.check().await.ok();
}

#[wasm_bindgen_test]
async fn a_buffer_over_the_limit_is_refused_before_it_is_asked_for() {
    let gpu = Gpu::open(&DeviceOptions {
        max_buffer_size: Some(1024),
        ..DeviceOptions::default()
    })
    .await;
    let error = gpu
        .expect("WebGPU")
        .buffer("big", 4096, BufferUsage::Storage)
        .expect_err("over the limit");
    assert_eq!(error.code(), "out_of_memory");
}
