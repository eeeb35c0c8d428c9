//! Tiles of matmuls on subgroup matrices (shaders/matmul/gemm_matrix.wgsl) that suit each type of
//! subgroup matrix.

use super::experts::ExpertTiles;
use super::matmul::{GemmTiling, Matmul};
use crate::device::registry::{Kernel, Variant};
use crate::device::{Caps, MatrixDialect, SubgroupMatrix};
use crate::format::layout::{Float, WeightLayout};

/// Tile sizes of a matmul and their division among subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixTiling {
    pub(super) units: SubgroupMatrix,
    pub(super) tile: MatrixTile,
    /// Workgroups that fill the device. With fewer tiles, several workgroups share one.
    pub target: u32,
    /// Maximum workgroups per tile.
    pub max_per_tile: u32,
}

/// Rows of x and of W per tile, subgroups along each, and elements of K per iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixTile {
    /// Rows of x.
    pub bm: u32,
    /// Rows of W.
    pub bn: u32,
    /// Subgroups along the rows of x.
    pub down: u32,
    /// Subgroups along the rows of W.
    pub across: u32,
    /// Elements of K per iteration.
    pub width: u32,
}

impl MatrixTile {
    /// Larger tiles read x and W fewer times. A subgroup holds at most 4 by 4 accumulators of 16 by
    /// 16, which fill its registers. Of each height, the first tile that K allows serves prompts.
    /// The last serves experts, whose tiles reread little of x. Short tiles are bound by reads of
    /// W: they take more of K per iteration, in whole sectors of a row.
    const ALL: [MatrixTile; 7] = [
        MatrixTile {
            bm: 256,
            bn: 128,
            down: 4,
            across: 2,
            width: 32,
        },
        MatrixTile {
            bm: 128,
            bn: 128,
            down: 2,
            across: 2,
            width: 32,
        },
        MatrixTile {
            bm: 128,
            bn: 64,
            down: 2,
            across: 2,
            width: 32,
        },
        MatrixTile {
            bm: 64,
            bn: 64,
            down: 2,
            across: 2,
            width: 32,
        },
        MatrixTile {
            bm: 32,
            bn: 128,
            down: 1,
            across: 4,
            width: 64,
        },
        MatrixTile {
            bm: 32,
            bn: 128,
            down: 1,
            across: 4,
            width: 32,
        },
        MatrixTile {
            bm: 64,
            bn: 128,
            down: 2,
            across: 2,
            width: 32,
        },
    ];

    /// Whether the device has the threads, and the workgroup memory next to `more` bytes.
    pub fn fits(self, caps: &Caps, units: SubgroupMatrix, more: u32) -> bool {
        let rows = (self.bm + self.bn) / units.side * (units.side + 1);
        let bytes = rows * (self.width + 8) * if units.half { 2 } else { 4 };
        self.down * self.across * units.lanes <= caps.max_invocations
            && bytes + more <= caps.max_workgroup_storage
    }

    /// Sets the constants and flags of shaders/common/matrix.wgsl, for weights of a layout.
    pub fn variant<K>(
        self,
        variant: Variant<K>,
        units: SubgroupMatrix,
        layout: WeightLayout,
    ) -> Variant<K> {
        variant
            .flag(units.words.flag())
            .flag_if("F16", units.half)
            .flag_if("NIBBLES", units.half && dequantizes_in_f16(layout))
            .set("BM", self.bm)
            .set("BN", self.bn)
            .set("DOWN", self.down)
            .set("ACROSS", self.across)
            .set("WIDTH", self.width)
            .set("SIDE", units.side)
            .set("LANES", units.lanes)
    }
}

/// Whether weights convert to f16 with f16 arithmetic without loss.
fn dequantizes_in_f16(layout: WeightLayout) -> bool {
    matches!(
        layout,
        WeightLayout::Affine {
            bits: 4,
            scale: Float::F16,
            ..
        }
    )
}

impl MatrixTiling {
    /// Every tile's elements of K are a multiple of this.
    pub(super) const WIDTH: u32 = 32;
    /// Rows of x of a short prompt or a chat turn. Natively, short tiles read W twice and still
    /// beat tall, half-empty ones. In browsers, which write each element of W separately, they do
    /// not.
    const SHORT_ROWS: usize = 64;
    /// Maximum bytes of partial sums. Above it, memory traffic costs more than subgroup matrices
    /// save, for every known layer.
    const MAX_PARTIAL_BYTES: u64 = 256 << 20;

    /// Rows of x from which the tallest tiles pay off: they read W least often, and the prompt's
    /// last tile wastes few rows.
    pub const TALL_TILE_ROWS: usize = 384;

    /// Whether the device runs enough threads at once for the tallest tiles.
    pub fn is_tall(caps: &Caps) -> bool {
        caps.target_workgroups() >= 1024
            && caps.subgroup_matrix().is_some_and(|units| units.side == 16)
    }

    /// Rows of x that get a separate step, because prefill tiles would be mostly empty.
    pub fn short_rows(caps: &Caps) -> usize {
        let natively = caps
            .subgroup_matrix()
            .is_some_and(|units| units.words == MatrixDialect::Coop);
        if natively {
            Self::SHORT_ROWS
        } else {
            GemmTiling::SHORT_ROWS
        }
    }

    /// Returns the subgroup matrix type, if usable. f32 weights keep their precision.
    fn units<B>(caps: &Caps, m: &Matmul<B>) -> Option<SubgroupMatrix> {
        caps.subgroup_matrix()
            .filter(|units| !units.half || m.weight.layout != WeightLayout::Dense(Float::F32))
    }

    /// Returns the best known tiling for selected experts, or None without usable subgroup
    /// matrices.
    pub fn of_experts<B: Clone>(
        caps: &Caps,
        m: &Matmul<B>,
        buckets: &ExpertTiles<B>,
    ) -> Option<Self> {
        let units = Self::units(caps, m)?;
        let fits = |tile: &MatrixTile| tile.bm == buckets.tile_rows && tile.fits(caps, units, 0);
        let tile = MatrixTile::ALL.into_iter().rev().find(fits)?;
        let choice = Self {
            units,
            tile,
            target: 1,
            max_per_tile: 1,
        };
        (m.expert_partials_bytes(buckets, choice)
            <= Self::MAX_PARTIAL_BYTES.min(caps.max_weight_buffer()))
        .then_some(choice)
    }

    /// Returns the best known tiling for up to `rows` rows of x, or None without usable subgroup
    /// matrices. For experts see [`Self::of_experts`].
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Option<Self> {
        let units = Self::units(caps, m).filter(|_| m.experts.is_none())?;
        // A short K is read quickly, and a mostly empty last tile costs as much as a full one.
        let low = m.weight.cols <= 1024 || 8 * rows.next_multiple_of(256) > 9 * rows;
        let own = match units.side {
            _ if rows <= Self::short_rows(caps) => 32,
            16 if rows > Self::TALL_TILE_ROWS && Self::is_tall(caps) && !low => 256,
            16 => caps.constant_or_measured(Kernel::GemmMatrix, "BM", 128),
            _ => caps.constant_or_measured(Kernel::GemmMatrix, "BM", 64),
        };
        let wanted = caps.constant_or_forced(Kernel::GemmMatrix, "BM", own);
        // If a tile does not divide K, another of the same height does.
        let divides = |tile: &MatrixTile| {
            tile.width == Self::WIDTH || m.weight.cols.is_multiple_of(tile.width)
        };
        let fitting = || {
            MatrixTile::ALL
                .into_iter()
                .filter(|tile| tile.fits(caps, units, 0) && divides(tile))
        };
        let tile = fitting()
            .find(|tile| tile.bm == wanted)
            .or_else(|| fitting().next())?;
        // Shorter shares of K cost more to reduce than they save.
        let most = (m.weight.cols / 128).clamp(1, 16);
        let choice = Self {
            units,
            tile,
            target: caps.target_workgroups() / (tile.down * tile.across),
            max_per_tile: most,
        };
        (m.partials_bytes(rows as u32, choice)
            <= Self::MAX_PARTIAL_BYTES.min(caps.max_weight_buffer()))
        .then_some(choice)
    }
}
