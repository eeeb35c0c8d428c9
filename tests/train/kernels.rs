//! Each kernel against its CPU reference, over shapes that no tile divides, with offsets and strides.

use crate::{assert_close, run, run_as_each_device, run_on_matrices, unwritten, wide};
use jerboa::format::layout::{AffineForm, Float, PackedMatrix, WeightLayout};
use jerboa::format::quantize;
use jerboa::ir::RopeSpec;
use jerboa::kernels::matmul::WeightPlanes;
use jerboa::kernels::view::View;
use jerboa::reference::dequant::dequant;
use jerboa_tests::{ACTIVATIONS, POOLINGS, bytes, number, random, relative_l2};
use jerboa_train::kernels::attention::{AttentionShape, QueryKeyValue};
use jerboa_train::kernels::elementwise::{Function, elementwise};
use jerboa_train::kernels::loss::IGNORED;
use jerboa_train::kernels::matmul::{WeightRows, linear, linear_input, linear_weight, row_scales};
use jerboa_train::kernels::norm::{NormShape, column_sums};
use jerboa_train::kernels::pool::PoolShape;
use jerboa_train::kernels::rope::RopeShape;
use jerboa_train::kernels::short_conv::ShortConvShape;
use jerboa_train::kernels::update::Optimizer;
use jerboa_train::kernels::{contiguous, embed, fill, loss, update};
use jerboa_train::reference;
use jerboa_train::reference::attention::AttentionLayer;
use jerboa_train::reference::norm::NormLayer;
use jerboa_train::reference::pool::PoolLayer;
use jerboa_train::reference::short_conv::ShortConvLayer;
use jerboa_train::reference::update::OptimizedWeight;
use std::collections::BTreeSet;

/// A view of `cols` columns with a gap before the first row and after each.
fn apart(buffer: usize, cols: usize) -> View<usize> {
    View {
        buffer,
        offset: 3,
        stride: cols as u32 + 5,
    }
}

/// The bytes of such a view; the gaps are NaN.
fn spread(values: &[f32], cols: usize) -> Vec<u8> {
    let mut out = vec![f32::NAN; 3];
    for row in values.chunks_exact(cols) {
        out.extend(row);
        out.extend([f32::NAN; 5]);
    }
    bytes(&out)
}

/// The values of such a view, whose gaps must be as they were.
fn gather(found: &[f32], cols: usize) -> Vec<f32> {
    let mut values = Vec::new();
    assert!(
        found[..3].iter().all(|v| v.is_nan()),
        "written before the first row"
    );
    for row in found[3..].chunks_exact(cols + 5) {
        assert!(
            row[cols..].iter().all(|v| v.is_nan()),
            "written between rows"
        );
        values.extend(&row[..cols]);
    }
    values
}

fn sum(a: &[f64], b: &[f32]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + f64::from(*b)).collect()
}

/// A packed random matrix of a layout, and its values.
fn packed(layout: WeightLayout, n: usize, k: usize) -> (PackedMatrix, Vec<f32>) {
    let mut matrix = PackedMatrix::zeros(layout, n, k);
    if let WeightLayout::Dense(_) = layout {
        for (index, value) in random(9, n * k).into_iter().enumerate() {
            matrix.set_dense(index / k, index % k, value);
        }
        let values = dequant(&matrix);
        return (matrix, values);
    }
    for (index, word) in matrix.planes[0].iter_mut().enumerate() {
        *word = (number(index as u64, 1) * 8_388_608.0) as i32 as u32 ^ (index as u32) << 20;
        if layout == WeightLayout::Ternary {
            // The code 3 is unused.
            *word &= !(*word >> 1 & 0x5555_5555);
        }
    }
    for (index, word) in matrix.planes[1].iter_mut().enumerate() {
        let random = (number(index as u64 + 77, 1) * 8_388_608.0) as i32 as u32;
        *word = match layout {
            WeightLayout::Mxfp4 => 0x7b7a_7c79 + (random & 0x0303_0303),
            WeightLayout::Ternary => (0.05 + (random & 15) as f32 * 0.01).to_bits(),
            WeightLayout::Affine { .. } => 0x2c00_2c00 + (random & 0x00ff_00ff),
            // f16 scales of about 0.001 precede the bytes.
            _ if index % 5 == 0 => 0x1400_1600 + (random & 0x00ff_00ff),
            WeightLayout::Q4K => random & 0x3f3f_3f3f,
            _ => random,
        };
    }
    let values = dequant(&matrix);
    (matrix, values)
}

fn layouts() -> Vec<WeightLayout> {
    let mut all = vec![
        WeightLayout::Dense(Float::F32),
        WeightLayout::Dense(Float::F16),
        WeightLayout::Dense(Float::BF16),
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
        WeightLayout::Q4K,
        WeightLayout::Q6K,
        quantize::layout(4),
        quantize::layout(8),
    ];
    all.extend([3, 6].map(|bits| WeightLayout::Affine {
        bits,
        group: 64,
        form: AffineForm::Zero,
        scale: Float::F16,
    }));
    all
}

/// `count` rows of a matrix from `first` on, with its planes in buffers 0 and 1.
fn rows_of(matrix: &PackedMatrix, first: usize, count: usize) -> WeightRows<usize> {
    WeightRows {
        planes: WeightPlanes {
            layout: matrix.layout,
            rows: matrix.rows as u32,
            cols: matrix.cols as u32,
            q: 0,
            s: (!matrix.planes[1].is_empty()).then_some(1),
        },
        first,
        count,
    }
}

#[test]
fn matmuls_of_every_layout() {
    for (index, layout) in layouts().into_iter().enumerate() {
        let [m, n, k] = [[67, 71, 131], [1, 65, 70], [130, 3, 33]][index % 3];
        let first = 2;
        let (matrix, values) = packed(layout, n + 3, k);
        let used = wide(&values[first * k..(first + n) * k]);
        let x = random(1, m * k);
        let dy = random(2, m * n);
        let bias = random(3, n);
        let before = random(4, m * k);
        let has_scales = !matrix.planes[1].is_empty();
        let weight = rows_of(&matrix, first, n);
        let contents = [
            bytes(&matrix.planes[0]),
            bytes(if has_scales {
                &matrix.planes[1][..]
            } else {
                &[0]
            }),
            spread(&x, k),
            spread(&dy, n),
            bytes(&bias),
            spread(&vec![f32::NAN; m * n], n),
            spread(&vec![f32::NAN; m * k], k),
            spread(&before, k),
        ];
        let mut launches = vec![
            linear(&weight, m, 0.5, &apart(2, k), Some(4), &apart(5, n)),
            linear_input(&weight, m, 0.5, &apart(3, n), &apart(6, k), false),
        ];
        // One layout is enough for the sum: software adapters compile kernels slowly.
        let adds = index == 0;
        if adds {
            launches.push(linear_input(
                &weight,
                m,
                0.5,
                &apart(3, n),
                &apart(7, k),
                true,
            ));
        }
        let name = layout.name();
        let y = reference::matmul::linear(&wide(&x), &used, [m, n, k]);
        let y: Vec<f64> = y
            .chunks(n)
            .flat_map(|row| (0..n).map(|j| row[j] * 0.5 + f64::from(bias[j])))
            .collect();
        let dx = reference::matmul::linear_input(&wide(&dy), &used, [m, n, k]);
        let dx: Vec<f64> = dx.iter().map(|v| v * 0.5).collect();
        for found in run_as_each_device(&launches, &contents) {
            assert_close(&format!("{name}, y"), &gather(&found[5], n), &y);
            assert_close(&format!("{name}, dx"), &gather(&found[6], k), &dx);
            if adds {
                assert_close(
                    &format!("{name}, added dx"),
                    &gather(&found[7], k),
                    &sum(&dx, &before),
                );
            }
        }
    }
}

/// Views that subgroup matrices read in vectors.
fn aligned(buffer: usize, cols: usize) -> View<usize> {
    View {
        buffer,
        offset: 4,
        stride: cols.next_multiple_of(4) as u32 + 4,
    }
}

/// The values of such a view, with NaN between them.
fn spread_aligned(values: &[f32], cols: usize) -> Vec<u8> {
    let mut out = vec![f32::NAN; 4];
    for row in values.chunks_exact(cols) {
        out.extend(row);
        out.resize(out.len() + cols.next_multiple_of(4) + 4 - cols, f32::NAN);
    }
    bytes(&out)
}

/// Products of f16 keep three digits of gradients of any size; those of f32 keep six.
#[test]
fn matmuls_on_subgroup_matrices() {
    let layouts = [
        WeightLayout::Dense(Float::F16),
        quantize::layout(4),
        WeightLayout::Q6K,
    ];
    for (index, layout) in layouts.into_iter().enumerate() {
        // No tile divides these, and one row of dy is as small as f16 cannot be.
        let [m, n, k] = [[70, 76, 132], [65, 68, 96], [97, 64, 256]][index];
        let first = 2;
        let (matrix, values) = packed(layout, n + 3, k);
        let used = wide(&values[first * k..(first + n) * k]);
        let x = random(1, m * k);
        let mut dy = random(2, m * n);
        for (row, factor) in [(0, 1e-12), (1, 3e7), (2, 0.0), (3, 1e-4)] {
            dy[row * n..][..n].iter_mut().for_each(|v| *v *= factor);
        }
        let [bias, before] = [random(3, n), random(4, m * k)];
        let has_scales = !matrix.planes[1].is_empty();
        let weight = rows_of(&matrix, first, n);
        let scale_plane: &[u32] = if has_scales { &matrix.planes[1] } else { &[0] };
        let contents = [
            bytes(&matrix.planes[0]),
            bytes(scale_plane),
            spread_aligned(&x, k),
            spread_aligned(&dy, n),
            bytes(&bias),
            spread(&vec![f32::NAN; m * n], n),
            spread(&before, k),
            unwritten(m),
        ];
        let launches = [
            linear(&weight, m, 0.5, &aligned(2, k), Some(4), &apart(5, n)),
            row_scales([m, n], &aligned(3, n), 7),
            linear_input(&weight, m, 0.5, &aligned(3, n), &apart(6, k), true).with_scales(7),
        ];
        let y = reference::matmul::linear(&wide(&x), &used, [m, n, k]);
        let y: Vec<f64> = y
            .chunks(n)
            .flat_map(|row| (0..n).map(|j| row[j] * 0.5 + f64::from(bias[j])))
            .collect();
        let dx = reference::matmul::linear_input(&wide(&dy), &used, [m, n, k]);
        let dx: Vec<f64> = dx.iter().map(|v| v * 0.5).collect();
        let dx = sum(&dx, &before);
        for (f16, limit) in [(true, 1e-3), (false, 1e-6)] {
            let found = run_on_matrices(&launches, &contents, f16);
            let name = format!("{layout}, f16 {f16}");
            let exponents = |v: &f32| v.to_bits() & 0x007f_ffff == 0 && v.is_normal();
            assert!(found[7].iter().all(exponents), "{name}: powers of two");
            for (row, scale) in found[7].iter().enumerate() {
                let most = dy[row * n..][..n].iter().fold(0f32, |a, b| a.max(b.abs())) * scale;
                let is_large = (16384.0..32768.0).contains(&most);
                assert!(is_large || row == 2, "{name}, row {row}: {most}");
            }
            let rows = |found: &[f32], expected: &[f64], cols: usize, what: &str| {
                for (row, own) in found.chunks_exact(cols).enumerate() {
                    let expected: Vec<f32> = expected[row * cols..][..cols]
                        .iter()
                        .map(|v| *v as f32)
                        .collect();
                    let error = relative_l2(own, &expected);
                    assert!(error < limit, "{name}, {what}, row {row}: {error:e}");
                }
            };
            rows(&gather(&found[5], n), &y, n, "y");
            rows(&gather(&found[6], k), &dx, k, "dx");
        }
    }
}

#[test]
fn gradients_of_weights() {
    for [m, n, k] in [[67, 71, 131], [1, 5, 70], [200, 66, 3]] {
        let x = random(1, m * k);
        let dy = random(2, m * n);
        let before = random(3, n * k);
        let contents = [spread(&dy, n), spread(&x, k), spread(&before, k)];
        let launch = linear_weight([m, n, k], 0.25, &apart(0, n), &apart(1, k), &apart(2, k));
        let dw = reference::matmul::linear_weight(&wide(&dy), &wide(&x), [m, n, k]);
        let dw: Vec<f64> = dw.iter().map(|v| v * 0.25).collect();
        for found in run_as_each_device(&[launch], &contents) {
            assert_close("dw", &gather(&found[2], k), &sum(&dw, &before));
        }
    }
}

/// Every size of tiles, across its edges.
#[test]
fn matmuls_in_tiles_of_every_side() {
    for side in [1, 4, 8] {
        let [m, n, k] = [133, 131, 70];
        let (matrix, values) = packed(quantize::layout(4), n, k);
        let (x, dy) = (random(1, m * k), random(2, m * n));
        let before = random(3, n * k);
        let weight = rows_of(&matrix, 0, n);
        let contents = [
            bytes(&matrix.planes[0]),
            bytes(&matrix.planes[1]),
            spread(&x, k),
            spread(&dy, n),
            spread(&vec![f32::NAN; m * n], n),
            spread(&vec![f32::NAN; m * k], k),
            spread(&before, k),
        ];
        let launches = [
            linear(&weight, m, 0.5, &apart(2, k), None, &apart(4, n)),
            linear_input(&weight, m, 0.5, &apart(3, n), &apart(5, k), false),
            linear_weight([m, n, k], 0.5, &apart(3, n), &apart(2, k), &apart(6, k)),
        ]
        .map(|mut launch| {
            launch.variant = launch.variant.set("SIDE", side);
            launch
        });
        let halved = |values: Vec<f64>| values.iter().map(|v| v * 0.5).collect::<Vec<f64>>();
        let used = wide(&values);
        let y = halved(reference::matmul::linear(&wide(&x), &used, [m, n, k]));
        let dx = halved(reference::matmul::linear_input(
            &wide(&dy),
            &used,
            [m, n, k],
        ));
        let dw = halved(reference::matmul::linear_weight(
            &wide(&dy),
            &wide(&x),
            [m, n, k],
        ));
        for found in run_as_each_device(&launches, &contents) {
            assert_close(&format!("{side}, y"), &gather(&found[4], n), &y);
            assert_close(&format!("{side}, dx"), &gather(&found[5], k), &dx);
            assert_close(
                &format!("{side}, dw"),
                &gather(&found[6], k),
                &sum(&dw, &before),
            );
        }
    }
}

#[test]
fn norms_of_rows_and_groups() {
    for (layer, gain, bias, offset, groups, cols, rows) in [
        (false, true, false, 0.0, 1, 131, 5),
        (false, true, false, 1.0, 3, 70, 7),
        (false, false, false, 0.0, 2, 3, 9),
        (true, true, true, 0.0, 1, 65, 300),
        (true, true, false, 0.0, 4, 64, 2),
    ] {
        let width = groups * cols;
        let x = random(1, rows * width);
        let dy = random(2, rows * width);
        let gains = random(3, cols + 4);
        let biases = random(4, cols);
        let before = random(5, rows * width);
        let shape = NormShape {
            rows,
            groups,
            cols,
            layer,
            gain: gain.then_some((2, 4)),
            bias: bias.then_some(3),
            offset,
            eps: 1e-5,
            stats: 4,
        };
        let contents = [
            spread(&x, width),
            spread(&dy, width),
            bytes(&gains),
            bytes(&biases),
            unwritten(rows * groups * 2),
            spread(&vec![f32::NAN; rows * width], width),
            spread(&vec![f32::NAN; rows * width], width),
            spread(&before, width),
            bytes(&gains),
            bytes(&biases),
        ];
        let views = [apart(0, width), apart(1, width)];
        let mut launches = vec![
            shape.forward(&views[0], &apart(5, width)),
            shape.input(&views[0], &views[1], &apart(6, width), false),
            shape.input(&views[0], &views[1], &apart(7, width), true),
            shape.gain(&views[0], &views[1], 8, 4),
            column_sums([rows, groups, cols], &views[1], 9, 0),
        ];
        if !gain {
            launches.remove(3);
        }
        let found = run(&launches, &contents);
        let norm = NormLayer {
            cols,
            layer,
            gain: gain.then(|| wide(&gains[4..])),
            bias: bias.then(|| wide(&biases)),
            offset: f64::from(offset),
            eps: 1e-5,
        };
        let name = format!("layer {layer}, {groups} groups of {cols}");
        assert_close(&name, &gather(&found[5], width), &norm.forward(&wide(&x)));
        let dx = norm.input(&wide(&x), &wide(&dy));
        assert_close(&format!("{name}, dx"), &gather(&found[6], width), &dx);
        assert_close(
            &format!("{name}, added dx"),
            &gather(&found[7], width),
            &sum(&dx, &before),
        );
        let [dgain, dbias] = norm.weights(&wide(&x), &wide(&dy));
        if gain {
            assert_close(
                &format!("{name}, gain"),
                &found[8][4..],
                &sum(&dgain, &gains[4..]),
            );
            assert_eq!(found[8][..4], gains[..4]);
        }
        assert_close(&format!("{name}, bias"), &found[9], &sum(&dbias, &biases));
    }
}

/// Sequences of any length, between rows that no sequence pools, whose gradients stay as they were.
#[test]
fn pooling_and_its_gradient() {
    let spans = vec![[0, 1], [2, 5], [5, 75], [75, 76], [79, 81]];
    let rows = 83;
    for pooling in POOLINGS {
        for cols in [1, 64, 131] {
            let x = random(1, rows * cols);
            let dy = random(2, spans.len() * cols);
            let before = random(3, rows * cols);
            let words: Vec<[u32; 2]> = spans
                .iter()
                .map(|span| span.map(|row| row as u32))
                .collect();
            let shape = PoolShape {
                sequences: spans.len(),
                cols,
                pooling,
                spans: 2,
            };
            let contents = [
                spread(&x, cols),
                spread(&dy, cols),
                bytes(&words),
                spread(&vec![f32::NAN; spans.len() * cols], cols),
                spread(&before, cols),
            ];
            let launches = [
                shape.forward(&apart(0, cols), &apart(3, cols)),
                shape.input(&apart(0, cols), &apart(1, cols), &apart(4, cols)),
            ];
            let found = run(&launches, &contents);
            let layer = PoolLayer {
                cols,
                pooling,
                spans: spans.clone(),
            };
            let name = format!("{pooling:?} of {cols} columns");
            assert_close(&name, &gather(&found[3], cols), &layer.forward(&wide(&x)));
            let dx = layer.input(&wide(&x), &wide(&dy));
            let dx = sum(&dx, &before);
            assert_close(&format!("{name}, dx"), &gather(&found[4], cols), &dx);
        }
    }
}

#[test]
fn rope_and_its_gradient() {
    for (heads, head_dim, dim, interleaved) in
        [(3, 12, 12, false), (2, 10, 6, true), (1, 70, 34, false)]
    {
        let rows = 9;
        let width = heads * head_dim;
        let spec = RopeSpec {
            interleaved,
            ..RopeSpec::plain(dim, 100.0)
        };
        let table = spec.table(0, 20, 0);
        let positions: Vec<u32> = (0..rows as u32).map(|row| row * 7 % 20).collect();
        let x = random(1, rows * width);
        let before = random(2, rows * width);
        let shape = RopeShape {
            rows,
            heads,
            head_dim,
            dim,
            interleaved,
            table: 1,
            positions: 2,
        };
        let contents = [
            spread(&x, width),
            bytes(&table),
            bytes(&positions),
            spread(&vec![f32::NAN; rows * width], width),
            spread(&before, width),
        ];
        let launches = [
            shape.rotate(&apart(0, width), &apart(3, width), false, false),
            shape.rotate(&apart(0, width), &apart(4, width), true, true),
        ];
        let found = run(&launches, &contents);
        let turns = |row: usize| {
            let first = positions[row] as usize * dim / 2;
            let turns = &table[first..first + dim / 2];
            turns.iter().map(|turn| turn.map(f64::from)).collect()
        };
        let rotated = |inverse| {
            reference::rope::rotate(
                &wide(&x),
                [head_dim, dim],
                interleaved,
                &turns,
                width,
                inverse,
            )
        };
        assert_close("rope", &gather(&found[3], width), &rotated(false));
        assert_close(
            "its gradient",
            &gather(&found[4], width),
            &sum(&rotated(true), &before),
        );
    }
}

/// Spans of sequences of these lengths.
fn spans(lengths: &[usize]) -> Vec<[usize; 2]> {
    let mut first = 0;
    let mut all = Vec::new();
    for length in lengths {
        all.extend(std::iter::repeat_n([first, first + length], *length));
        first += length;
    }
    all
}

#[test]
fn attention_and_its_gradients() {
    const ALL: usize = usize::MAX;
    for (heads, kv_heads, head_dim, before, after, softcap, sinks, lengths) in [
        (4, 2, 12, ALL, 0, 0.0, false, &[5, 1, 70, 3][..]),
        (6, 1, 64, 6, 0, 0.0, false, &[67, 2]),
        (2, 1, 70, 90, 0, 0.0, false, &[40, 130]),
        (2, 2, 80, ALL, ALL, 0.0, false, &[9, 66]),
        (3, 3, 16, 3, 5, 2.0, false, &[20, 7]),
        (4, 2, 20, 9, 0, 0.0, true, &[11, 30]),
    ] {
        let spans = spans(lengths);
        let rows = spans.len();
        let [width, kv_width] = [heads * head_dim, kv_heads * head_dim];
        let scale = 1.0 / (head_dim as f32).sqrt();
        let values = [width, kv_width, kv_width, width].map(|cols| cols * rows);
        let [q, k, v, dy] = [0, 1, 2, 3].map(|i| random(i as u64, values[i]));
        let [q, k] = [q, k].map(|x| x.iter().map(|v| v * 3.0).collect::<Vec<f32>>());
        let own: Vec<f32> = random(5, heads);
        let words: Vec<[u32; 2]> = spans.iter().map(|s| s.map(|row| row as u32)).collect();
        let shape = AttentionShape {
            rows,
            heads,
            kv_heads,
            head_dim,
            before,
            after,
            scale,
            softcap,
            sinks: sinks.then_some(5),
            spans: 4,
            stats: 6,
        };
        let inputs = QueryKeyValue {
            q: apart(0, width),
            k: apart(1, kv_width),
            v: apart(2, kv_width),
        };
        let earlier = random(6, rows * width);
        let contents = [
            spread(&q, width),
            spread(&k, kv_width),
            spread(&v, kv_width),
            spread(&dy, width),
            bytes(&words),
            bytes(&own),
            unwritten(rows * heads * 2),
            spread(&vec![f32::NAN; rows * width], width),
            spread(&earlier, width),
            unwritten(rows * kv_width),
            unwritten(rows * kv_width),
        ];
        let dy_view = apart(3, width);
        let launches = [
            shape.forward(&inputs, &apart(7, width)),
            shape.dots(&apart(7, width), &dy_view),
            shape.queries(&inputs, &dy_view, &apart(8, width), true),
            shape.keys(
                &inputs,
                &dy_view,
                &contiguous(9, kv_width),
                &contiguous(10, kv_width),
            ),
        ];
        let layer = AttentionLayer {
            heads,
            kv_heads,
            head_dim,
            before,
            after: after.min(1 << 20),
            scale: f64::from(scale),
            softcap: f64::from(softcap),
            sinks: sinks.then(|| wide(&own)),
            spans,
        };
        let [q, k, v, dy] = [q, k, v, dy].map(|x| wide(&x));
        let name = format!("{heads}/{kv_heads} heads of {head_dim}");
        let out = layer.forward(&q, &k, &v);
        let [dq, dk, dv] = layer.gradients(&q, &k, &v, &dy);
        let dq = sum(&dq, &earlier);
        for found in run_as_each_device(&launches, &contents) {
            assert_close(&name, &gather(&found[7], width), &out);
            assert_close(&format!("{name}, dq"), &gather(&found[8], width), &dq);
            assert_close(&format!("{name}, dk"), &found[9], &dk);
            assert_close(&format!("{name}, dv"), &found[10], &dv);
        }
    }
}

#[test]
fn elementwise_functions_and_their_gradients() {
    let [rows, cols] = [7, 43];
    let a: Vec<f32> = random(1, rows * cols).iter().map(|v| v * 6.0).collect();
    let [b, c, before] = [2, 3, 4].map(|seed| random(seed, rows * cols));
    let vector = random(5, cols);
    let views = [0, 1, 2].map(|buffer| apart(buffer, cols));
    let mut cases = vec![
        Function::Scale(0.3),
        Function::Sum,
        Function::Product,
        Function::Softcap(2.0),
        Function::SoftcapGradient(2.0),
        Function::ColumnScale,
        Function::ScalarScale,
    ];
    for act in ACTIVATIONS {
        cases.extend([
            Function::Activation(act),
            Function::ActivationGradient(act),
            Function::Gate(act),
            Function::GateGradient(act),
        ]);
    }
    use reference::elementwise::{activate, derivative};
    for (index, function) in cases.into_iter().enumerate() {
        let is_vector = matches!(function, Function::ColumnScale | Function::ScalarScale);
        let add = index % 2 == 1;
        let contents = [
            spread(&a, cols),
            if is_vector {
                bytes(&vector)
            } else {
                spread(&b, cols)
            },
            spread(&c, cols),
            spread(&before, cols),
        ];
        let mut inputs: Vec<&View<usize>> = views.iter().take(function.inputs()).collect();
        let flat = contiguous(1, cols);
        if is_vector {
            inputs[1] = &flat;
        }
        let launch = elementwise(function, [rows, cols], &inputs, &apart(3, cols), add);
        let found = run(&[launch], &contents);
        let expected: Vec<f64> = (0..rows * cols)
            .map(|i| {
                let [a, b, c] = [&a, &b, &c].map(|x| f64::from(x[i]));
                match function {
                    Function::Scale(factor) => a * f64::from(factor),
                    Function::Sum => a + b,
                    Function::Product => a * b,
                    Function::Activation(act) => activate(act, a),
                    Function::ActivationGradient(act) => derivative(act, a) * b,
                    Function::Gate(act) => activate(act, a) * b,
                    Function::GateGradient(act) => derivative(act, a) * b * c,
                    Function::Softcap(_) => 2.0 * (a / 2.0).tanh(),
                    Function::SoftcapGradient(_) => (1.0 - (a / 2.0).tanh().powi(2)) * b,
                    Function::ColumnScale => a * f64::from(vector[i % cols]),
                    Function::ScalarScale => a * f64::from(vector[0]),
                }
            })
            .collect();
        let expected = if add {
            sum(&expected, &before)
        } else {
            expected
        };
        assert_close(
            &format!("{function:?}"),
            &gather(&found[3], cols),
            &expected,
        );
    }
}

#[test]
fn short_convolutions_stay_within_sequences() {
    // Lengths of sequences, among them shorter ones than the kernel.
    for (lengths, cols, taps) in [
        (&[1, 2, 70][..], 65, 3),
        (&[5, 1, 1, 9][..], 7, 8),
        (&[3][..], 130, 2),
    ] {
        let rows: usize = lengths.iter().sum();
        let mut spans = Vec::new();
        for length in lengths {
            let first = spans.len();
            spans.extend(vec![[first, first + length]; *length]);
        }
        let spans_u32: Vec<[u32; 2]> = spans
            .iter()
            .map(|span| span.map(|row: usize| row as u32))
            .collect();
        let [x, dy, before] = [1, 2, 3].map(|seed| random(seed, rows * cols));
        let [w, dw] = [4, 5].map(|seed| random(seed, cols * taps));
        let bias = random(6, cols);
        let shape = ShortConvShape {
            rows,
            cols,
            taps,
            weight: 2,
            spans: 3,
        };
        let empty = vec![f32::NAN; rows * cols];
        let contents = [
            spread(&x, cols),
            spread(&dy, cols),
            bytes(&w),
            bytes(&spans_u32),
            bytes(&bias),
            spread(&empty, cols),
            spread(&empty, cols),
            spread(&empty, cols),
            spread(&before, cols),
            bytes(&dw),
        ];
        let launches = [
            shape.forward(&apart(0, cols), Some(4), &apart(5, cols)),
            shape.forward(&apart(0, cols), None, &apart(6, cols)),
            shape.input(&apart(1, cols), &apart(7, cols), false),
            shape.input(&apart(1, cols), &apart(8, cols), true),
            shape.weight(&apart(0, cols), &apart(1, cols), 9),
        ];
        let found = run(&launches, &contents);
        let layer = ShortConvLayer { cols, taps, spans };
        let name = format!("{lengths:?}, {cols} columns, {taps} taps");
        let [x, dy, w] = [&x, &dy, &w].map(|values| wide(values));
        for (buffer, bias) in [(5, Some(wide(&bias))), (6, None)] {
            let expected = layer.forward(&x, &w, bias.as_deref());
            assert_close(&name, &gather(&found[buffer], cols), &expected);
        }
        let dx = layer.input(&dy, &w);
        assert_close(&format!("{name}, dx"), &gather(&found[7], cols), &dx);
        let added = sum(&dx, &before);
        assert_close(&format!("{name}, added"), &gather(&found[8], cols), &added);
        let dw = sum(&layer.weight(&x, &dy), &dw);
        assert_close(&format!("{name}, dw"), &found[9], &dw);
    }
}

#[test]
fn embeddings_and_the_gradient_of_their_table() {
    let [table_rows, cols] = [50, 37];
    let ids: Vec<u32> = (0..90u32).map(|row| row * row % 47).collect();
    let (matrix, values) = packed(quantize::layout(8), table_rows, cols);
    let halves = [0..30, 30..50].map(|range: std::ops::Range<usize>| {
        let words = [
            matrix.layout.row_words(cols),
            matrix.layout.row_param_words(cols),
        ];
        [0, 1].map(|p| bytes(&matrix.planes[p][range.start * words[p]..range.end * words[p]]))
    });
    let dy = random(2, ids.len() * cols);
    let stride = 64;
    let before = random(3, table_rows * stride);
    let [[q0, s0], [q1, s1]] = halves;
    let contents = [
        bytes(&ids),
        q0,
        s0,
        q1,
        s1,
        unwritten(ids.len() * cols),
        bytes(&dy),
        bytes(&before),
    ];
    let table = |rows: usize, q: usize| WeightPlanes {
        layout: matrix.layout,
        rows: rows as u32,
        cols: cols as u32,
        q,
        s: Some(q + 1),
    };
    let launches = [
        embed::embed(&table(30, 1), 0, ids.len(), 0.5, 0, 5),
        embed::embed(&table(20, 3), 30, ids.len(), 0.5, 0, 5),
        embed::embed_table(
            [ids.len(), cols],
            0.5,
            0,
            &contiguous(6, cols),
            &contiguous(7, stride),
        ),
    ];
    let found = run(&launches, &contents);
    let looked_up: Vec<f64> = ids
        .iter()
        .flat_map(|id| wide(&values[*id as usize * cols..][..cols]))
        .map(|v| v * 0.5)
        .collect();
    assert_close("rows", &found[5], &looked_up);
    let gradient = reference::embed::embed_table(&ids, &wide(&dy), table_rows, cols);
    for (row, (found, before)) in found[7]
        .chunks(stride)
        .zip(before.chunks(stride))
        .enumerate()
    {
        let expected: Vec<f64> = gradient[row * cols..][..cols]
            .iter()
            .map(|v| v * 0.5)
            .collect();
        assert_close("table", &found[..cols], &sum(&expected, &before[..cols]));
        assert_eq!(found[cols..], before[cols..], "padding of row {row}");
    }
}

#[test]
fn losses_and_their_gradients() {
    let [rows, cols] = [11, 203];
    let logits: Vec<f32> = random(1, rows * cols).iter().map(|v| v * 20.0).collect();
    let labels: Vec<Option<u32>> = (0..rows as u32)
        .map(|row| (row % 4 != 2).then_some(row * 31 % cols as u32))
        .collect();
    let words: Vec<u32> = labels
        .iter()
        .map(|label| label.unwrap_or(IGNORED))
        .collect();
    let goals = random(2, rows * cols);
    let hyper = [0.125f32; 8];
    let contents = [
        bytes(&logits),
        bytes(&words),
        unwritten(rows),
        bytes(&hyper),
        bytes(&[1.0f32, 0.0]),
        bytes(&logits),
        bytes(&logits),
        bytes(&goals),
        unwritten(rows),
    ];
    let view = |buffer| contiguous(buffer, cols);
    let launches = [
        loss::cross_entropy([rows, cols], &view(0), 1, 2, None),
        loss::cross_entropy([rows, cols], &view(5), 1, 2, Some(3)),
        loss::add_losses(rows, 2, 4),
        loss::mean_square([rows, cols], &view(6), 7, 8, 3),
    ];
    let found = run(&launches, &contents);
    assert_eq!(found[0], logits, "an evaluation changes the logits");
    let [losses, gradient] = reference::loss::cross_entropy(&wide(&logits), &labels, cols, 0.125);
    assert_close("losses", &found[2], &losses);
    assert_close("gradient", &found[5], &gradient);
    assert_close("sum", &found[4], &[1.0 + losses.iter().sum::<f64>(), 0.0]);
    let [losses, gradient] =
        reference::loss::mean_square(&wide(&logits), &wide(&goals), cols, 0.125);
    assert_close("squares", &found[8], &losses);
    assert_close("gradient of squares", &found[6], &gradient);
}

#[test]
fn updates_of_weights() {
    let count = 1_031;
    let adamw = Optimizer::AdamW {
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-6,
    };
    let cases = [
        (Optimizer::Sgd { momentum: 0.0 }, false),
        (Optimizer::Sgd { momentum: 0.0 }, true),
        (Optimizer::Sgd { momentum: 0.9 }, true),
        (adamw, false),
        (adamw, true),
    ];
    for (optimizer, decay) in cases {
        let values = random(1, count);
        let mut expected = OptimizedWeight::new(wide(&values));
        let mut weight = bytes(&values);
        let mut states = [bytes(&vec![0.0f32; count]), bytes(&vec![0.0f32; count])];
        for step in 1..=3 {
            let gradient = random(10 + step as u64, count);
            // Clipped by 0.5.
            let norm: f64 = gradient
                .iter()
                .map(|g| f64::from(*g).powi(2))
                .sum::<f64>()
                .sqrt();
            let corrections = [0.8f32, 0.95].map(|beta| 1.0 - beta.powi(step));
            let hyper = [
                1.0,
                0.01,
                0.3,
                corrections[0],
                corrections[1],
                norm as f32 * 0.5,
                0.0,
                0.0,
            ];
            let contents = [
                weight.clone(),
                bytes(&gradient),
                unwritten(2),
                bytes(&hyper),
                states[0].clone(),
                states[1].clone(),
                unwritten(update::square_sums(count) + 1),
            ];
            let used = &[4, 5][..optimizer.states()];
            let launches = [
                update::squares(count, 1, 0, 6),
                update::clip(update::square_sums(count), 6, 3, 2),
                optimizer.update(count, decay, 0, 1, used, [2, 3]),
            ];
            let found = run(&launches, &contents);
            assert_close("norm", &found[2], &[norm, 0.5]);
            let clipped: Vec<f64> = gradient.iter().map(|g| f64::from(*g) * 0.5).collect();
            expected.step(optimizer, 0.01, if decay { 0.3 } else { 0.0 }, &clipped);
            assert_close(&format!("{optimizer:?}"), &found[0], &expected.values);
            weight = bytes(&found[0]);
            states = [4, 5].map(|state: usize| bytes(&found[state]));
        }
    }
}

#[test]
fn long_sums_and_fills() {
    let count = 70_001;
    let values = random(3, count);
    let sums = update::square_sums(count);
    assert!(sums > 1);
    let contents = [bytes(&values), unwritten(sums + 2)];
    let found = run(&[update::squares(count, 0, 2, 1)], &contents);
    let total: f64 = found[1][2..].iter().map(|v| f64::from(*v)).sum();
    let expected: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    assert!(
        (total / expected - 1.0).abs() < 1e-6,
        "{total} and {expected}"
    );
    let found = run(&[fill(count - 1, 0)], &contents);
    assert!(found[0][..count - 1].iter().all(|v| *v == 0.0));
    assert_eq!(found[0][count - 1], values[count - 1]);
}

/// What the engine's build checks of its shaders, for those of training: WebKit miscompiles
/// `select`, and WebGPU guarantees 8 storage buffers.
#[test]
fn shaders_follow_the_rules_of_the_engine() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/shaders");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("train/shaders") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a shader");
        let code: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n")
            .collect();
        assert!(!code.contains("select("), "{}: select()", path.display());
        assert!(!code.contains("atomic"), "{}: atomics", path.display());
        // Declarations of different variants may share a number.
        let storage: BTreeSet<&str> = code
            .lines()
            .filter(|line| line.contains("var<storage"))
            .filter_map(|line| line.split_once("@binding(")?.1.split(')').next())
            .collect();
        assert!(
            !storage.is_empty() || !code.contains("var<storage"),
            "{}: bindings",
            path.display()
        );
        assert!(
            storage.len() <= 8,
            "{}: {} storage buffers",
            path.display(),
            storage.len()
        );
        files += 1;
    }
    assert!(files > 15);
}
