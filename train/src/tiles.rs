//! How a device's kernels are cut into tiles: which source computes a launch, and in how many
//! workgroups.

use crate::kernel::{TrainKernel, TrainLaunch, TrainVariant};
use crate::kernels::attention::{KEYS, OUTPUT, QUERY};
use crate::kernels::matmul::{MATMUL, MATMUL_MATRIX, ROW_SCALES};
use jerboa::device::registry::Kernel;
use jerboa::device::{Caps, Grid, SubgroupMatrix};
use jerboa::kernels::subgroup_matrix::MatrixTile;

/// Constant of matmul.wgsl: outputs of a thread per axis, of 16 threads per axis.
const SIDE: &str = "SIDE";
/// Rows or columns up to which an output is thin: a side of 1.
const THIN: u32 = 32;
/// Workgroups with which tiles of a side of 8 are faster than those of 4.
const ENOUGH_WORKGROUPS: u32 = 64;
/// Bytes of workgroup memory of a side of 8.
const WIDE_STORAGE: u32 = 2 * 16 * 33 * 16;
/// Rows and columns of a tile of matmul_rows.wgsl.
const ROWS_TILE: [u32; 2] = [8, 64];
/// Own rows of a workgroup of attention_tiles.wgsl.
const ATTENTION_ROWS: u32 = 64;

/// Rows, columns and terms from which a matmul is worth subgroup matrices.
const MIN_MATRIX_SIDE: u32 = 64;
/// Workgroups of 64 threads that fill a device, for each tile that occupies it.
const WORKGROUPS_PER_TILE: u32 = 9;

/// A tile of matmul_matrix.wgsl.
const fn matrix_tile([bm, bn]: [u32; 2], [down, across]: [u32; 2]) -> MatrixTile {
    MatrixTile {
        bm,
        bn,
        down,
        across,
        width: 32,
    }
}

/// Larger tiles read both factors fewer times, wide ones the left factor, which has more bytes. Small
/// ones occupy a device with outputs of few rows.
const MATRIX_TILES: [MatrixTile; 5] = [
    matrix_tile([128, 256], [2, 4]),
    matrix_tile([128, 128], [2, 2]),
    matrix_tile([128, 64], [2, 2]),
    matrix_tile([64, 64], [2, 2]),
    matrix_tile([32, 64], [1, 2]),
];

/// The tiles that a device has the memory and the threads for.
fn fitting_tiles(caps: &Caps, units: SubgroupMatrix) -> Vec<MatrixTile> {
    let most = caps.constant_or_forced(Kernel::GemmMatrix, "BM", 128);
    let fits = |tile: &MatrixTile| {
        let sums = tile.down * tile.across * units.side * tile.width * 4;
        tile.bm <= most && tile.fits(caps, units, sums)
    };
    MATRIX_TILES.into_iter().filter(fits).collect()
}

/// The source of a launch on a device, and its workgroups.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tiling {
    pub variant: TrainVariant,
    pub grid: Grid,
}

/// The tiles of a device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tiles {
    /// Whether a core runs the threads of a workgroup, not a GPU.
    software: bool,
    /// Bytes of workgroup memory.
    storage: u32,
    /// Subgroup matrices and their tiles.
    matrix: Option<(SubgroupMatrix, Vec<MatrixTile>)>,
    /// Tiles that occupy the device.
    enough: u32,
}

impl Tiles {
    /// Those of a device.
    pub fn on(caps: &Caps) -> Self {
        Self {
            software: caps.software_kernels(),
            storage: caps.max_workgroup_storage,
            matrix: caps
                .subgroup_matrix()
                .map(|units| (units, fitting_tiles(caps, units))),
            enough: caps.target_workgroups() / WORKGROUPS_PER_TILE,
        }
    }

    /// The tiling of a launch; `None` if the device needs no such launch.
    pub fn of<B>(&self, launch: &TrainLaunch<B>) -> Option<Tiling> {
        let (variant, grid) = match launch.variant.kernel {
            MATMUL => self.matrix_matmul(launch).unwrap_or_else(|| {
                let size = ["rows", "cols"].map(|n| launch.param(n));
                self.matmul(&launch.variant, size)
            }),
            OUTPUT | QUERY | KEYS => self.attention(launch),
            ROW_SCALES if self.matrix.is_none() => return None,
            _ => (launch.variant.clone(), launch.grid),
        };
        Some(Tiling { variant, grid })
    }

    /// A matmul on subgroup matrices, if it and the device can.
    fn matrix_matmul<B>(&self, launch: &TrainLaunch<B>) -> Option<(TrainVariant, Grid)> {
        let operands = launch.matrix.as_ref()?;
        let (units, fitting) = self.matrix.as_ref()?;
        if launch.variant.flags.contains("INPUT") && operands.scales.is_none() {
            return None;
        }
        let [rows, cols, depth] = ["rows", "cols", "depth"].map(|n| launch.param(n));
        // The left factor is read in vectors of four.
        let vectors = ["a_offset", "a_stride", "depth"].map(|n| launch.param(n));
        if rows.min(cols).min(depth) < MIN_MATRIX_SIDE || vectors.iter().any(|n| n % 4 != 0) {
            return None;
        }
        let grid = |tile: &MatrixTile| [cols.div_ceil(tile.bn), rows.div_ceil(tile.bm), 1];
        let occupies = |tile: &&MatrixTile| grid(tile).iter().product::<u32>() >= self.enough;
        let tile = fitting.iter().find(occupies).or(fitting.last())?;
        let mut variant = launch.variant.clone();
        variant.kernel = MATMUL_MATRIX;
        let variant = variant
            .flag("VECTORS")
            .flag_if("SCALED", operands.scales.is_some());
        Some((tile.variant(variant, *units, operands.layout), grid(tile)))
    }

    /// A matmul with an output of `[rows, cols]`. A side that the variant names is kept.
    fn matmul(&self, variant: &TrainVariant, [rows, cols]: [u32; 2]) -> (TrainVariant, Grid) {
        let mut variant = variant.clone();
        let named = variant.consts.remove(SIDE);
        let [tile_rows, tile_cols] = if self.software {
            variant.kernel = TrainKernel("matmul_rows");
            ROWS_TILE
        } else {
            let wide = self.storage >= WIDE_STORAGE
                && rows.div_ceil(128) * cols.div_ceil(128) >= ENOUGH_WORKGROUPS;
            let side = named.unwrap_or(match rows.min(cols) {
                ..=THIN => 1,
                _ if wide => 8,
                _ => 4,
            });
            variant = variant.set(SIDE, side).set("LOADS", side.div_ceil(4));
            [16 * side; 2]
        };
        let grid = [cols.div_ceil(tile_cols), rows.div_ceil(tile_rows), 1];
        (variant, grid)
    }

    /// Attention: in tiles on a GPU with memory for them, else a workgroup per row.
    fn attention<B>(&self, launch: &TrainLaunch<B>) -> (TrainVariant, Grid) {
        let mut variant = launch.variant.clone();
        let head = variant.consts.get("HEAD").copied().unwrap_or_default();
        // The arrays `slice` and `factors`, of vectors of 16 bytes.
        let bytes = 16 * (16 * (head / 4 + 1) + 16 * 17 + 64 * 17);
        if self.software || self.storage < bytes {
            return (variant, launch.grid);
        }
        let (flag, passes) = match variant.kernel {
            KEYS => ("KEYS", 2),
            QUERY => ("QUERY", 1),
            _ => ("OUTPUT", 1),
        };
        variant.kernel = TrainKernel("attention_tiles");
        let [groups, rows, _] = launch.grid;
        let grid = [groups, rows.div_ceil(ATTENTION_ROWS), 1];
        (variant.flag(flag).set("PASSES", passes), grid)
    }
}
