//! One output element from one or two input elements; the copy of the last row; columns in another order.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// What is done to each element; the activations are numbers of shaders/common/activation.wgsl.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elementwise {
    /// a + b
    Add,
    /// a * b
    Mul,
    /// act(a) * b
    Gated(u32),
    /// act(a)
    Unary(u32),
    /// a * factor
    Scale(f32),
    /// asinh(a * exp(b)) with one b for all
    Asinh,
    /// a * b[0]
    Times,
}

/// One launch over `[rows, cols]` (`single`: over one row).
pub fn elementwise<B: Clone>(
    label: &str,
    op: Elementwise,
    inputs: &[View<B>],
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let (code, act, scale) = match op {
        Elementwise::Add => (0, 0, 0.0),
        Elementwise::Mul => (1, 0, 0.0),
        Elementwise::Gated(act) => (2, act, 0.0),
        Elementwise::Unary(act) => (3, act, 0.0),
        Elementwise::Scale(factor) => (4, 0, factor),
        Elementwise::Asinh => (5, 0, 0.0),
        Elementwise::Times => (6, 0, 0.0),
    };
    let second = inputs.get(1);
    let variant = Variant::new(Kernel::Elementwise).flag_if("BINARY", second.is_some()).set("OP", code);
    let x = cols.div_ceil(256);
    let grid = if single { GridSpec::Exact([x, 1, 1]) } else { GridSpec::Tiled { x, per: 1, z: 1 } };
    Launch::new(label, variant, grid)
        .bind("a", inputs[0].buffer.clone())
        .bind_opt("b", second.map(|b| b.buffer.clone()))
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("a_offset", inputs[0].offset)
        .set("a_stride", inputs[0].stride)
        .set("b_offset", second.map_or(0, |b| b.offset))
        .set("b_stride", second.map_or(0, |b| b.stride))
        .set("out_offset", out.offset)
        .set("out_stride", out.stride)
        .set("act", act)
        .set_f32("scale", scale)
}

/// Columns in another order: `out[row, c] = a[row, order[c]]`.
pub fn gather<B: Clone>(label: &str, a: &View<B>, order: B, out: &View<B>, cols: u32, single: bool) -> Launch<B> {
    let x = cols.div_ceil(64);
    let grid = if single { GridSpec::Exact([x, 1, 1]) } else { GridSpec::Tiled { x, per: 1, z: 1 } };
    Launch::new(label, Variant::new(Kernel::Gather), grid)
        .bind("a", a.buffer.clone())
        .bind("order", order)
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("a_offset", a.offset)
        .set("a_stride", a.stride)
        .set("out_stride", out.stride)
}

/// Copies the row of the step's last token.
pub fn last_row<B: Clone>(label: &str, a: &View<B>, out: B, state: B, cols: u32) -> Launch<B> {
    Launch::new(label, Variant::new(Kernel::LastRow), GridSpec::Exact([cols.div_ceil(64), 1, 1]))
        .bind("a", a.buffer.clone())
        .bind("out", out)
        .bind("state", state)
        .set("cols", cols)
        .set("a_offset", a.offset)
        .set("a_stride", a.stride)
}
