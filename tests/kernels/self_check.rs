//! The GPU self-check, on a device that passes it.

use jerboa::diag::chain::run_chain;
use jerboa::diag::run_device_checks;
use jerboa::gpu::Backend;
use jerboa_tests::gpu;

#[test]
fn the_self_check_is_deterministic() {
    let gpu = gpu();
    let run = || pollster::block_on(run_chain(gpu)).expect("a correct device");
    let before = gpu.resource_counts().pipelines;
    let first = run();
    let kernels = gpu.resource_counts().pipelines - before;
    assert!(
        kernels >= 15,
        "as many kernels as a model's step has: {kernels}"
    );
    assert_eq!(run(), first);
}

#[test]
fn every_check_passes_on_a_correct_device() {
    let found = pollster::block_on(run_device_checks(gpu())).expect("a device");
    let wrong: Vec<_> = found.iter().filter(|check| !check.ok).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(found.len(), 13);
}
