//! Lookup of table rows by id, in every weight layout. Knows no vocabulary and no position.

use super::matmul::{View, Weight, groups, weight_flags};
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Where the number of each row comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Numbers<B> {
    /// A number for each row.
    Listed(B),
    /// The positions that the step's state counts.
    Places(B),
}

/// One launch: `out[row] = table[number of row] * scale` for the numbers in `first..first + table.rows`; with `past`, those
/// from its first number on mean its second one.
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
