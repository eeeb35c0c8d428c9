//! GEMM in f32 tiles.

use super::{Case, PLAIN, affine, check, layouts};
use jerboa_tests::gpu;

#[test]
fn gemm_matches_reference_in_every_layout() {
    for layout in layouts() {
        // The last weight is large enough for eight rows at a time without a GPU.
        for (rows, n, k) in [(1, 5, 33), (65, 70, 100), (11, 501, 132)] {
            let error = check(
                gpu(),
                layout,
                rows,
                n,
                k,
                &Case {
                    gemm: true,
                    ..PLAIN
                },
            );
            assert!(error < 1e-10, "{layout} {rows}x{n}x{k}: {error:e}");
        }
    }
}

/// Every tile size, in one workgroup and split over K.
#[test]
fn gemm_tiles_of_every_size_match_reference() {
    let tiles = [
        (32, 64),
        (64, 64),
        (32, 128),
        (64, 128),
        (128, 64),
        (128, 128),
        (32, 64),
        (32, 128),
    ];
    for (bits, (bm, bn)) in (0..8).zip(tiles) {
        for target in [1, 7, 64] {
            let case = Case {
                gated: bits & 1 > 0,
                bias: bits & 2 > 0,
                residual: bits & 4 > 0,
                times: target == 7,
                gemm: true,
                tiles: Some((bm, bn, target)),
                ..PLAIN
            };
            let error = check(gpu(), affine(), 66, 45, 300, &case);
            assert!(
                error < 1e-10,
                "{bm}x{bn} for {target} groups, {bits:#b}: {error:e}"
            );
        }
    }
    for layout in layouts() {
        let case = Case {
            gemm: true,
            tiles: Some((64, 64, 16)),
            ..PLAIN
        };
        let error = check(gpu(), layout, 70, 130, 1000, &case);
        assert!(error < 1e-10, "{layout}: {error:e}");
    }
}
