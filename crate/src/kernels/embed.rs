//! Lookup of table rows by id, for every weight layout.

use super::matmul::{View, Weight, groups, weight_flags};
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Source of each row's table index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Numbers<B> {
    /// One index per row.
    Listed(B),
    /// The positions counted by the step's state.
    Places(B),
}

/// Returns `out[row] = table[index] * scale` for indices in `first..first + table.rows`. With `past = (end, id)`,
/// indices from `end` on are read as `id`.
pub fn embed<B: Clone>(
    label: &str,
    table: &Weight<B>,
    first: u32,
    numbers: Numbers<B>,
    past: Option<(u32, u32)>,
    out: &View<B>,
    scale: f32,
) -> Launch<B> {
    let variant = weight_flags(Variant::new(Kernel::Embed), table.layout);
    let places = matches!(numbers, Numbers::Places(_));
    let (name, Numbers::Listed(buffer) | Numbers::Places(buffer)) = (if places { "state" } else { "ids" }, numbers);
    let grid = GridSpec::Tiled { x: table.cols.div_ceil(256), per: 1, z: 1 };
    let mut launch = Launch::new(label, variant.flag_if("PLACES", places).flag_if("PAST", past.is_some()), grid)
        .bind(name, buffer)
        .bind("w_q", table.q.clone())
        .bind_opt("w_s", table.s.clone())
        .bind("out", out.buffer.clone())
        .set("k", table.cols)
        .set("k_blocks", table.layout.padded_cols(table.cols as usize) as u32 / 32)
        .set("groups", groups(table.layout, table.cols))
        .set("row0", first)
        .set("n", table.rows)
        .set("out_stride", out.stride)
        .set_f32("scale", scale);
    if let Some((end, number)) = past {
        launch = launch.set("end", end).set("past", number);
    }
    launch
}
