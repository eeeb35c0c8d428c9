//! Embedding lookup in every weight layout, with whole tables and tables split into several
//! buffers.

use super::matmul::{layouts, weights};
use super::op::{Case, Setting, few, many};
use jerboa::format::layout::{Float, WeightLayout};
use jerboa::ir::{Embed, IdSource, SoftTokens};
use jerboa::reference::embed::lookup;
use jerboa_tests::{gpu, nmse};

const IDS: [u32; 9] = [3, 0, 36, 36, 7, 19, 35, 1, 20];

fn error(layout: WeightLayout, cols: usize, max_buffer: u64) -> f64 {
    let (packed, exact) = weights(layout, 37, cols, 5);
    let mut case = Case::new();
    let table = case.table(packed);
    case.ids = IDS.to_vec();
    let out = case.b.node(
        "embed",
        Embed {
            table,
            scale: 2.5,
            ids: IdSource::Tokens,
            soft: None,
        },
        &[],
        cols,
    );
    let setting = Setting {
        max_buffer,
        ..Setting::default()
    };
    let found = case.run(gpu(), out, &setting, &[many(7), few(1), few(1)]);
    nmse(&found, &lookup(&exact, cols, &IDS, 2.5))
}

#[test]
fn rows_of_every_layout() {
    for layout in layouts() {
        for cols in [12, 300] {
            let error = error(layout, cols, u64::MAX);
            assert!(error < 1e-12, "{layout}, {cols} columns: {error:e}");
        }
    }
}

#[test]
fn tables_over_the_binding_limit_span_buffers() {
    for layout in [
        WeightLayout::Dense(Float::F32),
        WeightLayout::Dense(Float::BF16),
        layouts()[7],
    ] {
        let rows = layout.plane_bytes(1, 64).into_iter().max().unwrap_or(0);
        for per_buffer in [36, 17, 4] {
            let error = error(layout, 64, rows * per_buffer);
            assert!(
                error < 1e-12,
                "{layout}, {per_buffer} rows a buffer: {error:e}"
            );
        }
    }
}

/// Image tokens have ids beyond the table; a prompt maps them to one of its rows.
#[test]
fn ids_beyond_the_table() {
    let (packed, exact) = weights(WeightLayout::Dense(Float::F32), 37, 12, 5);
    let mut case = Case::new();
    let table = case.table(packed);
    case.ids = vec![3, 37, 900, 36, 7];
    let soft = Some(SoftTokens::Row(2));
    let out = case.b.node(
        "embed",
        Embed {
            table,
            scale: 1.0,
            ids: IdSource::Tokens,
            soft,
        },
        &[],
        12,
    );
    let found = case.run(gpu(), out, &Setting::default(), &[many(4), few(1)]);
    let error = nmse(&found, &lookup(&exact, 12, &[3, 2, 2, 36, 7], 1.0));
    assert!(error < 1e-12, "{error:e}");
}

/// A sequence in chunks and then token by token; a row's id is its position.
#[test]
fn rows_by_position() {
    let (packed, exact) = weights(WeightLayout::Dense(Float::F16), 9, 44, 5);
    let mut case = Case::new();
    let table = case.table(packed);
    case.ids = IDS.to_vec();
    let out = case.b.node(
        "embed",
        Embed {
            table,
            scale: 1.0,
            ids: IdSource::Positions,
            soft: None,
        },
        &[],
        44,
    );
    let found = case.run(
        gpu(),
        out,
        &Setting::default(),
        &[many(4), many(3), few(1), few(1)],
    );
    let error = nmse(
        &found,
        &lookup(&exact, 44, &[0, 1, 2, 3, 4, 5, 6, 7, 8], 1.0),
    );
    assert!(error < 1e-12, "{error:e}");
}
