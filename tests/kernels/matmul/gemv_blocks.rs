//! GEMV over whole blocks of weights.

use super::random_weights::affine_of;
use super::{Case, PLAIN, check_as};
use jerboa::format::layout::{AffineForm, Float, WeightLayout};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::kernels::registry::{Kernel, tunable_constants};
use jerboa_tests::gpu;

/// Whole blocks of weights: every layout and every arithmetic, K in one pass and in several, with
/// every epilogue. Packed int8 activations cost as much as f16, codes in the mantissa slightly
/// less.
#[test]
fn gemv_blocks_matches_reference() {
    let layouts = [
        affine_of(4, 32, AffineForm::Bias, Float::F16),
        affine_of(4, 64, AffineForm::Zero, Float::BF16),
        affine_of(4, 128, AffineForm::Bias, Float::F32),
        affine_of(8, 32, AffineForm::Bias, Float::F16),
        affine_of(8, 64, AffineForm::Zero, Float::F32),
        WeightLayout::Q4K,
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
    ];
    // The other layouts differ only in their arithmetic.
    let kinds = [layouts[0], layouts[3], WeightLayout::Q4K];
    let mut bits = 0usize;
    for layout in layouts {
        // RUNS reads the KV splits of attention, which this graph does not have.
        let own = |name: &str| name == "DOT" || (name != "KV_SPLITS" && kinds.contains(&layout));
        for (name, values) in tunable_constants(Kernel::GemvBlocks).filter(|(name, _)| own(name)) {
            for (value, max_invocations) in values.iter().zip([1024, 64, 1024]) {
                let force = Some(VariantOverride {
                    kernel: Kernel::GemvBlocks,
                    name,
                    value: *value,
                });
                let caps = Caps {
                    force,
                    max_invocations,
                    ..gpu().caps().clone()
                };
                for several in [false, true] {
                    bits += 1;
                    let (n, k) =
                        [(5, 33), (75, 1030), (2100, 172), (40, 4356)][(bits + bits / 4) % 4];
                    let rows = if several { 2 + bits % 5 } else { 1 };
                    let case = Case {
                        gated: bits & 2 > 0,
                        norm: bits & 4 > 0,
                        bias: bits & 8 > 0,
                        residual: bits & 16 > 0,
                        times: bits.is_multiple_of(3),
                        softcap: if bits & 32 > 0 { 30.0 } else { 0.0 },
                        ..PLAIN
                    };
                    let error = check_as(gpu(), &caps, layout, [rows, n, k], &case);
                    let packed = caps.constant_or_forced(
                        Kernel::GemvBlocks,
                        "DOT",
                        caps.uses_packed_dot(layout).into(),
                    ) == 1;
                    let limit = if packed { 1e-7 } else { 1e-8 };
                    assert!(
                        error < limit,
                        "{name} = {value}, {layout} {rows}x{n}x{k} {bits:#b}: {error:e}"
                    );
                }
            }
        }
    }
}

/// Rows of x, or their norms, rounded to 8 bits: the limit allows for a few values halfway between
/// two steps.
#[test]
fn gemv_blocks_rounds_activations() {
    let affine = WeightLayout::Affine {
        bits: 8,
        group: 64,
        form: AffineForm::Zero,
        scale: Float::F32,
    };
    for (index, layout) in [WeightLayout::Ternary, affine].into_iter().enumerate() {
        for (value, rows, n, k) in [
            (0, 1, 37, 1030),
            (1, 1, 2100, 172),
            (1, 3, 75, 2560),
            (1, 1, 5, 33),
        ] {
            let force = Some(VariantOverride {
                kernel: Kernel::GemvBlocks,
                name: "DOT",
                value,
            });
            let caps = Caps {
                force,
                max_invocations: 1024,
                ..gpu().caps().clone()
            };
            let norm = rows + index != 1;
            let case = Case {
                gated: n == 75,
                norm,
                round: true,
                residual: n > 37,
                bias: index == 0,
                ..PLAIN
            };
            let error = check_as(gpu(), &caps, layout, [rows, n, k], &case);
            assert!(
                error < 1e-6,
                "{layout} {rows}x{n}x{k}, DOT = {value}: {error:e}"
            );
        }
    }
}

/// Rows of a batch in 8 bits: every layout, two to nine rows, K in one pass and in several, with every
/// epilogue, with much workgroup memory and with little.
#[test]
fn gemv_blocks_quantizes_the_rows_of_a_batch() {
    let layouts = [
        affine_of(4, 32, AffineForm::Bias, Float::F16),
        affine_of(4, 64, AffineForm::Zero, Float::BF16),
        affine_of(8, 32, AffineForm::Bias, Float::F16),
        WeightLayout::Q4K,
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
    ];
    let shapes = [(5, 33), (75, 1030), (2100, 172), (40, 4356)];
    for (bits, rows) in (0..16).zip([8, 3, 2, 5, 9, 4, 7].into_iter().cycle()) {
        let layout = layouts[bits % layouts.len()];
        let (n, k) = shapes[(bits + bits / 4) % shapes.len()];
        let caps = Caps {
            force: Some(VariantOverride {
                kernel: Kernel::GemvBlocks,
                name: "DOT",
                value: 1,
            }),
            max_invocations: [1024, 64][bits / 2 % 2],
            max_workgroup_storage: [64 << 10, 16 << 10][bits / 3 % 2],
            ..gpu().caps().clone()
        };
        let case = Case {
            batch: true,
            gated: bits & 1 > 0,
            norm: bits & 2 > 0,
            bias: bits & 4 > 0,
            residual: bits & 8 > 0,
            times: bits.is_multiple_of(3),
            softcap: if bits & 12 == 12 { 30.0 } else { 0.0 },
            ..PLAIN
        };
        let error = check_as(gpu(), &caps, layout, [rows, n, k], &case);
        assert!(error < 1e-6, "{layout} {rows}x{n}x{k} {bits:#b}: {error:e}");
    }
}
