//! Lookup of table rows by id, in every weight layout. Knows no vocabulary and no position.

use super::matmul::{View, Weight, groups, weight_flags};
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// One launch: `out[row] = table[ids[row]] * scale` for the ids in `first_id..first_id + table.rows`.
pub fn embed<B: Clone>(label: &str, table: &Weight<B>, first_id: u32, ids: B, out: &View<B>, scale: f32) -> Launch<B> {
    let variant = weight_flags(Variant::new(Kernel::Embed), table.layout);
    Launch::new(label, variant, GridSpec::Tiled { x: table.cols.div_ceil(256), per: 1, z: 1 })
        .bind("ids", ids)
        .bind("w_q", table.q.clone())
        .bind_opt("w_s", table.s.clone())
        .bind("out", out.buffer.clone())
        .set("k", table.cols)
        .set("k_blocks", table.layout.padded_cols(table.cols as usize) as u32 / 32)
        .set("groups", groups(table.layout, table.cols))
        .set("row0", first_id)
        .set("n", table.rows)
        .set("out_stride", out.stride)
        .set_f32("scale", scale)
}
