//! Elementwise operations, gated activations and the last row against their CPU references.

use super::op::{Case, Setting, few, many};
use jerboa::ir::{
    Activation, Add, Clip, ConcatHeads, Gated, HeadSlice, LastRow, Mul, MulVector, Op, Scale, Unary,
};
use jerboa::kernels::elementwise::{CopiedRows, copy_rows};
use jerboa::kernels::matmul::View;
use jerboa::reference::elementwise::{activate, concat_heads as reference_heads, last_row};
use jerboa_tests::{ACTIVATIONS, bytes, floats, gpu, nmse, random, run_all};

fn expected(op: &Op, a: f32, b: f32) -> f32 {
    match op {
        Op::Add(_) => a + b,
        Op::Mul(_) => a * b,
        Op::Gated(gated) => activate(gated.0 as u32, a) * b,
        Op::Unary(unary) => activate(unary.0 as u32, a),
        Op::Scale(scale) => a * scale.0,
        other => panic!("{other:?} is not elementwise"),
    }
}

fn check(op: &Op, a: &[f32], b: &[f32], cols: usize) {
    let binary = matches!(op, Op::Add(_) | Op::Mul(_) | Op::Gated(_));
    let rows = a.len() / cols;
    let mut case = Case::new();
    let mut inputs = vec![case.input(a, cols)];
    if binary {
        inputs.push(case.input(b, cols));
    }
    let out = case.b.node("op", op.clone(), &inputs, cols);
    let found = case.run(gpu(), out, &Setting::default(), &[many(rows - 1), few(1)]);
    assert_eq!(found.len(), a.len());
    for (i, value) in found.iter().enumerate() {
        let expected = expected(op, a[i], b[i]);
        let error = (value - expected).abs() / expected.abs().max(1.0);
        assert!(
            error < 3e-6,
            "{op:?} of {} and {}, {cols} columns: {value} instead of {expected}",
            a[i],
            b[i]
        );
    }
}

/// Heads of one input, of two, and of columns that all heads share; the rest is zero.
#[test]
fn heads_are_concatenated() {
    let part = |first, step, cols| HeadSlice { first, step, cols };
    for (head_dim, parts) in [
        (20, vec![part(12, 20, 8), part(0, 20, 12)]),
        (20, vec![part(0, 0, 8), part(4, 24, 12)]),
        (24, vec![part(8, 20, 12)]),
        (12, vec![part(0, 20, 12)]),
    ] {
        let heads = 3;
        let cols = 76;
        let rows = 4;

        let inputs: Vec<Vec<f32>> = (0..parts.len())
            .map(|i| random(i as u64 + 5, rows * cols))
            .collect();
        let mut case = Case::new();
        let ids: Vec<_> = inputs
            .iter()
            .map(|values| case.input(values, cols))
            .collect();
        let op = ConcatHeads {
            head_dim,
            parts: parts.clone(),
        };
        let out = case.b.node("heads", op, &ids, heads * head_dim);
        let found = case.run(gpu(), out, &Setting::default(), &[many(rows - 1), few(1)]);
        let taken: Vec<_> = parts
            .iter()
            .zip(&inputs)
            .map(|(p, x)| ([p.first, p.step, p.cols], &x[..]))
            .collect();
        assert_eq!(
            found,
            reference_heads(&taken, cols, [rows, heads, head_dim])
        );
    }
}

/// One column of `a` broadcasts to all.
#[test]
fn one_column_gates_a_row() {
    let rows = 4;
    let cols = 70;

    let a = random(3, rows);
    let b = random(4, rows * cols);

    let mut case = Case::new();
    let inputs = [case.input(&a, 1), case.input(&b, cols)];
    let out = case
        .b
        .node("gated", Gated(Activation::Sigmoid), &inputs, cols);
    let found = case.run(gpu(), out, &Setting::default(), &[many(rows - 1), few(1)]);
    let expected: Vec<f32> = b
        .iter()
        .enumerate()
        .map(|(i, b)| activate(5, a[i / cols]) * b)
        .collect();
    assert!(nmse(&found, &expected) < 1e-12);
}

#[test]
fn every_operation_with_odd_shapes() {
    let mut operations: Vec<Op> = vec![Add.into(), Mul.into(), Scale(-0.7).into()];
    operations.extend(ACTIVATIONS.map(|act| Op::from(Gated(act))));
    operations.extend(ACTIVATIONS.map(|act| Op::from(Unary(act))));
    for cols in [1, 6, 257, 1028] {
        for op in &operations {
            let a: Vec<f32> = random(1, 3 * cols).iter().map(|v| v * 6.0).collect();
            check(op, &a, &random(2, 3 * cols), cols);
        }
    }
}

/// Metal's fast math turns an overflowing exponential into NaN, so arguments are clamped.
#[test]
fn activations_of_large_values_are_finite() {
    let large: Vec<f32> = [0.0f32, 15.5, 81.0, 120.0, 1e4, 3e8]
        .iter()
        .flat_map(|v| [*v, -v])
        .collect();
    let a: Vec<f32> = large.iter().chain(&large).copied().collect();
    for act in ACTIVATIONS.into_iter().filter(|a| *a != Activation::Relu2) {
        check(&Unary(act).into(), &a, &vec![0.0; a.len()], large.len());
    }
}

#[test]
fn operations_read_views() {
    let x = random(5, 4 * 24);
    let mut case = Case::new();
    let both = case.input(&x, 24);
    let gate = case.b.view("gate", both, 0, 12);
    let up = case.b.view("up", both, 12, 12);

    let out = case
        .b
        .node("gated", Gated(Activation::Silu), &[gate, up], 12);
    let found = case.run(gpu(), out, &Setting::default(), &[many(3), few(1)]);
    for (i, value) in found.iter().enumerate() {
        let at = i / 12 * 24 + i % 12;
        assert!((value - activate(1, x[at]) * x[at + 12]).abs() < 1e-6);
    }
}

#[test]
fn the_last_row_is_that_of_the_step() {
    for cols in [1, 63, 130] {
        let x = random(6, 12 * cols);
        let mut case = Case::new();
        let input = case.input(&x, cols);
        let out = case.b.node("last", LastRow, &[input], cols);
        let found = case.run(gpu(), out, &Setting::default(), &[many(7), few(1), many(4)]);
        let expected: Vec<f32> = [7, 8, 12]
            .into_iter()
            .flat_map(|rows| last_row(&x, cols, rows))
            .collect();
        assert_eq!(found, expected, "{cols} columns");
    }
}

/// Clamps to limits of the checkpoint, which may be infinite.
#[test]
fn values_are_clipped_to_stored_limits() {
    for cols in [6, 300] {
        let a = random(1, 3 * cols);
        for limits in [
            [-0.3f32, 0.2],
            [0.1, 0.4],
            [f32::NEG_INFINITY, 0.25],
            [f32::NEG_INFINITY, f32::INFINITY],
        ] {
            let mut case = Case::new();
            let input = case.input(&a, cols);
            let weight = case.vector(&limits);
            let out = case.b.node("op", Clip(weight), &[input], cols);
            let found = case.run(gpu(), out, &Setting::default(), &[many(2), few(1)]);
            let expected: Vec<f32> = a.iter().map(|v| v.max(limits[0]).min(limits[1])).collect();
            assert_eq!(found, expected, "{cols} columns within {limits:?}");
        }
    }
}

/// Multiplies rows by a vector, and by a scalar of the checkpoint.
#[test]
fn rows_times_a_vector_or_a_number() {
    for cols in [6, 300] {
        let a = random(1, 3 * cols);
        for by in [random(2, cols), vec![-1.75]] {
            let mut case = Case::new();
            let input = case.input(&a, cols);
            let weight = case.vector(&by);
            let out = case.b.node("op", MulVector(weight), &[input], cols);
            let found = case.run(gpu(), out, &Setting::default(), &[many(2), few(1)]);
            let expected: Vec<f32> = a
                .iter()
                .enumerate()
                .map(|(i, v)| v * by[i % cols % by.len()])
                .collect();
            assert_eq!(found, expected, "{cols} columns times {}", by.len());
        }
    }
}

/// Rows counted from the step's first one or by position, on both sides, from any column on; other
/// rows and columns keep their values.
#[test]
fn rows_are_copied_by_position() {
    const POSITION: usize = 5;
    for (cols, rows) in [(1, 1), (63, 3), (64, 2), (65, 4), (200, 1)] {
        for (from, to) in [(false, false), (false, true), (true, false), (true, true)] {
            let offset = 3;
            let strides = [offset + cols + 2, cols + 4];
            let side = |buffer, index: usize, by_position| CopiedRows {
                view: View {
                    buffer,
                    offset: if index == 0 { offset as u32 } else { 0 },
                    stride: strides[index] as u32,
                },
                by_position,
            };
            let launch = copy_rows("copy", side(0, 0, from), side(1, 1, to), 2, cols as u32);
            let source = random(1, (POSITION + rows) * strides[0]);
            let before = random(2, (POSITION + rows) * strides[1]);
            // The plan may have more rows than the step.
            let state = [POSITION as u32, rows as u32, 0, 0, 0, 0, 0, 0];
            let buffers = [bytes(&source), bytes(&before), bytes(&state)];
            let found = floats(&run_all(gpu(), &[launch], rows as u32 + 1, &buffers)[1]);
            let first = |by_position| if by_position { POSITION } else { 0 };
            let mut expected = before;
            for row in 0..rows {
                let at = (first(from) + row) * strides[0] + offset;
                let target = (first(to) + row) * strides[1];
                expected[target..target + cols].copy_from_slice(&source[at..at + cols]);
            }
            assert_eq!(found, expected, "{cols} columns, {rows} rows, {from}, {to}");
        }
    }
}
