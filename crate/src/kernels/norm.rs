//! RMSNorm and LayerNorm of rows or parts of them, and their rounding to 8 bits.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// What a norm multiplies and adds.
#[derive(Debug, Clone)]
pub struct Norm<B> {
    /// Subtract the mean.
    pub layer: bool,
    /// `[cols]`.
    pub gain: Option<B>,
    /// `[cols]`.
    pub bias: Option<B>,
    /// Added to the gain.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// One launch over all rows (`single`: over one): the norm, where there is one, then rounding to whole steps of a 127th of
/// the row's largest magnitude.
pub fn rounded<B: Clone>(
    label: &str,
    of: Option<&Norm<B>>,
    x: &View<B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let plain = Norm { layer: false, gain: None, bias: None, offset: 0.0, eps: 0.0 };
    let mut launch = norm(label, of.unwrap_or(&plain), x, out, cols, single);
    launch.variant = launch.variant.flag("ROUND").flag_if("PLAIN", of.is_none());
    launch
}

/// What a norm is added to, and what the sum is multiplied by.
#[derive(Debug)]
pub struct Sum<'a, B> {
    /// Rows.
    pub rest: &'a View<B>,
    /// More of them.
    pub more: Option<&'a View<B>>,
    /// Multiplies the sum.
    pub scale: f32,
    /// One number that does so too.
    pub by: Option<B>,
}

/// One launch over all rows (`single`: over one): the norm, added to other rows.
pub fn added<B: Clone>(
    label: &str,
    of: &Norm<B>,
    x: &View<B>,
    sum: &Sum<'_, B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let mut launch = norm(label, of, x, out, cols, single);
    launch.variant = launch.variant.flag("ADD").flag_if("MORE", sum.more.is_some()).flag_if("BY", sum.by.is_some());
    launch
        .bind("rest", sum.rest.buffer.clone())
        .bind_opt("more", sum.more.map(|m| m.buffer.clone()))
        .bind_opt("by", sum.by.clone())
        .set("rest_offset", sum.rest.offset)
        .set("rest_stride", sum.rest.stride)
        .set("more_offset", sum.more.map_or(0, |m| m.offset))
        .set("more_stride", sum.more.map_or(0, |m| m.stride))
        .set_f32("scale", sum.scale)
}

/// The most columns of a norm: the threads keep a row in their registers.
pub const MOST_COLUMNS: u32 = 256 * 64;

/// Columns that each of a workgroup's 256 threads keeps.
fn each(cols: u32) -> u32 {
    let most = [1, 5, 10, 16, 28].into_iter().find(|each| cols <= each * 256);
    most.unwrap_or(MOST_COLUMNS / 256)
}

/// One launch over all rows (`single`: over one).
pub fn norm<B: Clone>(label: &str, norm: &Norm<B>, x: &View<B>, out: &View<B>, cols: u32, single: bool) -> Launch<B> {
    grouped(label, norm, 1, x, out, cols, single)
}

/// The same of each of so many groups of columns, which are normed apart.
pub fn grouped<B: Clone>(
    label: &str,
    norm: &Norm<B>,
    groups: u32,
    x: &View<B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let variant = Variant::new(Kernel::Norm)
        .set("EACH", each(cols / groups))
        .flag_if("LAYER", norm.layer)
        .flag_if("GAIN", norm.gain.is_some())
        .flag_if("BIAS", norm.bias.is_some());
    let grid = if single { GridSpec::Fixed { units: groups } } else { GridSpec::Rows { units: groups, per: 1 } };
    Launch::new(label, variant, grid)
        .bind("x", x.buffer.clone())
        .bind("out", out.buffer.clone())
        .bind_opt("gain", norm.gain.clone())
        .bind_opt("bias", norm.bias.clone())
        .set("cols", cols / groups)
        .set("groups", groups)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
        .set_f32("eps", norm.eps)
        .set_f32("offset", norm.offset)
}
