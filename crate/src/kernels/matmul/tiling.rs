//! Tile sizes and thread layouts of matmuls.

use super::Matmul;
use crate::device::Caps;
use crate::device::registry::Kernel;
use crate::device::tuning_table::GemvVariant;
use crate::format::layout::WeightLayout;
use crate::kernels::SOFTWARE_LANES;

/// Elements of a weight up to which a GEMM without a GPU takes longer to compile than to run: half the
/// rows or columns at a time compile in half the time.
const SMALL_WEIGHT: u64 = 1 << 20;

impl<B: Clone> Matmul<B> {
    /// Whether a GEMM without a GPU takes longer to compile than to run.
    pub(super) fn is_small(&self) -> bool {
        u64::from(self.weight.rows) * u64::from(self.weight.cols) <= SMALL_WEIGHT
    }
}

/// Tile sizes of a GEMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmTiling {
    /// `gemm`, or `gemm_rows` without a GPU.
    pub kernel: Kernel,
    /// Rows of x per tile.
    pub bm: u32,
    /// Weight rows per tile.
    pub bn: u32,
    /// Unrolled elements of K, out of 16.
    pub unroll: u32,
    /// Workgroups that fill the device. With fewer tiles, several workgroups share one.
    pub target: u32,
    /// Maximum workgroups per tile.
    pub max_per_tile: u32,
    /// Lanes of a subgroup, each of which reads a row of x for all (`gemm_rows`). 0: each lane reads every
    /// row.
    pub lanes: u32,
}

impl GemmTiling {
    /// Rows of x of a short prompt or a chat turn. Shorter tiles waste fewer rows there.
    pub const SHORT_ROWS: usize = 32;
    /// Columns of a tile of the packed GEMM.
    pub(super) const PACKED_COLS: u32 = 64;

    /// Without a GPU, one workgroup takes a whole sum (shaders/matmul/gemm_rows.wgsl).
    fn without_gpu(caps: &Caps, is_small: bool) -> Self {
        let lanes = match caps.subgroup_size {
            (lanes @ (4 | 8), most) if caps.subgroups && lanes == most => lanes,
            _ => 0,
        };
        Self {
            kernel: Kernel::GemmRows,
            bm: 16,
            bn: if is_small { 4 } else { 8 } * SOFTWARE_LANES,
            unroll: 1,
            target: 1,
            max_per_tile: 1,
            lanes,
        }
    }

    /// Returns the best known tiling for up to `rows` rows of x.
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Self {
        let forced = caps.force.is_some_and(|force| force.kernel == Kernel::Gemm);
        if caps.software_kernels() && !forced {
            return Self::without_gpu(caps, m.is_small());
        }
        let known = if rows <= Self::SHORT_ROWS {
            32
        } else {
            caps.constant_or_measured(Kernel::Gemm, "BM", 64)
        };
        Self {
            kernel: Kernel::Gemm,
            bm: caps.constant_or_forced(Kernel::Gemm, "BM", known),
            bn: caps.constant_or_forced(Kernel::Gemm, "BN", 128),
            // Without a GPU, unrolling does not repay its compile time.
            unroll: caps.constant_or_forced(
                Kernel::Gemm,
                "UNROLL",
                if caps.software { 1 } else { 16 },
            ),
            // Slightly more than fills the device: a half-full last wave costs as much as a full one.
            target: caps.constant_or_measured(
                Kernel::Gemm,
                "FILL",
                caps.target_workgroups() * 9 / 8,
            ),
            // Shorter shares of K cost more to reduce than they save.
            max_per_tile: (m.weight.cols / 128).clamp(1, 16),
            lanes: 0,
        }
    }

    /// Returns the best known tiling of the packed GEMM for up to `rows` rows of x.
    pub fn packed<B>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Self {
        let known = if rows <= Self::SHORT_ROWS { 32 } else { 64 };
        let bm = caps.constant_or_forced(Kernel::GemmPacked, "BM", known);
        Self {
            kernel: Kernel::GemmPacked,
            bm,
            bn: Self::PACKED_COLS,
            unroll: 16,
            // Tiles of few rows have half as many threads.
            target: caps.target_workgroups() * if bm == 32 { 2 } else { 1 },
            max_per_tile: (m.weight.cols / 256).clamp(1, 16),
            lanes: 0,
        }
    }
}

/// Thread layout of a GEMV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvTiling {
    /// Threads per workgroup, which share its weight rows.
    pub wg: u32,
    /// Weight rows per workgroup.
    pub rows: u32,
    /// Rows of x per workgroup.
    pub cols: u32,
    /// Units of eight elements in flight per thread.
    pub unroll: u32,
}

impl GemvTiling {
    /// Returns the best known tiling for `x_rows` rows of x.
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, x_rows: usize) -> Self {
        let alone = m.experts.is_some();
        let cols = if alone {
            1
        } else {
            (x_rows.max(1) as u32).next_power_of_two().min(4)
        };
        let best = if caps.software_kernels() {
            Self::for_software(cols)
        } else {
            Self::for_gpu(caps, m, cols)
        };
        let pick = |name: &str, own: u32| caps.constant_or_forced(Kernel::Gemv, name, own);
        let cols = if alone { 1 } else { pick("COLS", cols) };
        let rows = pick("ROWS", best.rows);
        Self {
            // One thread per output at the end.
            wg: pick("WG", best.wg).max(rows * cols),
            rows,
            cols,
            unroll: pick("UNROLL", best.unroll),
        }
    }

    /// Few threads, which a core runs in turn: each costs as much without work as with it. The same for every matrix, since
    /// a software device compiles slowly.
    fn for_software(cols: u32) -> Self {
        let wg = SOFTWARE_LANES;
        Self {
            wg,
            rows: (wg / cols).min(4),
            cols,
            unroll: 1,
        }
    }

    fn for_gpu<B: Clone>(caps: &Caps, m: &Matmul<B>, cols: u32) -> Self {
        let outputs = m.n * m.rows_per_output() * m.experts_per_row();
        let units = m.weight.cols.div_ceil(8) * m.experts_summed();
        let narrow = !matches!(m.weight.layout, WeightLayout::Dense(_));
        // With few weight rows, all threads work on each. With many, a thread takes several rows
        // and reuses x from registers. Narrow weights gain most: they need the most loads of x per
        // byte.
        let (rows, threads) = match outputs {
            0..2048 if cols == 4 => (4, units / 4),
            _ if cols == 4 => (4, units / 16),
            0..16_384 => (2, units),
            16_384..65_536 => (4, units / 4),
            _ if narrow && cols == 1 => (8, units / 4),
            _ => (4, units / 4),
        };
        // Without subgroups each thread stores its sums in workgroup memory, which limits the rows
        // of x.
        let room = caps.max_workgroup_storage / (4 * cols * (rows + 1));
        let most = if caps.subgroups {
            256
        } else {
            (1 << room.max(32).ilog2()).min(256)
        };
        let wg = threads.next_power_of_two().clamp(32, most);
        // Loads in flight per thread: small groups need as many per thread as large groups have
        // together.
        let unroll = if wg == 32 && cols <= 2 && rows <= 4 {
            2
        } else {
            1
        };
        Self {
            wg,
            rows,
            cols,
            unroll,
        }
    }
}

/// Thread layout of the block GEMV for one row of x (shaders/matmul/gemv_blocks.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvBlocksTiling {
    /// Threads that share K, one block each; they loop if K is longer.
    pub row_threads: u32,
    /// Thread groups per workgroup.
    pub row_groups: u32,
    /// Outputs per thread group.
    pub outputs: u32,
    /// Rows of x per workgroup.
    pub cols: u32,
    /// 1 to use packed 8-bit dot products.
    pub packed_dot: u32,
    /// Bits of the integers of x with packed dot products: 16, or 8.
    pub x_bits: u32,
    /// f32 values of workgroup memory for the sums.
    pub sums: u32,
}

impl GemvBlocksTiling {
    /// [`Self::sums`] of at most two rows of x.
    const SUMS: u32 = 1024;
    /// [`Self::sums`] of more rows, where workgroup memory suffices: fewer workgroups load all of x.
    const MANY_SUMS: u32 = 4096;
    /// Bytes of workgroup memory that suffice for [`Self::MANY_SUMS`].
    const MANY_SUMS_STORAGE: u32 = 32 << 10;
    /// Largest thread group that variants.toml declares.
    const MAX_ROW_THREADS: u32 = 512;
    /// Weight rows in flight per thread.
    pub const ROWS_IN_FLIGHT: u32 = 4;

    /// Returns the best known tiling for `rows` rows of x, or None if block reads are unavailable
    /// or slower.
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Option<Self> {
        match m.weight.layout {
            WeightLayout::Affine {
                bits: 4 | 8, group, ..
            } if group >= 32 => {}
            WeightLayout::Q4K | WeightLayout::Mxfp4 | WeightLayout::Ternary => {}
            _ => return None,
        }
        let forces = |kernel| caps.force.is_some_and(|f| f.kernel == kernel);
        let forced = forces(Kernel::GemvBlocks);
        let each = m.rows_per_output();
        let dot = caps.constant_or_forced(
            Kernel::GemvBlocks,
            "DOT",
            caps.uses_packed_dot(m.weight.layout).into(),
        );
        // With few outputs, one group per row leaves the device idle, unless each row is short.
        let fewest = if dot == 1 { 512 } else { 2048 };
        // Several f32 rows of x exceed a thread's registers.
        let alone = m.experts.is_some();
        let few = m.n * each * m.experts_per_row() < fewest
            || (rows > 1 && dot == 0 && !alone)
            || caps.gemv_variant(m.weight.layout) == Some(GemvVariant::Rows);
        if !caps.subgroups || caps.subgroup_size.0 < 4 || forces(Kernel::Gemv) || (few && !forced) {
            return None;
        }
        let pick = |name: &str, own: u32| caps.constant_or_forced(Kernel::GemvBlocks, name, own);
        // Several rows of 16 bits exceed a thread's registers.
        let eight_bits = m.quantize || (m.batch && rows > 1 && dot == 1 && !alone);
        let x_bits = if eight_bits && dot == 1 { 8 } else { 16 };
        let cols = match rows {
            _ if alone => 1,
            0..=1 => pick("COLS", 1),
            3.. if x_bits == 8 && !m.quantize => pick("COLS", if rows > 4 { 8 } else { 4 }),
            _ => pick("COLS", 2),
        };
        let sums = if cols > 2 && caps.max_workgroup_storage >= Self::MANY_SUMS_STORAGE {
            Self::MANY_SUMS
        } else {
            Self::SUMS
        };
        let unit = caps.subgroup_size.1.max(32);
        let blocks = m.weight.k_blocks() * m.experts_summed();
        let memory = caps
            .max_workgroup_storage
            .saturating_sub(4 * sums + 1024 * cols.div_ceil(2))
            / 72;
        let most = caps.max_invocations.min(memory).min(Self::MAX_ROW_THREADS) / unit * unit;
        if most == 0 || (blocks * 2 < unit && !forced) {
            return None;
        }
        let team = blocks
            .div_ceil(blocks.div_ceil(most))
            .next_multiple_of(unit);
        // Groups that share reads of x. More threads wait too long for one another.
        let fits = |teams: u32| {
            if team * teams <= 320.min(most) {
                teams
            } else {
                1
            }
        };
        let teams = fits(pick("ROW_GROUPS", fits(4).max(fits(2))));
        // As many workgroups as run at once: each then reads x once, and none is left for a second
        // wave. A single group, or several rows of x, needs more registers for x in flight.
        let threads = match (cols, teams) {
            (1, 1) => 512,
            (1, _) => 768,
            _ => 256,
        };
        let groups = (caps.target_workgroups() / 8 * (threads / (team * teams)).max(1)
            / m.experts_per_row())
        .max(1);
        let least = Self::ROWS_IN_FLIGHT / each;
        let room = sums / each / cols / (team * teams / caps.subgroup_size.0) / least * least;
        let turns = m.n.div_ceil(groups * teams * room);
        let share = m.n.div_ceil(groups * teams * turns).next_multiple_of(least);
        Some(Self {
            row_threads: team,
            row_groups: teams,
            outputs: share,
            cols,
            packed_dot: dot,
            x_bits,
            sums,
        })
    }
}
