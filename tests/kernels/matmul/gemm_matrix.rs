//! GEMM on subgroup matrices.

use super::{Case, PLAIN, affine, check_as, layouts};
use jerboa::device::{MatrixDialect, SubgroupMatrix};
use jerboa::format::layout::{Float, WeightLayout};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::gpu;

/// Subgroup matrices, emulated on devices without them (slow to compile): every layout with real
/// ones, else one of each kind; every tile height, f16 and f32, matrices of 16x16 and 8x8, with
/// every epilogue, in one workgroup and split over K.
#[test]
fn subgroup_matrices_match_reference() {
    let device = gpu().caps();
    let emulated_units = |side, half| SubgroupMatrix {
        side,
        half: half && device.f16,
        lanes: 32,
        words: MatrixDialect::Emulated,
    };
    let forced = |units, value| {
        let force = Some(VariantOverride {
            kernel: Kernel::GemmMatrix,
            name: "BM",
            value,
        });
        Caps {
            matrix: device.matrix.or(Some(units)),
            force,
            max_invocations: 256,
            ..device.clone()
        }
    };
    let kinds = [WeightLayout::Dense(Float::F16), WeightLayout::Q6K, affine()];
    for layout in layouts()
        .into_iter()
        .filter(|layout| device.matrix.is_some() || kinds.contains(layout))
    {
        let caps = forced(emulated_units(16, true), 32);
        let error = check_as(
            gpu(),
            &caps,
            layout,
            [33, 70, 172],
            &Case {
                gemm: true,
                ..PLAIN
            },
        );
        assert!(error < 1e-6, "{layout}: {error:e}");
    }
    // Small tiles read a longer part of K at a time, if K allows.
    let error = check_as(
        gpu(),
        &forced(emulated_units(16, true), 32),
        affine(),
        [33, 70, 192],
        &Case {
            gemm: true,
            ..PLAIN
        },
    );
    assert!(error < 1e-6, "K of 192: {error:e}");
    for (bits, (bm, side)) in [(64, 16), (32, 8), (128, 16), (64, 8), (256, 16)]
        .into_iter()
        .enumerate()
    {
        let units = emulated_units(side, bits % 2 == 0);
        let caps = Caps {
            vendor: if bits % 2 == 0 {
                "nvidia".into()
            } else {
                String::new()
            },
            ..forced(units, bm)
        };
        let case = Case {
            gated: bits & 1 > 0,
            bias: bits & 2 > 0,
            residual: bits & 4 > 0,
            softcap: if bits == 3 { 500.0 } else { 0.0 },
            gemm: true,
            ..PLAIN
        };
        let error = check_as(gpu(), &caps, affine(), [130, 75, 1000], &case);
        let limit = if caps.subgroup_matrix().is_some_and(|units| units.half) {
            1e-6
        } else {
            1e-10
        };
        assert!(error < limit, "{bm} rows, {units:?}, {bits:#b}: {error:e}");
    }
}
