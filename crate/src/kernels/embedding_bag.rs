//! Embedding bag: weighted sums of table rows. Also splices soft tokens into the input.

use super::matmul::{View, WeightPlanes, scale_pairs, weight_flags};
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Returns `out[row] = Σ weight * table[index]` over the `taps` (index bits, weight) pairs in a row
/// of `x`. Without `taps`, sums all table rows with the columns of `x` as weights.
pub fn embedding_bag<B: Clone>(
    label: &str,
    table: &WeightPlanes<B>,
    taps: Option<u32>,
    x: &View<B>,
    out: &View<B>,
) -> Launch<B> {
    let variant = weight_flags(Variant::new(Kernel::EmbeddingBag), table.layout)
        .flag_if("PAIRS", taps.is_some());
    Launch::new(
        label,
        variant,
        GridSpec::Tiled {
            x: table.cols.div_ceil(256),
            per: 1,
            z: 1,
        },
    )
    .bind("x", x.buffer.clone())
    .bind("w_q", table.q.clone())
    .bind_opt("w_s", table.s.clone())
    .bind("out", out.buffer.clone())
    .set("k", table.cols)
    .set("k_blocks", table.k_blocks())
    .set("groups", scale_pairs(table.layout, table.cols))
    .set("taps", taps.unwrap_or(table.rows))
    .set("x_offset", x.offset)
    .set("x_stride", x.stride)
    .set("out_stride", out.stride)
}

/// Returns `out[row] = soft[id - first]`, plus `a[row]` if given, where a row's id is `first` or
/// more. Elsewhere `out` is `a[row]`, or unchanged.
pub fn soft_tokens<B: Clone>(
    label: &str,
    a: Option<&View<B>>,
    soft: &View<B>,
    ids: B,
    first: u32,
    out: &View<B>,
    cols: u32,
) -> Launch<B> {
    let grid = GridSpec::Tiled {
        x: cols.div_ceil(256),
        per: 1,
        z: 1,
    };
    Launch::new(
        label,
        Variant::new(Kernel::SoftTokens).flag_if("ADD", a.is_some()),
        grid,
    )
    .bind_opt("a", a.map(|a| a.buffer.clone()))
    .bind("soft", soft.buffer.clone())
    .bind("ids", ids)
    .bind("out", out.buffer.clone())
    .set("cols", cols)
    .set("a_offset", a.map_or(0, |a| a.offset))
    .set("a_stride", a.map_or(0, |a| a.stride))
    .set("soft_offset", soft.offset)
    .set("soft_stride", soft.stride)
    .set("first", first)
    .set("out_stride", out.stride)
}
