//! Extracts patch rows from pixels (shaders/patches/patches.wgsl). The CPU reference is
//! `Processor::rows`.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// Element order of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchSpec {
    /// Element strides of a pixel, a color and a frame.
    pub strides: [u32; 3],
    /// Patch side in pixels.
    pub patch: u32,
    /// Frames per patch.
    pub frames: u32,
}

/// Returns the launch. `pixels` has three bytes a pixel; `starts` is `[rows, frames]` pairs,
/// `levels` is `[3, 256]` f32.
pub fn patches<B: Clone>(
    cut: PatchSpec,
    [pixels, starts, levels]: [B; 3],
    out: View<B>,
) -> Launch<B> {
    let cols = 3 * cut.frames * cut.patch * cut.patch;
    let grid = GridSpec::Tiled {
        x: cols.div_ceil(256),
        per: 1,
        z: 1,
    };
    Launch::new("patches", Variant::new(Kernel::Patches), grid)
        .bind("pixels", pixels)
        .bind("starts", starts)
        .bind("levels", levels)
        .bind("out", out.buffer)
        .set("side", cut.patch)
        .set("frames", cut.frames)
        .set("cols", cols)
        .set("of_pixel", cut.strides[0])
        .set("of_color", cut.strides[1])
        .set("of_frame", cut.strides[2])
        .set("out_stride", out.stride)
}
