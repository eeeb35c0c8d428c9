//! GEMM on packed 8-bit dot products.

use super::{Case, PLAIN, affine, check_as, packed_layouts, weights};
use jerboa::format::layout::{AffineForm, Float, WeightLayout};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::kernels::matmul::{GemmTiling, Matmul, QuantizeInputs, View, WeightPlanes};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::{bytes, gpu, random, run_all};

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

/// Products whose reduction writes 8 bits for the next matmul leave the bytes that a launch of its
/// own would: of tiles of one workgroup and of several, for weights of 4 and 8 bits.
#[test]
fn outputs_in_8_bits_equal_quantized_outputs() {
    let caps = Caps {
        matrix: None,
        ..gpu().caps().clone()
    };
    for (bits, [rows, n, k]) in (0..8).zip(
        [[1, 64, 256], [5, 192, 320], [33, 320, 672]]
            .into_iter()
            .cycle(),
    ) {
        for (target, group, next_bits) in [(1, 32, 4), (64, 64, 4), (7, 32, 8), (64, 64, 8)] {
            let gated = bits & 1 > 0;
            let total = if gated { 2 * n } else { n };
            let (packed, _) = weights(affine(), total, k, 11);
            let view = |buffer, stride: usize| View {
                buffer,
                offset: 0,
                stride: stride as u32,
            };
            let planes = |layout, rows: usize, cols: usize, q, s| WeightPlanes {
                layout,
                rows: rows as u32,
                cols: cols as u32,
                q,
                s: Some(s),
            };
            let weight = planes(affine(), total, k, 1, 2);
            let mut product = Matmul::plain("product", weight, view(0, k), view(3, n));
            product.n = n as u32;
            product.gated = gated.then_some(n as u32);
            product.bias = (bits & 2 > 0).then_some(4);
            product.residual = (bits & 4 > 0).then(|| view(5, n));
            let layout = WeightLayout::Affine {
                bits: next_bits,
                group: 64,
                form: AffineForm::Bias,
                scale: Float::F16,
            };
            let next = Matmul::plain("next", planes(layout, 64, n, 1, 2), view(3, n), view(3, 64));
            let form_of = |m: &Matmul<usize>| {
                m.quantized_rows(&caps, rows, QuantizeInputs::Always)
                    .expect("weights of 4 or 8 bits")
            };
            let form = form_of(&next).with_group(group);
            let choice = GemmTiling {
                target,
                max_per_tile: 8,
                ..GemmTiling::packed(&caps, &product, rows)
            };
            let input = form_of(&product);
            let mut launches = vec![input.launch(&product, 6, 8)];
            launches.extend(product.gemm_packed(6, (8, input), 7, choice));
            let mut fused = launches.clone();
            launches.push(form.launch(&next, 6, 9));
            let partials = form
                .replace_output(&mut fused, &next.x, rows, 9)
                .expect("a reduction that quantizes");
            let parts = product.parts_bytes(rows as u32, choice).max(partials);
            let state = [0u32, rows as u32, 0, 0, 0, 0, 0, 0];
            let buffers = [
                bytes(&random(3, rows * k)),
                bytes(&packed.planes[0]),
                bytes(&packed.planes[1]),
                bytes(&vec![f32::NAN; rows * n]),
                bytes(&random(6, total)),
                bytes(&random(8, rows * n)),
                bytes(&state),
                vec![0xa5; parts as usize],
                vec![0xa5; input.bytes(rows) as usize],
                vec![0xa5; form.bytes(rows) as usize],
            ];
            let run = |launches| run_all(gpu(), launches, rows as u32, &buffers)[9].clone();
            let case =
                format!("{bits:#b} {rows}x{n}x{k}, {target} groups, {group}, {next_bits} bits");
            assert!(run(&launches) == run(&fused), "{case}");
        }
    }
}
