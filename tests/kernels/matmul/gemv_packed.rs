//! GEMV of batches on packed 8-bit dot products.

use super::{Case, PLAIN, affine, check_as, packed_layouts};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::kernels::matmul::{Matmul, View, WeightPlanes};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::gpu;

fn forced(parts: u32) -> Caps {
    Caps {
        force: Some(VariantOverride {
            kernel: Kernel::GemvPacked,
            name: "PARTS",
            value: parts,
        }),
        matrix: None,
        ..gpu().caps().clone()
    }
}

/// Every layout that it reads, numbers of rows below and at those of a workgroup, outputs that are
/// no multiple of its rows, odd numbers of blocks and K that ends within one.
#[test]
fn packed_gemv_matches_reference() {
    let case = Case {
        packed: true,
        ..PLAIN
    };
    for layout in packed_layouts() {
        for (parts, shape) in [
            (8, [3, 5, 33]),
            (4, [4, 70, 100]),
            (8, [7, 33, 1000]),
            (4, [8, 64, 672]),
        ] {
            let error = check_as(gpu(), &forced(parts), layout, shape, &case);
            assert!(error < 1e-7, "{layout} {shape:?}: {error:e}");
        }
    }
}

/// Every epilogue, with and without a norm of the input.
#[test]
fn packed_gemv_finishes_as_the_others() {
    for bits in 0..16 {
        let case = Case {
            gated: bits & 1 > 0,
            bias: bits & 2 > 0,
            residual: bits & 4 > 0,
            norm: bits & 8 > 0,
            times: bits % 3 == 1,
            softcap: if bits % 5 == 2 { 3.0 } else { 0.0 },
            packed: true,
            ..PLAIN
        };
        for shape in [[5, 45, 672], [3, 16, 96]] {
            let error = check_as(gpu(), &forced(8), affine(), shape, &case);
            assert!(error < 1e-6, "{bits} {shape:?}: {error:e}");
        }
    }
}

/// It quantizes its input in a launch of its own, which small matrices and few rows do not repay.
#[test]
fn packed_gemv_is_chosen_where_it_pays() {
    let caps = Caps {
        vendor: "nvidia".into(),
        packed_dot: true,
        subgroups: true,
        subgroup_size: (32, 32),
        ..Caps::default()
    };
    let chosen = |[n, k]: [u32; 2], rows: usize| {
        let view = View {
            buffer: 0,
            offset: 0,
            stride: k,
        };
        let weight = WeightPlanes {
            layout: affine(),
            rows: n,
            cols: k,
            q: 1,
            s: Some(2),
        };
        let mut matmul = Matmul::plain("test", weight, view.clone(), view);
        matmul.batch = true;
        matmul.quantized_batch(&caps, rows).is_some()
    };
    for rows in [1, 2, 9, 32] {
        assert!(!chosen([28672, 4096], rows), "{rows}");
    }
    for (side, rows, expected) in [
        ([28672, 4096], 3, true),
        ([28672, 4096], 4, true),
        ([6144, 4096], 4, false),
        ([6144, 4096], 5, true),
        ([1536, 1536], 8, true),
        ([9728, 896], 8, false),
        ([896, 4864], 8, false),
    ] {
        assert_eq!(chosen(side, rows), expected, "{side:?} {rows}");
    }
}
