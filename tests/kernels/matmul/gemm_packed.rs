//! GEMM on packed 8-bit dot products.

use super::{Case, PLAIN, affine, affine_of, check_as, packed_layouts, weights};
use jerboa::format::layout::{AffineForm, Float, WeightLayout};
use jerboa::gpu::{Backend, Caps, VariantOverride};
use jerboa::ir::Activation;
use jerboa::kernels::Launch;
use jerboa::kernels::matmul::{
    GemmTiling, Matmul, NormPrologue, OutputBuffers, QuantizeInputs, QuantizedRows, View,
    WeightPlanes, divide_by_rms,
};
use jerboa::kernels::registry::Kernel;
use jerboa_tests::{bytes, floats, gpu, nmse, random, run_all};
use std::collections::BTreeSet;

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
        ..without_matrices()
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

/// Buffers of two matmuls, the second of the first one's output.
const X: usize = 0;
const W: [usize; 2] = [1, 2];
const HIDDEN: usize = 3;
const BIAS: usize = 4;
const RESIDUAL: usize = 5;
pub(super) const STATE: usize = 6;
const PARTS: usize = 7;
pub(super) const X_BYTES: usize = 8;
pub(super) const HIDDEN_BYTES: usize = 9;
const SQUARES: usize = 10;
const GAIN: usize = 11;
const NEXT_W: [usize; 2] = [12, 13];
const OUT: usize = 14;

fn view(buffer: usize, stride: usize) -> View<usize> {
    View {
        buffer,
        offset: 0,
        stride: stride as u32,
    }
}

/// A matmul with weights of this layout.
fn matmul_of(
    layout: WeightLayout,
    [rows, cols]: [usize; 2],
    [q, s]: [usize; 2],
    [x, out]: [usize; 2],
) -> Matmul<usize> {
    let weight = WeightPlanes {
        layout,
        rows: rows as u32,
        cols: cols as u32,
        q,
        s: Some(s),
    };
    Matmul::plain("test", weight, view(x, cols), view(out, rows))
}

/// The device without subgroup matrices.
fn without_matrices() -> Caps {
    Caps {
        matrix: None,
        ..gpu().caps().clone()
    }
}

pub(super) fn form_of(matmul: &Matmul<usize>, rows: usize) -> QuantizedRows {
    matmul
        .quantized_rows(&without_matrices(), rows, QuantizeInputs::Always)
        .expect("weights of 4 or 8 bits")
}

/// Tiles that up to eight workgroups share, so that there are `target`.
fn tiling(matmul: &Matmul<usize>, rows: usize, target: u32) -> GemmTiling {
    GemmTiling {
        target,
        max_per_tile: 8,
        ..GemmTiling::packed(&without_matrices(), matmul, rows)
    }
}

/// The launches of the first matmul.
fn first(matmul: &Matmul<usize>, rows: usize, target: u32) -> Vec<Launch<usize>> {
    let form = form_of(matmul, rows);
    let choice = tiling(matmul, rows, target);
    let gemm = matmul.gemm_packed(STATE, (X_BYTES, form), PARTS, choice);
    std::iter::once(form.launch(matmul, STATE, X_BYTES))
        .chain(gemm)
        .collect()
}

/// The buffers of the first matmul and of its output in 8 bits.
pub(super) fn buffers_of(
    matmul: &Matmul<usize>,
    rows: usize,
    parts: u64,
    output: QuantizedRows,
) -> Vec<Vec<u8>> {
    let [total, k] = [matmul.weight.rows, matmul.weight.cols].map(|size| size as usize);
    let outputs = rows * matmul.n as usize;
    let (packed, _) = weights(affine(), total, k, 11);
    vec![
        bytes(&random(3, rows * k)),
        bytes(&packed.planes[0]),
        bytes(&packed.planes[1]),
        bytes(&vec![f32::NAN; outputs]),
        bytes(&random(6, total)),
        bytes(&random(8, outputs)),
        bytes(&[0u32, rows as u32, 0, 0, 0, 0, 0, 0]),
        vec![0xa5; parts as usize],
        vec![0xa5; form_of(matmul, rows).bytes(rows) as usize],
        vec![0xa5; output.bytes(rows) as usize],
    ]
}

pub(super) const BUFFERS: OutputBuffers<usize> = OutputBuffers {
    quantized: HIDDEN_BYTES,
    squares: SQUARES,
};

/// Bit of [`first_of`]'s options for a residual.
pub(super) const RESIDUALS: u32 = 4;

/// The first of two matmuls: gated, with a bias, or with a residual, by the bits of `options`.
pub(super) fn first_of(options: u32, [n, k]: [usize; 2]) -> Matmul<usize> {
    let gated = options & 1 > 0;
    let total = if gated { 2 * n } else { n };
    let mut matmul = matmul_of(affine(), [total, k], W, [X, HIDDEN]);
    (matmul.n, matmul.out.stride) = (n as u32, n as u32);
    matmul.gated = gated.then_some(n as u32);
    matmul.bias = (options & 2 > 0).then_some(BIAS);
    matmul.residual = (options & RESIDUALS > 0).then(|| view(RESIDUAL, n));
    matmul
}

/// The second matmul, of the first one's `n` outputs.
pub(super) fn next_of(bits: u8, n: usize) -> Matmul<usize> {
    let layout = affine_of(bits, 64, AffineForm::Bias, Float::F16);
    matmul_of(layout, [64, n], NEXT_W, [HIDDEN, OUT])
}

/// The second matmul after a norm, with a bias.
pub(super) fn normed(n: usize, gated: bool) -> Matmul<usize> {
    let outputs = 96;
    let total = if gated { 2 * outputs } else { outputs };
    let mut next = matmul_of(affine(), [total, n], NEXT_W, [HIDDEN, OUT]);
    (next.n, next.out.stride) = (outputs as u32, outputs as u32);
    next.gated = gated.then_some(outputs as u32);
    next.bias = Some(BIAS);
    next.norm = Some(NormPrologue {
        gain: GAIN,
        offset: 1.0,
        eps: 1e-5,
    });
    next
}

/// Adds the buffers of a [`normed`] matmul, the first with `squares` bytes of sums of squares.
pub(super) fn add_second(
    buffers: &mut Vec<Vec<u8>>,
    next: &Matmul<usize>,
    rows: usize,
    squares: u64,
) {
    let [total, n] = [next.weight.rows, next.weight.cols].map(|size| size as usize);
    let (packed, _) = weights(affine(), total, n, 11);
    buffers.extend([
        bytes(&vec![f32::NAN; squares as usize / 4]),
        bytes(&random(9, n)),
        bytes(&packed.planes[0]),
        bytes(&packed.planes[1]),
        bytes(&vec![f32::NAN; rows * next.n as usize]),
    ]);
    // The bias of the second matmul.
    buffers[BIAS] = bytes(&random(6, total));
}

/// Kernels that matmuls of a prompt share leave the same bytes as kernels of their own: with and
/// without an activation, a gate, a bias and a residual, in tiles of one workgroup and of several.
#[test]
fn matmuls_share_kernels() {
    let silu = Activation::Silu as u32;
    let mut kernels = BTreeSet::new();
    for (options, act) in (0..8).flat_map(|options| [(options, 0), (options, silu)]) {
        for (target, [rows, n, k]) in [(1, [5, 72, 256]), (64, [66, 96, 672])] {
            let mut matmul = first_of(options, [n, k]);
            matmul.act = act;
            let own = first(&matmul, rows, target);
            matmul.shared_act = Some(silu);
            let shared = first(&matmul, rows, target);
            let names = shared[1..].iter().map(|launch| launch.variant.to_string());
            kernels.extend(names);
            let parts = matmul.parts_bytes(rows as u32, tiling(&matmul, rows, target));
            let form = form_of(&matmul, rows);
            let buffers = buffers_of(&matmul, rows, parts.max(16), form);
            let run = |launches| run_all(gpu(), launches, rows as u32, &buffers)[HIDDEN].clone();
            let case = format!("{options:#b}, activation {act}, {rows}x{n}x{k}, {target}");
            assert!(run(&own) == run(&shared), "{case}");
        }
    }
    let variants = |name: &str| {
        kernels
            .iter()
            .filter(|kernel| kernel.starts_with(name))
            .count()
    };
    // Tiles of 32 and of 64 rows.
    assert_eq!(
        ["gemm_packed", "splitk_reduce"].map(variants),
        [2, 1],
        "{kernels:?}"
    );
}

/// Two ways to run both matmuls leave the same rows between them, and the same result but for
/// rounding.
pub(super) fn assert_norms_agree(
    case: &str,
    rows: usize,
    both: [Vec<Launch<usize>>; 2],
    buffers: &[Vec<u8>],
) {
    let [expected, found] = both.map(|launches| run_all(gpu(), &launches, rows as u32, buffers));
    assert!(expected[HIDDEN] == found[HIDDEN], "{case}: rows");
    let error = nmse(&floats(&found[OUT]), &floats(&expected[OUT]));
    assert!(error < 1e-12, "{case}: {error:e}");
}

/// Matmuls whose reduction writes 8 bits for the next one leave the bytes that a launch of its
/// own would: of tiles of one workgroup and of several, for weights of 4 and 8 bits.
#[test]
fn outputs_in_8_bits_equal_quantized_outputs() {
    let shapes = [[1, 64, 256], [5, 192, 320], [33, 320, 672]];
    for (options, [rows, n, k]) in (0..8).zip(shapes.into_iter().cycle()) {
        for (target, group, next_bits) in [(1, 32, 4), (64, 64, 4), (7, 32, 8), (64, 64, 8)] {
            let matmul = first_of(options, [n, k]);
            let mut launches = first(&matmul, rows, target);
            let next = next_of(next_bits, n);
            let form = form_of(&next, rows).with_group(group);
            let mut fused = launches.clone();
            launches.push(form.launch(&next, STATE, HIDDEN_BYTES));
            let needed = form
                .quantize_output(gpu().caps(), &mut fused, &next, rows, BUFFERS)
                .expect("a reduction that quantizes");
            let own = matmul.parts_bytes(rows as u32, tiling(&matmul, rows, target));
            let buffers = buffers_of(&matmul, rows, own.max(needed.partials), form);
            let run =
                |launches| run_all(gpu(), launches, rows as u32, &buffers)[HIDDEN_BYTES].clone();
            let case = format!("{options:#b} {rows}x{n}x{k}, {target}, {group}, {next_bits} bits");
            assert!(run(&launches) == run(&fused), "{case}");
        }
    }
}

/// A norm between two matmuls: the reduction of the first writes 8-bit rows and sums of squares, the
/// reduction of the second divides by the RMS. Rows and result are those of a norm in a launch of its
/// own.
#[test]
fn norms_between_matmuls_need_no_launch() {
    let shapes = [[1, 64, 256], [5, 320, 320], [33, 1088, 288], [9, 2048, 256]];
    for (gated, [rows, n, k]) in [false, true].into_iter().cycle().zip(shapes) {
        for target in [1, 64] {
            let matmul = first_of(RESIDUALS, [n, k]);
            let mut launches = first(&matmul, rows, target);
            let next = normed(n, gated);
            let form = form_of(&next, rows);
            let mut fused = launches.clone();
            launches.push(form.launch(&next, STATE, HIDDEN_BYTES));
            let needed = form
                .quantize_output(gpu().caps(), &mut fused, &next, rows, BUFFERS)
                .expect("a reduction that quantizes");
            let choice = tiling(&next, rows, target);
            let second = next.gemm_packed(STATE, (HIDDEN_BYTES, form), PARTS, choice);
            let mut last = second.clone();
            launches.extend(second);
            let norm = next.norm.as_ref().expect("a norm");
            let partials = divide_by_rms(&mut last, norm, n as u32, rows, SQUARES);
            fused.extend(last);
            let parts = matmul
                .parts_bytes(rows as u32, tiling(&matmul, rows, target))
                .max(next.parts_bytes(rows as u32, choice))
                .max(needed.partials)
                .max(partials.expect("a reduction"));
            let mut buffers = buffers_of(&matmul, rows, parts, form);
            add_second(&mut buffers, &next, rows, needed.squares);
            let case = format!("{rows}x{n}x{k}, {target}");
            assert_norms_agree(&case, rows, [launches, fused], &buffers);
        }
    }
}
