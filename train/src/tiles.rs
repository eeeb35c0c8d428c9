//! How a device's kernels are cut into tiles: which source computes a launch, and in how many
//! workgroups.

use crate::kernel::{TrainKernel, TrainLaunch, TrainVariant};
use crate::kernels::attention::{KEYS, OUTPUT, QUERY};
use crate::kernels::matmul::MATMUL;
use jerboa::device::{Caps, Grid};

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

/// The tiles of a device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tiles {
    /// Whether a core runs the threads of a workgroup, not a GPU.
    software: bool,
    /// Bytes of workgroup memory.
    storage: u32,
}

impl Tiles {
    /// Those of a device.
    pub fn on(caps: &Caps) -> Self {
        Self {
            software: caps.software_kernels(),
            storage: caps.max_workgroup_storage,
        }
    }

    /// The variant and the workgroups of a launch.
    pub fn of<B>(self, launch: &TrainLaunch<B>) -> (TrainVariant, Grid) {
        match launch.variant.kernel {
            MATMUL => self.matmul(&launch.variant, ["rows", "cols"].map(|n| launch.param(n))),
            OUTPUT | QUERY | KEYS => self.attention(launch),
            _ => (launch.variant.clone(), launch.grid),
        }
    }

    /// A matmul with an output of `[rows, cols]`. A side that the variant names is kept.
    fn matmul(self, variant: &TrainVariant, [rows, cols]: [u32; 2]) -> (TrainVariant, Grid) {
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
    fn attention<B>(self, launch: &TrainLaunch<B>) -> (TrainVariant, Grid) {
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
