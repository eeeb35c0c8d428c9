//! Elementwise unary and binary operations, last-row copy and column gather.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Elementwise operation; activations are codes of shaders/common/activation.wgsl.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elementwise {
    /// a + b
    Add,
    /// a * b
    Mul,
    /// act(a) * b
    Gated(u32),
    /// act(a) * b, with a of one column
    GatedByOne(u32),
    /// act(a)
    Unary(u32),
    /// a * factor
    Scale(f32),
    /// asinh(a * exp(b)) with a scalar b
    Asinh,
    /// a * b[0]
    MulScalar,
    /// a clamped to b[0]..b[1]
    Clip,
}

/// Returns one launch over `[rows, cols]`, or over one row if `single`.
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
        Elementwise::Gated(act) | Elementwise::GatedByOne(act) => (2, act, 0.0),
        Elementwise::Unary(act) => (3, act, 0.0),
        Elementwise::Scale(factor) => (4, 0, factor),
        Elementwise::Asinh => (5, 0, 0.0),
        Elementwise::MulScalar => (6, 0, 0.0),
        Elementwise::Clip => (7, 0, 0.0),
    };
    let second = inputs.get(1);
    let variant = Variant::new(Kernel::Elementwise)
        .flag_if("BINARY", second.is_some())
        .set("OP", code);
    let x = cols.div_ceil(256);
    let grid = if single {
        GridSpec::Exact([x, 1, 1])
    } else {
        GridSpec::LayeredRows { x }
    };
    Launch::new(label, variant, grid)
        .bind("a", inputs[0].buffer.clone())
        .bind_opt("b", second.map(|b| b.buffer.clone()))
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("a_offset", inputs[0].offset)
        .set("a_stride", inputs[0].stride)
        .set(
            "a_step",
            u32::from(!matches!(op, Elementwise::GatedByOne(_))),
        )
        .set("b_offset", second.map_or(0, |b| b.offset))
        .set("b_stride", second.map_or(0, |b| b.stride))
        .set("out_offset", out.offset)
        .set("out_stride", out.stride)
        .set("act", act)
        .set_f32("scale", scale)
}

/// Input columns that become a part of each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadColumns {
    /// Columns.
    pub cols: u32,
    /// Stride to the next head's columns; 0 if all heads share them.
    pub step: u32,
}

/// Builds heads of `head_dim` columns from the columns of one or two inputs, zero-padded. Views
/// start at the first column to read.
pub fn concat_heads<B: Clone>(
    label: &str,
    [heads, head_dim]: [u32; 2],
    parts: &[(View<B>, HeadColumns)],
    out: &View<B>,
    single: bool,
) -> Launch<B> {
    let first = &parts[0];
    let second = parts.get(1);

    let variant = Variant::new(Kernel::ConcatHeads).flag_if("BINARY", second.is_some());
    let x = (heads * head_dim).div_ceil(64);
    let grid = if single {
        GridSpec::Exact([x, 1, 1])
    } else {
        GridSpec::Tiled { x, per: 1, z: 1 }
    };
    Launch::new(label, variant, grid)
        .bind("a", first.0.buffer.clone())
        .bind_opt("b", second.map(|b| b.0.buffer.clone()))
        .bind("out", out.buffer.clone())
        .set("cols", heads * head_dim)
        .set("head_dim", head_dim)
        .set("a_cols", first.1.cols)
        .set("a_step", first.1.step)
        .set("a_offset", first.0.offset)
        .set("a_stride", first.0.stride)
        .set("b_cols", second.map_or(0, |b| b.1.cols))
        .set("b_step", second.map_or(0, |b| b.1.step))
        .set("b_offset", second.map_or(0, |b| b.0.offset))
        .set("b_stride", second.map_or(0, |b| b.0.stride))
        .set("out_stride", out.stride)
}

/// Reorders columns: `out[row, c] = a[row, order[c]]`.
pub fn gather<B: Clone>(
    label: &str,
    a: &View<B>,
    order: B,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let x = cols.div_ceil(64);
    let grid = if single {
        GridSpec::Exact([x, 1, 1])
    } else {
        GridSpec::Tiled { x, per: 1, z: 1 }
    };
    Launch::new(label, Variant::new(Kernel::Gather), grid)
        .bind("a", a.buffer.clone())
        .bind("order", order)
        .bind("out", out.buffer.clone())
        .set("cols", cols)
        .set("a_offset", a.offset)
        .set("a_stride", a.stride)
        .set("out_stride", out.stride)
}

/// Rows of a [`copy_rows`].
#[derive(Debug, Clone)]
pub struct CopiedRows<B> {
    /// First row, column and stride.
    pub view: View<B>,
    /// Whether the view begins at position 0 of the sequence rather than at the step's first row.
    pub by_position: bool,
}

/// Copies the step's rows. Columns of `to` start at 0.
pub fn copy_rows<B: Clone>(
    label: &str,
    from: CopiedRows<B>,
    to: CopiedRows<B>,
    state: B,
    cols: u32,
) -> Launch<B> {
    let x = cols.div_ceil(64);
    let grid = GridSpec::Tiled { x, per: 1, z: 1 };
    Launch::new(label, Variant::new(Kernel::CopyRows), grid)
        .bind("rows", from.view.buffer)
        .bind("out", to.view.buffer)
        .bind("state", state)
        .set("cols", cols)
        .set("from_offset", from.view.offset)
        .set("from_stride", from.view.stride)
        .set("from_position", from.by_position.into())
        .set("to_stride", to.view.stride)
        .set("to_position", to.by_position.into())
}

/// Copies the row of the step's last token.
pub fn last_row<B: Clone>(label: &str, a: &View<B>, out: B, state: B, cols: u32) -> Launch<B> {
    Launch::new(
        label,
        Variant::new(Kernel::LastRow),
        GridSpec::Exact([cols.div_ceil(64), 1, 1]),
    )
    .bind("a", a.buffer.clone())
    .bind("out", out)
    .bind("state", state)
    .set("cols", cols)
    .set("a_offset", a.offset)
    .set("a_stride", a.stride)
}
