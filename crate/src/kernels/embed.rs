//! Lookup of table rows by id, for every weight layout.

use super::matmul::{View, WeightPlanes, scale_pairs, weight_flags};
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Source of each row's table index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowIndex<B> {
    /// One index per row.
    Ids(B),
    /// The positions counted by the step's state.
    Positions(B),
    /// The positions in the row table of a batched step.
    RowPositions(B),
}

/// Returns `out[row] = table[index] * scale` for indices in `first..first + table.rows`. With
/// `past = (end, id)`, indices from `end` on are read as `id`.
pub fn embed<B: Clone>(
    label: &str,
    table: &WeightPlanes<B>,
    first: u32,
    numbers: RowIndex<B>,
    past: Option<(u32, u32)>,
    out: &View<B>,
    scale: f32,
) -> Launch<B> {
    let variant = weight_flags(Variant::new(Kernel::Embed), table.layout);
    let batch = matches!(numbers, RowIndex::RowPositions(_));
    let places = batch || matches!(numbers, RowIndex::Positions(_));
    let name = if places { "state" } else { "ids" };
    let (RowIndex::Ids(buffer) | RowIndex::Positions(buffer) | RowIndex::RowPositions(buffer)) =
        numbers;

    let grid = GridSpec::Tiled {
        x: table.cols.div_ceil(256),
        per: 1,
        z: 1,
    };
    let mut launch = Launch::new(
        label,
        variant
            .flag_if("POSITIONS", places)
            .flag_if("BATCH", batch)
            .flag_if("SOFT", past.is_some()),
        grid,
    )
    .bind(name, buffer)
    .bind("w_q", table.q.clone())
    .bind_opt("w_s", table.s.clone())
    .bind("out", out.buffer.clone())
    .set("k", table.cols)
    .set("k_blocks", table.k_blocks())
    .set("groups", scale_pairs(table.layout, table.cols))
    .set("row0", first)
    .set("n", table.rows)
    .set("out_stride", out.stride)
    .set_f32("scale", scale);
    if let Some((end, number)) = past {
        launch = launch.set("end", end).set("past", number);
    }
    launch
}
