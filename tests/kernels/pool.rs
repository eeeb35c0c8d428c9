//! Pooling of packed sequences and the operations after it, one row per sequence.

use super::op::{Case, Cut, Setting};
use jerboa::format::layout::{Float, PackedMatrix, WeightLayout};
use jerboa::gpu::{DeviceOptions, Gpu};
use jerboa::ir::{Linear, Pool, Pooling, ValueId};
use jerboa::plan::StepKind;
use jerboa::reference::pool::pool as reference;
use jerboa_tests::{POOLINGS, open, random, relative_l2};
use std::ops::Range;

const LENGTHS: [usize; 6] = [1, 7, 64, 65, 2, 130];

fn spans() -> Vec<Range<usize>> {
    let ends = LENGTHS.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    ends.zip(LENGTHS)
        .map(|(end, length)| end - length..end)
        .collect()
}

/// Runs the graph of `build` on an input of packed sequences.
fn run(
    gpu: &Gpu,
    x: &[f32],
    cols: usize,
    max_buffer: u64,
    build: impl Fn(&mut Case, ValueId) -> ValueId,
) -> Vec<f32> {
    let rows = x.len() / cols;
    let segments = spans()
        .into_iter()
        .flat_map(|s| vec![[s.start as u32, s.end as u32]; s.len()])
        .collect();
    let setting = Setting {
        segments,
        max_buffer,
        ..Setting::default()
    };
    let mut case = Case::new();
    let input = case.input(x, cols);
    let out = build(&mut case, input);
    let mode = StepKind::Packed {
        tokens: rows + 5,
        sequences: LENGTHS.len() + 2,
    };
    case.run(gpu, out, &setting, &[Cut { rows, mode }])
}

#[test]
fn every_pooling() {
    let gpu = open(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    });
    let rows: usize = LENGTHS.iter().sum();
    for cols in [4, 50, 64, 132] {
        let x = random(7, rows * cols);
        for pooling in POOLINGS {
            let error = relative_l2(
                &run(&gpu, &x, cols, u64::MAX, |case: &mut Case, input| {
                    case.b.node("pool", Pool(pooling), &[input], cols)
                }),
                &reference(&x, cols, &spans(), pooling),
            );
            assert!(error < 1e-6, "{pooling:?} {cols}: {error:e}");
        }
    }
}

/// Rows of a table as outputs: all, some, and from a table in several buffers.
#[test]
fn matmuls_of_pooled_rows() {
    let gpu = open(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    });
    let rows = LENGTHS.iter().sum::<usize>();
    let cols = 40;
    let n = 90;

    let x = random(8, rows * cols);
    let w = random(9, n * cols);

    let pooled = reference(&x, cols, &spans(), Pooling::Mean);
    let dot = |text: usize, row: usize| -> f32 {
        (0..cols)
            .map(|c| pooled[text * cols + c] * w[row * cols + c])
            .sum()
    };
    for (row0, count, max_buffer) in [
        (0, 90, u64::MAX),
        (0, 90, 5000),
        (77, 1, u64::MAX),
        (77, 1, 5000),
        (25, 60, 5000),
    ] {
        let build = |case: &mut Case, input| {
            let mut packed = PackedMatrix::zeros(WeightLayout::Dense(Float::F32), n, cols);
            w.iter()
                .enumerate()
                .for_each(|(i, v)| packed.set_dense(i / cols, i % cols, *v));
            let weight = case.table(packed);
            let pooled = case.b.node("pool", Pool(Pooling::Mean), &[input], cols);
            let linear = Linear {
                row0,
                ..Linear::new(weight, None)
            };
            case.b.node("product", linear, &[pooled], count)
        };
        let expected: Vec<f32> = (0..LENGTHS.len())
            .flat_map(|t| (row0..row0 + count).map(move |r| (t, r)))
            .map(|(t, r)| dot(t, r))
            .collect();
        let error = relative_l2(&run(&gpu, &x, cols, max_buffer, build), &expected);
        assert!(
            error < 1e-5,
            "{count} rows from {row0}, buffers of {max_buffer}: {error:e}"
        );
    }
}
