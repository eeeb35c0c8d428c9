//! GEMM on packed 8-bit dot products.

use super::{Case, PLAIN, affine, check_as, packed_layouts};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::gpu;

/// The GEMM on packed 8-bit dot products in every layout that it reads and every tile height, with
/// every epilogue, in one workgroup and split over K, also for an odd number of blocks.
#[test]
fn packed_gemm_matches_reference() {
    let forced = |value| Caps {
        force: Some(VariantOverride {
            kernel: Kernel::GemmPacked,
            name: "BM",
            value,
        }),
        matrix: None,
        ..gpu().caps().clone()
    };
    let case = Case {
        gemm: true,
        packed: true,
        ..PLAIN
    };
    for layout in packed_layouts() {
        for (bm, shape) in [(32, [1, 5, 33]), (64, [65, 70, 100]), (64, [70, 130, 1000])] {
            let error = check_as(gpu(), &forced(bm), layout, shape, &case);
            assert!(error < 1e-7, "{layout} {shape:?}: {error:e}");
        }
    }
    for (bits, bm) in (0..8).zip([32, 64].into_iter().cycle()) {
        for target in [1, 7, 64] {
            let case = Case {
                gated: bits & 1 > 0,
                bias: bits & 2 > 0,
                residual: bits & 4 > 0,
                times: target == 7,
                softcap: if target == 64 { 3.0 } else { 0.0 },
                gemm: true,
                packed: true,
                tiles: Some((bm, 64, target)),
                ..PLAIN
            };
            let error = check_as(gpu(), &forced(bm), affine(), [66, 45, 672], &case);
            assert!(
                error < 1e-7,
                "{bm} rows for {target} groups, {bits:#b}: {error:e}"
            );
        }
    }
}
