//! Gemma 3n's AltUp, RMS scaling and sparse gates against their CPU references.

use super::op::{Case, Setting, few, many};
use jerboa::ir::{Activation, AltUp};
use jerboa::reference::altup as reference;
use jerboa_tests::{gpu, nmse, random};

const ROWS: usize = 4;

/// CPU reference of each row.
fn by_row(made: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    (0..ROWS).flat_map(made).collect()
}

/// Row `row` with this many columns.
fn at(x: &[f32], cols: usize, row: usize) -> &[f32] {
    &x[row * cols..(row + 1) * cols]
}

#[test]
fn streams_are_predicted_and_corrected() {
    for (count, cols) in [(2, 4), (3, 76), (4, 132)] {
        let streams = random(1, ROWS * count * cols);
        let layer = random(2, ROWS * cols);

        let modes = random(3, ROWS * count);
        for (correct, second) in [(false, false), (false, true), (true, true)] {
            let table = random(4, count.pow(if correct { 2 } else { 3 }));
            let mut case = Case::new();
            let mut inputs = vec![
                case.input(&streams, count * cols),
                case.input(&modes, count),
            ];
            if second {
                inputs.push(case.input(&layer, cols));
            }
            let coefs = case.vector(&table);
            let op = if correct {
                AltUp::Correct { coefs, count }
            } else {
                AltUp::Predict { coefs, count }
            };
            let out = case.b.node("streams", op, &inputs, count * cols);
            let found = case.run(gpu(), out, &Setting::default(), &[many(ROWS - 1), few(1)]);
            let expected = by_row(|row| {
                let x = at(&streams, count * cols, row);
                let m = at(&modes, count, row);
                let y = at(&layer, cols, row);

                if correct {
                    reference::correct(x, m, &table, y)
                } else {
                    reference::predict(x, m, &table, second.then_some(y))
                }
            });
            assert!(
                nmse(&found, &expected) < 1e-12,
                "{count} streams of {cols}, {correct} {second}"
            );
        }
    }
}

#[test]
fn rows_are_rescaled_to_another_magnitude() {
    for cols in [4, 76, 516] {
        let x = random(1, ROWS * cols);
        let like = random(2, ROWS * cols);
        let added = random(3, ROWS * cols);

        for with in [false, true] {
            let mut case = Case::new();
            let mut inputs = vec![case.input(&x, cols), case.input(&like, cols)];
            if with {
                inputs.push(case.input(&added, cols));
            }
            let out = case.b.node("matched", AltUp::MatchMagnitude, &inputs, cols);
            let found = case.run(gpu(), out, &Setting::default(), &[many(ROWS - 1), few(1)]);
            let expected = by_row(|row| {
                let more = with.then(|| at(&added, cols, row));
                reference::match_magnitude(at(&x, cols, row), at(&like, cols, row), more)
            });
            assert!(nmse(&found, &expected) < 1e-12, "{cols} columns");
        }
    }
    // Two groups of columns, and one of nearly zero.
    let cols = 8;
    let mut x = random(4, ROWS * 16);
    let like = random(5, ROWS * 8);

    x[..8].fill(1e-4);
    let mut case = Case::new();
    let inputs = [case.input(&x, 2 * cols), case.input(&like, cols)];
    let out = case
        .b
        .node("matched", AltUp::MatchMagnitude, &inputs, 2 * cols);
    let found = case.run(gpu(), out, &Setting::default(), &[many(ROWS)]);

    let expected: Vec<f32> = (0..2 * ROWS)
        .flat_map(|row: usize| {
            reference::match_magnitude(at(&x, cols, row), at(&like, cols, row / 2), None)
        })
        .collect();
    assert!(nmse(&found, &expected) < 1e-12);
}

#[test]
fn sparse_gates_pass_a_share_of_columns() {
    for cols in [8, 300, 1028] {
        let gate = random(1, ROWS * cols);
        let up = random(2, ROWS * cols);

        let mut case = Case::new();
        let inputs = [case.input(&gate, cols), case.input(&up, cols)];
        let op = AltUp::Sparse {
            act: Activation::GeluTanh,
            factor: 1.2,
        };
        let out = case.b.node("sparse", op, &inputs, cols);
        let found = case.run(gpu(), out, &Setting::default(), &[many(ROWS - 1), few(1)]);
        let expected = by_row(|row| {
            reference::sparse(
                at(&gate, cols, row),
                at(&up, cols, row),
                2,
                f64::from(1.2f32),
            )
        });
        assert!(nmse(&found, &expected) < 1e-11, "{cols} columns");
    }
}
