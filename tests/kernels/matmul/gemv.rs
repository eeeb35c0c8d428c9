//! GEMV: one row and a few.

use super::{Case, PLAIN, affine, check, layouts};
use jerboa::format::layout::{Float, WeightLayout};
use jerboa::gpu::DeviceOptions;
use jerboa_tests::{gpu, open};

#[test]
fn gemv_matches_reference_in_every_layout() {
    for layout in layouts() {
        for (rows, n, k) in [(1, 5, 33), (3, 37, 172), (1, 9, 1030)] {
            let error = check(gpu(), layout, rows, n, k, &PLAIN);
            assert!(error < 1e-10, "{layout} {rows}x{n}x{k}: {error:e}");
        }
    }
}

#[test]
fn gemv_fuses_norm_bias_gate_and_residual() {
    for layout in [WeightLayout::Dense(Float::BF16), affine()] {
        for bits in 0..24 {
            let case = Case {
                gated: bits & 1 > 0,
                norm: bits & 2 > 0,
                bias: bits & 4 > 0,
                residual: bits & 24 > 0,
                times: bits & 16 > 0,
                ..PLAIN
            };
            let error = check(gpu(), layout, 2, 21, 76, &case);
            assert!(error < 1e-10, "{layout} {bits:#b}: {error:e}");
        }
    }
}

#[test]
fn gemv_without_subgroups_matches_reference() {
    let gpu = open(&DeviceOptions {
        subgroups: false,
        ..Default::default()
    });
    for layout in layouts() {
        let case = Case {
            norm: true,
            residual: true,
            ..PLAIN
        };
        let error = check(&gpu, layout, 2, 19, 200, &case);
        assert!(error < 1e-10, "{layout}: {error:e}");
    }
}

#[test]
fn gemv_handles_several_rows_at_once() {
    let plain = open(&DeviceOptions {
        subgroups: false,
        ..Default::default()
    });
    for gpu in [gpu(), &plain] {
        for rows in 1..10 {
            for case in [
                Case {
                    norm: true,
                    residual: true,
                    ..PLAIN
                },
                Case {
                    gated: true,
                    norm: true,
                    ..PLAIN
                },
            ] {
                let error = check(gpu, affine(), rows, 37, 296, &case);
                assert!(error < 1e-10, "{rows} rows: {error:e}");
            }
        }
    }
}
