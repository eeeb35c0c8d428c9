//! RMSNorm and LayerNorm of rows or column groups, and 8-bit quantization of the result.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};

/// Parameters of a norm.
#[derive(Debug, Clone)]
pub struct NormParams<B> {
    /// Whether the mean is subtracted (LayerNorm).
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

/// Returns one launch over all rows, or over one if `single`: the optional norm, then rounding to
/// multiples of 1/127 of the row's largest magnitude.
pub fn quantized_norm<B: Clone>(
    label: &str,
    of: Option<&NormParams<B>>,
    x: &View<B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let plain = NormParams {
        layer: false,
        gain: None,
        bias: None,
        offset: 0.0,
        eps: 0.0,
    };
    let mut launch = norm(label, of.unwrap_or(&plain), x, out, cols, single);
    launch.variant = launch.variant.flag("ROUND").flag_if("PLAIN", of.is_none());
    launch
}

/// Residuals added to a norm, and the scale of the sum.
#[derive(Debug)]
pub struct ResidualSum<'a, B> {
    /// First residual.
    pub residual: &'a View<B>,
    /// Second residual.
    pub residual2: Option<&'a View<B>>,
    /// Multiplies the sum.
    pub scale: f32,
    /// Scalar buffer that also multiplies the sum.
    pub scale_buffer: Option<B>,
}

/// Returns one launch over all rows, or over one if `single`: the norm plus the residuals.
pub fn norm_residual<B: Clone>(
    label: &str,
    of: &NormParams<B>,
    x: &View<B>,
    sum: &ResidualSum<'_, B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let mut launch = norm(label, of, x, out, cols, single);
    launch.variant = launch
        .variant
        .flag("ADD")
        .flag_if("ADD2", sum.residual2.is_some())
        .flag_if("SCALE_BUFFER", sum.scale_buffer.is_some());
    launch
        .bind("rest", sum.residual.buffer.clone())
        .bind_opt("more", sum.residual2.map(|m| m.buffer.clone()))
        .bind_opt("by", sum.scale_buffer.clone())
        .set("rest_offset", sum.residual.offset)
        .set("rest_stride", sum.residual.stride)
        .set("more_offset", sum.residual2.map_or(0, |m| m.offset))
        .set("more_stride", sum.residual2.map_or(0, |m| m.stride))
        .set_f32("scale", sum.scale)
}

/// Threads that norm a row.
const THREADS: u32 = 256;
/// Threads that norm a short row on a software device.
const SOFTWARE_THREADS: u32 = 16;
/// Maximum columns per thread, which holds them in registers.
const MAX_PER_THREAD: u32 = 64;
/// Maximum columns of a norm.
pub const MAX_COLUMNS: u32 = THREADS * MAX_PER_THREAD;

/// Columns per thread of a workgroup.
fn columns_per_thread(cols: u32, threads: u32) -> u32 {
    let most = [1, 5, 10, 16, 28]
        .into_iter()
        .find(|each| cols <= each * threads);
    most.unwrap_or(MAX_PER_THREAD)
}

/// Takes fewer threads for rows or groups of few columns on a software device, which runs the
/// threads of a workgroup in turn.
pub fn for_device<B>(mut launch: Launch<B>, caps: &Caps, cols: u32) -> Launch<B> {
    if caps.software_kernels() && cols <= SOFTWARE_THREADS * 16 {
        let each = columns_per_thread(cols, SOFTWARE_THREADS);
        launch.variant = launch.variant.set("EACH", each).set("WG", SOFTWARE_THREADS);
    }
    launch
}

/// Returns one launch over all rows, or over one if `single`.
pub fn norm<B: Clone>(
    label: &str,
    norm: &NormParams<B>,
    x: &View<B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    norm_per_group(label, norm, 1, x, out, cols, single)
}

/// Makes a norm without residuals take the step's last row only, if `is_last`: both forms share a kernel.
pub fn of_last_row<B: Clone>(mut launch: Launch<B>, state: B, is_last: bool) -> Launch<B> {
    launch.variant = launch.variant.flag("LAST");
    launch.bind("state", state).set("last", is_last.into())
}

/// Returns the norm of each of `groups` column groups separately.
pub fn norm_per_group<B: Clone>(
    label: &str,
    norm: &NormParams<B>,
    groups: u32,
    x: &View<B>,
    out: &View<B>,
    cols: u32,
    single: bool,
) -> Launch<B> {
    let variant = Variant::new(Kernel::Norm)
        .set("EACH", columns_per_thread(cols / groups, THREADS))
        .flag_if("LAYER", norm.layer)
        .flag_if("GAIN", norm.gain.is_some())
        .flag_if("BIAS", norm.bias.is_some());
    let grid = if single {
        GridSpec::Fixed { units: groups }
    } else {
        GridSpec::Rows {
            units: groups,
            per: 1,
        }
    };
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
