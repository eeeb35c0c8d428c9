//! Rows of embedding tables by id, and the gradient of a table.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::matmul::{WeightPlanes, weight_flags};
use jerboa::kernels::view::View;

/// Returns `out[row] = table[ids[row]] * scale` for ids in `first..first + table.rows`. Rows of out
/// follow each other.
pub fn embed<B: Clone>(
    table: &WeightPlanes<B>,
    first: usize,
    rows: usize,
    scale: f32,
    ids: B,
    out: B,
) -> TrainLaunch<B> {
    let cols = table.cols as usize;
    let grid = [cols.div_ceil(256) as u32, rows as u32, 1];
    TrainLaunch::new(
        weight_flags(Variant::new(TrainKernel("embed")), table.layout),
        grid,
    )
    .weight(table.layout, cols, table.q.clone(), table.s.clone())
    .bind("ids", ids)
    .bind("out", out)
    .set("rows", rows)
    .set("cols", cols)
    .set("first", first)
    .set("count", table.rows as usize)
    .set_f32("scale", scale)
}

/// Returns `table[ids[row]] += scale * dy[row]` over rows, for a table of `[.., cols]`.
pub fn embed_table<B: Clone>(
    [rows, cols]: [usize; 2],
    scale: f32,
    ids: B,
    dy: &View<B>,
    table: &View<B>,
) -> TrainLaunch<B> {
    debug_assert_eq!((dy.offset, table.offset), (0, 0));
    let grid = [cols.div_ceil(64) as u32, rows as u32, 1];
    TrainLaunch::new(Variant::new(TrainKernel("embed_table")), grid)
        .bind("ids", ids)
        .bind("dy", dy.buffer.clone())
        .bind("out", table.buffer.clone())
        .set("rows", rows)
        .set("cols", cols)
        .set("dy_stride", dy.stride as usize)
        .set("out_stride", table.stride as usize)
        .set_f32("scale", scale)
}
