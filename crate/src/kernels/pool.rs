//! Pooling of packed sequences to one row each.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Returns the launch. `mode` is a code of shaders/pool/pool.wgsl; `spans` holds each sequence's
/// first and end row.
pub fn pool<B: Clone>(
    label: &str,
    mode: u32,
    x: &View<B>,
    spans: B,
    out: &View<B>,
    cols: u32,
) -> Launch<B> {
    let grid = GridSpec::Tiled {
        x: cols.div_ceil(64),
        per: 1,
        z: 1,
    };
    Launch::new(label, Variant::new(Kernel::Pool).set("MODE", mode), grid)
        .bind("x", x.buffer.clone())
        .bind("spans", spans)
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
}
