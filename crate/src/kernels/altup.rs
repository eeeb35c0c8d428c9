//! Gemma 3n row kernels: AltUp prediction and correction, magnitude matching, sparse gates.

use super::matmul::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};

/// `count` AltUp streams of `cols` columns, mixed by coefficients `[..][count]` times the row's
/// modes. Predicts, first adding `second` to all streams but the first. Or corrects by the layer's
/// output `second`.
#[derive(Debug, Clone)]
pub struct AltUpStreams<B> {
    /// Whether this is the correction.
    pub correct: bool,
    /// Streams.
    pub count: u32,
    /// Columns per stream.
    pub cols: u32,
    /// Coefficients.
    pub coefs: B,
}

impl<B: Clone> AltUpStreams<B> {
    /// Returns one launch over all rows, or over one if `single`.
    pub fn launch(
        &self,
        label: &str,
        [x, modes]: [&View<B>; 2],
        second: Option<&View<B>>,
        out: &View<B>,
        single: bool,
    ) -> Launch<B> {
        let variant = Variant::new(Kernel::AltupStreams)
            .flag_if("CORRECT", self.correct)
            .flag_if("SECOND", second.is_some());
        let groups = self.cols.div_ceil(64);
        let grid = if single {
            GridSpec::Exact([groups, 1, 1])
        } else {
            GridSpec::Tiled {
                x: groups,
                per: 1,
                z: 1,
            }
        };
        Launch::new(label, variant, grid)
            .bind("x", x.buffer.clone())
            .bind("modes", modes.buffer.clone())
            .bind("coefs", self.coefs.clone())
            .bind_opt("y", second.map(|y| y.buffer.clone()))
            .bind("out", out.buffer.clone())
            .set("cols", self.cols)
            .set("count", self.count)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("modes_offset", modes.offset)
            .set("modes_stride", modes.stride)
            .set("y_offset", second.map_or(0, |y| y.offset))
            .set("y_stride", second.map_or(0, |y| y.stride))
            .set("out_stride", out.stride)
    }
}

/// Row operations that depend on statistics of the whole row.
#[derive(Debug, Clone)]
pub enum RowScale<B> {
    /// Scales `runs` column groups to the magnitude of the other row, then adds a row.
    MatchMagnitude {
        /// Column groups.
        runs: u32,
        /// Row to add.
        added: Option<View<B>>,
    },
    /// `act(relu(x - (mean + factor * deviation))) * y`.
    Sparse {
        /// Activation code.
        act: u32,
        /// Standard deviations above the mean.
        factor: f32,
    },
}

impl<B: Clone> RowScale<B> {
    /// Returns one launch over all rows, or over one if `single`; `cols` are those of a group.
    pub fn launch(
        &self,
        label: &str,
        [x, y]: [&View<B>; 2],
        out: &View<B>,
        cols: u32,
        single: bool,
    ) -> Launch<B> {
        let (runs, added, act, factor) = match self {
            Self::MatchMagnitude { runs, added } => (*runs, added.as_ref(), 0, 0.0),
            Self::Sparse { act, factor } => (1, None, *act, *factor),
        };
        let variant = Variant::new(Kernel::AltupRowScale)
            .flag_if("MATCH", matches!(self, Self::MatchMagnitude { .. }))
            .flag_if("ADDED", added.is_some());
        let grid = if single {
            GridSpec::Fixed { units: runs }
        } else {
            GridSpec::Rows {
                units: runs,
                per: 1,
            }
        };
        Launch::new(label, variant, grid)
            .bind("x", x.buffer.clone())
            .bind("y", y.buffer.clone())
            .bind_opt("z", added.map(|z| z.buffer.clone()))
            .bind("out", out.buffer.clone())
            .set("cols", cols)
            .set("runs", runs)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride)
            .set("y_offset", y.offset)
            .set("y_stride", y.stride)
            .set("z_offset", added.map_or(0, |z| z.offset))
            .set("z_stride", added.map_or(0, |z| z.stride))
            .set("out_stride", out.stride)
            .set("act", act)
            .set_f32("factor", factor)
    }
}
