//! RMSNorm and LayerNorm of rows.

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

/// One launch over all rows (`single`: over one).
pub fn norm<B: Clone>(label: &str, norm: &Norm<B>, x: &View<B>, out: &View<B>, cols: u32, single: bool) -> Launch<B> {
    let variant = Variant::new(Kernel::Norm)
        .flag_if("LAYER", norm.layer)
        .flag_if("GAIN", norm.gain.is_some())
        .flag_if("BIAS", norm.bias.is_some());
    let grid = if single { GridSpec::Fixed { units: 1 } } else { GridSpec::Rows { units: 1, per: 1 } };
    Launch::new(label, variant, grid)
        .bind("x", x.buffer.clone())
        .bind("out", out.buffer.clone())
        .bind_opt("gain", norm.gain.clone())
        .bind_opt("bias", norm.bias.clone())
        .set("cols", cols)
        .set("x_offset", x.offset)
        .set("x_stride", x.stride)
        .set("out_stride", out.stride)
        .set_f32("eps", norm.eps)
        .set_f32("offset", norm.offset)
}
