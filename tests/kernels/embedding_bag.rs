//! Embedding bags, external rows, and concatenated rows and columns, against their CPU references.

use super::matmul::{layouts, weights};
use super::op::{Case, Setting, many};
use jerboa::format::layout::{Float, WeightLayout};
use jerboa::ir::{Concat, Linear};
use jerboa::kernels::embedding_bag::{embedding_bag, soft_tokens};
use jerboa::kernels::matmul::{View, WeightPlanes};
use jerboa::reference;
use jerboa_tests::{bytes, floats, gpu, nmse, random, run};

fn view(buffer: usize, offset: u32, stride: u32) -> View<usize> {
    View {
        buffer,
        offset,
        stride,
    }
}

#[test]
fn sums_of_rows_of_a_table() {
    for (layout, cols) in [
        (WeightLayout::Dense(Float::F32), 36),
        (WeightLayout::Dense(Float::BF16), 300),
        (layouts()[7], 64),
    ] {
        let (packed, exact) = weights(layout, 7, cols, 3);
        let table = WeightPlanes {
            layout,
            rows: 7,
            cols: cols as u32,
            q: 1,
            s: Some(2).filter(|_| !packed.planes[1].is_empty()),
        };
        let pairs = [
            vec![(0, 0.5), (6, 0.25), (3, 1.0)],
            vec![(2, 1.0)],
            vec![(5, -2.0), (5, 0.5)],
        ];
        let words: Vec<u32> = pairs
            .iter()
            .flat_map(|list: &Vec<(u32, f32)>| {
                let mut row: Vec<u32> = list.iter().flat_map(|(n, w)| [*n, w.to_bits()]).collect();
                row.resize(8, 0);
                row
            })
            .collect();
        let poison = bytes(&vec![f32::NAN; 3 * cols]);
        let scales = if packed.planes[1].is_empty() {
            vec![0; 4]
        } else {
            bytes(&packed.planes[1])
        };
        let launch = embedding_bag(
            "mix",
            &table,
            Some(3),
            &view(0, 0, 8),
            &view(3, 0, cols as u32),
        );
        let given = [
            bytes(&words),
            bytes(&packed.planes[0]),
            scales.clone(),
            poison.clone(),
        ];
        let found = floats(&run(gpu(), &launch, 3, &given)[3]);
        let error = nmse(
            &found,
            &reference::embedding_bag::embedding_bag(&exact, cols, &pairs),
        );
        assert!(error < 1e-12, "{layout}: {error:e}");
        let x = random(4, 3 * 8);
        let all: Vec<Vec<(u32, f32)>> = x
            .chunks(8)
            .map(|row| (0..7).map(|i| (i, row[i as usize])).collect())
            .collect();
        let launch = embedding_bag(
            "product",
            &table,
            None,
            &view(0, 0, 8),
            &view(3, 0, cols as u32),
        );
        let found = floats(
            &run(
                gpu(),
                &launch,
                3,
                &[bytes(&x), bytes(&packed.planes[0]), scales, poison],
            )[3],
        );
        let error = nmse(
            &found,
            &reference::embedding_bag::embedding_bag(&exact, cols, &all),
        );
        assert!(error < 1e-12, "{layout}, all rows: {error:e}");
    }
}

#[test]
fn external_rows() {
    let cols = 261;
    let ids = [3u32, 40, 41, 9, 43];

    let a = random(1, 5 * cols);
    // Rows of two features; the second is selected.
    let given = random(2, 4 * 524);
    let rows: Vec<f32> = given
        .chunks(524)
        .flat_map(|row| row[262..262 + cols].to_vec())
        .collect();
    for add in [true, false] {
        let own = view(0, 0, cols as u32);
        let launch = soft_tokens(
            "soft",
            add.then_some(&own),
            &view(1, 262, 524),
            2,
            40,
            &view(3, 0, cols as u32),
            cols as u32,
        );
        let found = floats(
            &run(
                gpu(),
                &launch,
                5,
                &[bytes(&a), bytes(&given), bytes(&ids), bytes(&a)],
            )[3],
        );
        let before: Vec<f32> = match add {
            true => a.clone(),
            false => a
                .chunks(cols)
                .zip(ids)
                .flat_map(|(row, id)| row.iter().map(move |v| if id < 40 { *v } else { 0.0 }))
                .collect(),
        };
        assert_eq!(
            found,
            reference::embedding_bag::add_soft_tokens(&before, cols, &ids, &rows, 40),
            "add: {add}"
        );
    }
}

#[test]
fn rows_and_columns_are_concatenated() {
    let mut case = Case::new();
    let x = random(5, 8 * 12);
    let input = case.input(&x, 12);
    let (packed, exact) = weights(WeightLayout::Dense(Float::F32), 20, 24, 6);
    let weight = case.table(packed);
    let joined = case.b.fold_rows("joined", input, 2);
    let y = case
        .b
        .node("product", Linear::new(weight, None), &[joined], 20);
    let out = case.b.node("beside", Concat, &[y, joined, y], 64);
    let found = case.run(gpu(), out, &Setting::default(), &[many(8)]);
    let matmul = |row: &[f32]| -> Vec<f32> {
        exact
            .chunks(24)
            .map(|w| w.iter().zip(row).map(|(w, x)| w * x).sum())
            .collect()
    };
    let expected: Vec<f32> = x
        .chunks(24)
        .flat_map(|row| [matmul(row), row.to_vec(), matmul(row)].concat())
        .collect();
    assert!(nmse(&found, &expected) < 1e-12);
}
