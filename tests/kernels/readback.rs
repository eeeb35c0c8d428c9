//! Staging buffers that remain after reads from a device.

use jerboa::gpu::{Backend, BufferUsage, DeviceOptions};
use jerboa_tests::open;
use pollster::block_on;

#[test]
fn staging_buffers_are_reused_up_to_32_mib() {
    let gpu = open(&DeviceOptions::default());
    let mib = 1 << 20;
    let most = 40 << 20;

    let buffer = gpu
        .buffer("rows", most, BufferUsage::Storage)
        .expect("a buffer");
    gpu.write(&buffer, most - 4, &[1, 2, 3, 4]);
    // Concurrent reads, and the number of staging buffers created.
    let made = |sizes: &[u64]| {
        let before = gpu.resource_counts();
        let later: Vec<_> = sizes
            .iter()
            .map(|size| gpu.start_read(&buffer, most - size, *size).expect("a read"))
            .collect();
        for (read, size) in later.into_iter().zip(sizes) {
            let bytes = block_on(read.wait()).expect("bytes");
            assert_eq!(
                (bytes.len() as u64, &bytes[bytes.len() - 4..]),
                (*size, &[1, 2, 3, 4][..])
            );
        }
        assert_eq!(gpu.resource_counts().bytes, before.bytes);
        gpu.resource_counts().buffers - before.buffers
    };
    assert_eq!([made(&[mib]), made(&[mib]), made(&[mib - 16])], [1, 0, 0]);
    // A read larger than the pool's limit.
    assert_eq!([made(&[most]), made(&[most])], [1, 1]);
    // A pooled buffer of 1 MiB leaves room for three of 8 MiB.
    assert_eq!(
        [
            made(&[8 * mib; 5]),
            made(&[8 * mib; 5]),
            made(&[8 * mib; 3])
        ],
        [5, 2, 0]
    );
    assert_eq!(made(&[mib]), 0);
}
