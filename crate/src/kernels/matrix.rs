//! Prefill matmul on subgroup matrices (shaders/matmul/gemm_matrix.wgsl), for every weight layout. Chooses the tiles
//! that suit each type of subgroup matrix.

use super::experts::{Buckets, Experts};
use super::matmul::{GemmChoice, Matmul, weight_flags};
use super::{GridSpec, JOIN_ROWS, Launch, splits};
use crate::device::registry::{Kernel, Variant};
use crate::device::{Caps, MatrixUnits, MatrixWords};
use crate::format::layout::{Float, Layout};

/// Tile sizes of a matmul and their division among subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixChoice {
    units: MatrixUnits,
    tile: Tile,
    /// Workgroups that fill the device. With fewer tiles, several workgroups share one.
    pub target: u32,
    /// Maximum workgroups per tile.
    pub most: u32,
}

/// Rows of x and of W per tile, subgroups along each, and elements of K per iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    bm: u32,
    bn: u32,
    down: u32,
    across: u32,
    width: u32,
}

impl Tile {
    /// Larger tiles read x and W fewer times. A subgroup holds at most 4 by 4 accumulators of 16 by 16, which fill its
    /// registers.
    /// Of each height, the first tile that K allows serves prompts. The last serves experts, whose tiles reread little
    /// of x. Short tiles are bound by reads of W: they take more of K per iteration, in whole sectors of a row.
    const ALL: [Tile; 7] = [
        Tile { bm: 256, bn: 128, down: 4, across: 2, width: 32 },
        Tile { bm: 128, bn: 128, down: 2, across: 2, width: 32 },
        Tile { bm: 128, bn: 64, down: 2, across: 2, width: 32 },
        Tile { bm: 64, bn: 64, down: 2, across: 2, width: 32 },
        Tile { bm: 32, bn: 128, down: 1, across: 4, width: 64 },
        Tile { bm: 32, bn: 128, down: 1, across: 4, width: 32 },
        Tile { bm: 64, bn: 128, down: 2, across: 2, width: 32 },
    ];

    /// Whether the device has the threads and the workgroup memory.
    fn fits(self, caps: &Caps, units: MatrixUnits) -> bool {
        let rows = (self.bm + self.bn) / units.side * (units.side + 1);
        let bytes = rows * (self.width + 8) * if units.half { 2 } else { 4 };
        self.down * self.across * units.lanes <= caps.max_invocations && bytes <= caps.max_workgroup_storage
    }
}

impl MatrixChoice {
    /// Every tile's elements of K are a multiple of this.
    const WIDTH: u32 = 32;
    /// Rows of x of a short prompt or a chat turn. Natively, short tiles read W twice and still beat tall, half-empty
    /// ones. In browsers, which write each element of W separately, they do not.
    const SHORT: usize = 64;
    /// Maximum bytes of partial sums. Above it, memory traffic costs more than subgroup matrices save, for every known
    /// layer.
    const MOST_BYTES: u64 = 256 << 20;

    /// Rows of x from which the tallest tiles pay off: they read W least often, and the prompt's last tile wastes few
    /// rows.
    pub const MIDDLE: usize = 384;

    /// Whether the device runs enough threads at once for the tallest tiles.
    pub fn is_tall(caps: &Caps) -> bool {
        caps.full_load() >= 1024 && caps.matrix_units().is_some_and(|units| units.side == 16)
    }

    /// Rows of x that get a separate step, because prefill tiles would be mostly empty.
    pub fn short(caps: &Caps) -> usize {
        let natively = caps.matrix_units().is_some_and(|units| units.words == MatrixWords::Coop);
        if natively { Self::SHORT } else { GemmChoice::SHORT }
    }

    /// Returns the subgroup matrix type, if usable. f32 weights keep their precision.
    fn units<B>(caps: &Caps, m: &Matmul<B>) -> Option<MatrixUnits> {
        caps.matrix_units().filter(|units| !units.half || m.weight.layout != Layout::Dense(Float::F32))
    }

    /// Returns the best known tiling for selected experts, or None without usable subgroup matrices.
    pub fn of_experts<B: Clone>(caps: &Caps, m: &Matmul<B>, buckets: &Buckets<B>) -> Option<Self> {
        let units = Self::units(caps, m)?;
        let fits = |tile: &Tile| tile.bm == buckets.tile_rows && tile.fits(caps, units);
        let tile = Tile::ALL.into_iter().rev().find(fits)?;
        let choice = Self { units, tile, target: 1, most: 1 };
        (m.grouped_bytes(buckets, choice) <= Self::MOST_BYTES.min(caps.max_weight_buffer())).then_some(choice)
    }

    /// Returns the best known tiling for up to `rows` rows of x, or None without usable subgroup matrices. For experts
    /// see [`Self::of_experts`].
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Option<Self> {
        let units = Self::units(caps, m).filter(|_| m.experts.is_none())?;
        // A short K is read quickly, and a mostly empty last tile costs as much as a full one.
        let low = m.weight.cols <= 1024 || 8 * rows.next_multiple_of(256) > 9 * rows;
        let own = match units.side {
            _ if rows <= Self::short(caps) => 32,
            16 if rows > Self::MIDDLE && Self::is_tall(caps) && !low => 256,
            16 => caps.measured(Kernel::GemmMatrix, "BM", 128),
            _ => caps.measured(Kernel::GemmMatrix, "BM", 64),
        };
        let wanted = caps.choose(Kernel::GemmMatrix, "BM", own);
        // If a tile does not divide K, another of the same height does.
        let divides = |tile: &Tile| tile.width == Self::WIDTH || m.weight.cols.is_multiple_of(tile.width);
        let fitting = || Tile::ALL.into_iter().filter(|tile| tile.fits(caps, units) && divides(tile));
        let tile = fitting().find(|tile| tile.bm == wanted).or_else(|| fitting().next())?;
        // Shorter shares of K cost more to reduce than they save.
        let most = (m.weight.cols / 128).clamp(1, 16);
        let choice = Self { units, tile, target: caps.full_load() / (tile.down * tile.across), most };
        (m.matrix_bytes(rows as u32, choice) <= Self::MOST_BYTES.min(caps.max_weight_buffer())).then_some(choice)
    }
}

/// Whether weights convert to f16 with f16 arithmetic without loss.
fn nibbles(layout: Layout) -> bool {
    matches!(layout, Layout::Affine { bits: 4, scale: Float::F16, .. })
}

impl<B: Clone> Matmul<B> {
    /// Whether matmuls of up to `rows` rows run on subgroup matrices of f16.
    pub fn takes_halves(&self, caps: &Caps, rows: usize) -> bool {
        self.weight.cols.is_multiple_of(MatrixChoice::WIDTH)
            && MatrixChoice::of(caps, self, rows).is_some_and(|choice| choice.units.half)
    }

    /// Returns the fastest launches for up to `rows` rows of x, and the bytes that `parts` needs.
    pub fn many(&self, caps: &Caps, rows: usize, state: B, parts: B) -> (u64, [Launch<B>; 2]) {
        if let Some(choice) = MatrixChoice::of(caps, self, rows) {
            return (self.matrix_bytes(rows as u32, choice), self.on_matrix_units(state, parts, choice));
        }
        let choice = GemmChoice::of(caps, self, rows);
        (self.parts_bytes(rows as u32, choice), self.gemm(state, parts, choice))
    }

    /// Returns the launches for all rows of the step: the matmul, then the reduction and epilogue of its
    /// [`Self::matrix_bytes`] of partials.
    pub fn on_matrix_units(&self, state: B, parts: B, choice: MatrixChoice) -> [Launch<B>; 2] {
        let MatrixChoice { tile, target, most, .. } = choice;
        let x = self.tiles(tile.bn);
        let product = self.of_tiles(choice, GridSpec::Split { x, per: tile.bm, target, most });
        let join = self.join(x, [tile.bm, tile.bn], [target, most], true);
        [product, join].map(|l| l.bind("parts", parts.clone()).bind("state", state.clone()))
    }

    /// Returns the matmul launch with its common bindings.
    fn of_tiles(&self, choice: MatrixChoice, grid: GridSpec) -> Launch<B> {
        let MatrixChoice { units, tile, .. } = choice;
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
            .flag_if("HALVES", self.halves)
            .flag_if("NIBBLES", units.half && nibbles(self.weight.layout));
        self.sources(Launch::new(self.label.clone(), variant, grid))
            .set("n", self.n)
            .set("up_row", self.gated.unwrap_or(0))
            .set("x_stride", self.x.stride)
    }

    /// Returns the matmul over row-expert pairs sorted by expert, as [`Self::grouped`]; tile sums go to `parts`.
    pub fn grouped_on_units(
        &self,
        buckets: &Buckets<B>,
        experts: &Experts<B>,
        own: bool,
        parts: B,
        choice: MatrixChoice,
    ) -> Launch<B> {
        let product = self.of_tiles(choice, buckets.grid(self.tiles(choice.tile.bn)));
        experts.on_units(product, buckets, own).bind("parts", parts)
    }

    /// Returns the epilogue after all experts have written their sums: one row of `out` per row-expert pair.
    pub fn grouped_join(
        &self,
        buckets: &Buckets<B>,
        experts: &Experts<B>,
        parts: B,
        choice: MatrixChoice,
    ) -> Launch<B> {
        let Tile { bm, bn, .. } = choice.tile;
        let grid = buckets.grid(self.n.div_ceil(256) * bm / JOIN_ROWS);
        experts.joined(self.joining(self.tiles(bn), [bm, bn], grid), buckets).bind("parts", parts)
    }

    /// Elements per row of these partial sums.
    pub fn grouped_stride(&self, choice: MatrixChoice) -> u32 {
        self.tiles(choice.tile.bn) * choice.tile.bn
    }

    /// Bytes of these partial sums.
    pub fn grouped_bytes(&self, buckets: &Buckets<B>, choice: MatrixChoice) -> u64 {
        u64::from(buckets.lines() + 1) * u64::from(self.grouped_stride(choice)) * 4
    }

    /// Bytes of the sums of up to `rows` rows of x, plus one row: browsers require one after a matrix's last row.
    pub fn matrix_bytes(&self, rows: u32, choice: MatrixChoice) -> u64 {
        let MatrixChoice { tile, target, most, .. } = choice;
        let x = self.tiles(tile.bn);
        let lines = |y: u32| u64::from(y * tile.bm) * u64::from(splits(x * y, target, most)) + 1;
        (1..=rows.div_ceil(tile.bm)).map(lines).max().unwrap_or(0) * u64::from(x * tile.bn) * 4
    }
}
