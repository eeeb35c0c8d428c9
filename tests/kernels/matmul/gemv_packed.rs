//! GEMV of batches on packed 8-bit dot products.

use super::gemm_packed::{
    BUFFERS, HIDDEN_BYTES, RESIDUALS, STATE, X_BYTES, add_second, assert_norms_agree, buffers_of,
    first_of, form_of, next_of, normed,
};
use super::{Case, PLAIN, affine, check_as, packed_layouts};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::kernels::Launch;
use jerboa::kernels::matmul::{Matmul, View, WeightPlanes};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::{gpu, run_all};

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

/// A device that allows workgroups of so many threads.
fn with_threads(threads: u32) -> Caps {
    Caps {
        max_invocations: threads,
        ..gpu().caps().clone()
    }
}

/// The launches of a matmul whose input `form` quantizes, with as many parts of K as a workgroup
/// that quantizes its output.
fn first(matmul: &Matmul<usize>, rows: usize, threads: u32) -> Vec<Launch<usize>> {
    let parts = if matmul.gated.is_some() {
        2
    } else {
        threads / 64
    };
    let input = form_of(matmul, rows).with_group(32);
    vec![
        input.launch(matmul, STATE, X_BYTES),
        matmul.gemv_packed(&forced(parts), rows, STATE, X_BYTES),
    ]
}

/// Matmuls that write 8 bits for the next one leave the bytes that a launch of its own would, with
/// every epilogue, for next weights of 4 and 8 bits.
#[test]
fn products_in_8_bits_equal_quantized_products() {
    let shapes = [[3, 64, 256], [5, 192, 320], [8, 320, 672], [7, 128, 2080]];
    for (options, [rows, n, k]) in (0..8).zip(shapes.into_iter().cycle()) {
        for (threads, next_bits) in [(256, 4), (512, 8)] {
            let matmul = first_of(options, [n, k]);
            let mut launches = first(&matmul, rows, threads);
            let next = next_of(next_bits, n);
            let form = form_of(&next, rows).with_group(32);
            let mut fused = launches.clone();
            launches.push(form.launch(&next, STATE, HIDDEN_BYTES));
            form.quantize_output(&with_threads(threads), &mut fused, &next, rows, BUFFERS)
                .expect("a product that quantizes");
            let buffers = buffers_of(&matmul, rows, 16, form);
            let run =
                |launches| run_all(gpu(), launches, rows as u32, &buffers)[HIDDEN_BYTES].clone();
            let case = format!("{options:#b} {rows}x{n}x{k}, {next_bits} bits");
            assert!(run(&launches) == run(&fused), "{case}");
        }
    }
}

/// A norm between two matmuls: the first writes 8-bit rows and sums of squares, the second divides by
/// the RMS. Rows and result are those of a norm in a launch of its own.
#[test]
fn norms_between_products_need_no_launch() {
    let shapes = [[3, 64, 256], [5, 320, 320], [8, 1088, 288], [4, 2048, 256]];
    for (gated, [rows, n, k]) in [false, true].into_iter().cycle().zip(shapes) {
        for threads in [256, 512] {
            let matmul = first_of(RESIDUALS, [n, k]);
            let mut launches = first(&matmul, rows, threads);
            let mut next = normed(n, gated);
            let form = form_of(&next, rows).with_group(32);
            let mut fused = launches.clone();
            launches.push(form.launch(&next, STATE, HIDDEN_BYTES));
            let needed = form
                .quantize_output(&with_threads(threads), &mut fused, &next, rows, BUFFERS)
                .expect("a product that quantizes");
            let norm = next.norm.take().expect("a norm");
            let second = next.gemv_packed(&forced(4), rows, STATE, HIDDEN_BYTES);
            let mut divided = second.clone();
            form.divide_product(&mut divided, &norm, n as u32, rows);
            launches.push(second);
            fused.push(divided);
            let mut buffers = buffers_of(&matmul, rows, 16, form);
            buffers[HIDDEN_BYTES].extend(vec![0xff; needed.quantized as usize]);
            add_second(&mut buffers, &next, rows, 16);
            let case = format!("{rows}x{n}x{k}, {threads} threads");
            assert_norms_agree(&case, rows, [launches, fused], &buffers);
        }
    }
}

/// Small matrices and few rows do not repay quantization.
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
        ([1536, 1536], 4, true),
        ([9728, 896], 4, false),
        ([151_936, 896], 4, true),
        ([6144, 4096], 5, true),
        ([1536, 1536], 8, true),
        ([9728, 896], 8, true),
        ([896, 4864], 8, true),
        ([1536, 384], 8, false),
    ] {
        assert_eq!(chosen(side, rows), expected, "{side:?} {rows}");
    }
}
