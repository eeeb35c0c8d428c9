//! Prefill matmul on subgroup matrices (shaders/matmul/gemm_matrix.wgsl), for every weight layout.
//! Chooses the tiles that suit each type of subgroup matrix.

use super::experts::{ExpertTiles, Experts};
use super::matmul::{GemmTiling, Matmul, weight_flags};
use super::{GridSpec, Launch, REDUCE_ROWS, workgroups_per_tile};
use crate::device::registry::{Kernel, Variant};
use crate::device::{Caps, MatrixDialect, SubgroupMatrix};
use crate::format::layout::{Float, WeightLayout};

/// Tile sizes of a matmul and their division among subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixTiling {
    units: SubgroupMatrix,
    tile: MatrixTile,
    /// Workgroups that fill the device. With fewer tiles, several workgroups share one.
    pub target: u32,
    /// Maximum workgroups per tile.
    pub max_per_tile: u32,
}

/// Rows of x and of W per tile, subgroups along each, and elements of K per iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MatrixTile {
    bm: u32,
    bn: u32,
    down: u32,
    across: u32,
    width: u32,
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

    /// Whether the device has the threads and the workgroup memory.
    fn fits(self, caps: &Caps, units: SubgroupMatrix) -> bool {
        let rows = (self.bm + self.bn) / units.side * (units.side + 1);
        let bytes = rows * (self.width + 8) * if units.half { 2 } else { 4 };
        self.down * self.across * units.lanes <= caps.max_invocations
            && bytes <= caps.max_workgroup_storage
    }
}

impl MatrixTiling {
    /// Every tile's elements of K are a multiple of this.
    const WIDTH: u32 = 32;
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
        let fits = |tile: &MatrixTile| tile.bm == buckets.tile_rows && tile.fits(caps, units);
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
                .filter(|tile| tile.fits(caps, units) && divides(tile))
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

impl<B: Clone> Matmul<B> {
    /// Whether matmuls of up to `rows` rows run on subgroup matrices of f16.
    pub fn takes_f16_input(&self, caps: &Caps, rows: usize) -> bool {
        self.weight.cols.is_multiple_of(MatrixTiling::WIDTH)
            && MatrixTiling::of(caps, self, rows).is_some_and(|choice| choice.units.half)
    }

    /// Returns the fastest launches for up to `rows` rows of x, and the bytes that `parts` needs.
    pub fn prefill(&self, caps: &Caps, rows: usize, state: B, parts: B) -> (u64, [Launch<B>; 2]) {
        if let Some(choice) = MatrixTiling::of(caps, self, rows) {
            return (
                self.partials_bytes(rows as u32, choice),
                self.gemm_subgroup_matrix(state, parts, choice),
            );
        }
        let choice = GemmTiling::of(caps, self, rows);
        (
            self.parts_bytes(rows as u32, choice),
            self.gemm(state, parts, choice),
        )
    }

    /// Returns the launches for all rows of the step: the matmul, then the reduction and epilogue
    /// of its [`Self::matrix_bytes`] of partials.
    pub fn gemm_subgroup_matrix(&self, state: B, parts: B, choice: MatrixTiling) -> [Launch<B>; 2] {
        let MatrixTiling {
            tile,
            target,
            max_per_tile: most,
            ..
        } = choice;
        let x = self.tiles(tile.bn);
        let product = self.tiled_launch(
            choice,
            GridSpec::SplitK {
                x,
                per: tile.bm,
                target,
                max: most,
            },
        );
        let join = self.splitk_reduce(x, [tile.bm, tile.bn], [target, most], true);
        [product, join].map(|l| l.bind("parts", parts.clone()).bind("state", state.clone()))
    }

    /// Returns the matmul launch with its common bindings.
    fn tiled_launch(&self, choice: MatrixTiling, grid: GridSpec) -> Launch<B> {
        let MatrixTiling { units, tile, .. } = choice;
        let variant = weight_flags(Variant::new(Kernel::GemmMatrix), self.weight.layout)
            .flag(units.words.flag())
            .flag_if("F16", units.half)
            .set("BM", tile.bm)
            .set("BN", tile.bn)
            .set("DOWN", tile.down)
            .set("ACROSS", tile.across)
            .set("WIDTH", tile.width)
            .set("SIDE", units.side)
            .set("LANES", units.lanes)
            .flag_if("EXPERTS", self.experts.is_some())
            .flag_if("F16_IO", self.f16_input)
            .flag_if(
                "NIBBLES",
                units.half && dequantizes_in_f16(self.weight.layout),
            );
        self.bind_inputs(Launch::new(self.label.clone(), variant, grid))
            .set("n", self.n)
            .set("up_row", self.gated.unwrap_or(0))
            .set("x_stride", self.x.stride)
    }

    /// Returns the matmul over row-expert pairs sorted by expert, as [`Self::grouped`]; tile sums
    /// go to `parts`.
    pub fn gemm_experts_subgroup_matrix(
        &self,
        buckets: &ExpertTiles<B>,
        experts: &Experts<B>,
        own: bool,
        parts: B,
        choice: MatrixTiling,
    ) -> Launch<B> {
        let product = self.tiled_launch(choice, buckets.grid(self.tiles(choice.tile.bn)));
        experts
            .bind_subgroup_matrix(product, buckets, own)
            .bind("parts", parts)
    }

    /// Returns the epilogue after all experts have written their sums: one row of `out` per
    /// row-expert pair.
    pub fn gemm_experts_epilogue(
        &self,
        buckets: &ExpertTiles<B>,
        experts: &Experts<B>,
        parts: B,
        choice: MatrixTiling,
    ) -> Launch<B> {
        let MatrixTile { bm, bn, .. } = choice.tile;
        let grid = buckets.grid(self.n.div_ceil(256) * bm / REDUCE_ROWS);
        experts
            .bind_reduce(
                self.splitk_reduce_grid(self.tiles(bn), [bm, bn], grid),
                buckets,
            )
            .bind("parts", parts)
    }

    /// Elements per row of these partial sums.
    pub fn expert_partials_stride(&self, choice: MatrixTiling) -> u32 {
        self.tiles(choice.tile.bn) * choice.tile.bn
    }

    /// Bytes of these partial sums.
    pub fn expert_partials_bytes(&self, buckets: &ExpertTiles<B>, choice: MatrixTiling) -> u64 {
        u64::from(buckets.lines() + 1) * u64::from(self.expert_partials_stride(choice)) * 4
    }

    /// Bytes of the sums of up to `rows` rows of x, plus one row: browsers require one after a
    /// matrix's last row.
    pub fn partials_bytes(&self, rows: u32, choice: MatrixTiling) -> u64 {
        let MatrixTiling {
            tile,
            target,
            max_per_tile: most,
            ..
        } = choice;
        let x = self.tiles(tile.bn);

        (1..=rows.div_ceil(tile.bm))
            .map(|y: u32| {
                u64::from(y * tile.bm) * u64::from(workgroups_per_tile(x * y, target, most)) + 1
            })
            .max()
            .unwrap_or(0)
            * u64::from(x * tile.bn)
            * 4
    }
}
