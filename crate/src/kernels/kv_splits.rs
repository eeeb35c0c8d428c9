//! KV splits of decode attention (FlashDecoding): their count, and the kernel that reduces them.

use crate::device::Caps;
use crate::device::registry::Kernel;

/// Maximum keys of the short-context decode plan. One workgroup takes all keys where dispatches are
/// expensive. On a large device, the matmul after attention reduces the splits.
pub const SHORT_CONTEXT: u32 = 512;
/// Maximum keys that one workgroup takes of a row of a batched step: more take longer than a reduction.
pub const SHORT_BATCH_CONTEXT: u32 = 256;
/// Maximum splits that the matmul after attention reduces.
pub const MAX_FUSED_SPLITS: u32 = 16;

/// Partial results of decode attention in up to [`MAX_FUSED_SPLITS`] splits, reduced by a matmul
/// (shaders/attention/kv_splits_reduce.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSplits {
    /// Columns per head.
    pub head_dim: u32,
    /// Maximum visible keys of a row.
    pub window: u32,
    /// Keys per split.
    pub tile: u32,
}

/// Thread layout of decode attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeTiling {
    /// Maximum query heads of one KV head per workgroup.
    pub heads: u32,
    /// Keys per iteration.
    pub tile: u32,
    /// Threads per workgroup, unless a kernel takes more.
    pub threads: u32,
    /// Threads that norm and rotate a head.
    pub head_threads: u32,
    /// Whether kernels are specialized for common head widths, rather than compiled once for all.
    pub specialized: bool,
    /// Workgroups above which those of a batch have fewer threads: with more than 64 columns a head, more
    /// would wait for registers.
    pub batch_fill: u32,
    /// Rows with at most this many keys take one split and need no reduction.
    pub single_pass_keys: u32,
    /// Rows with at most this many keys leave at most [`MAX_FUSED_SPLITS`] splits, if the next matmul can
    /// reduce them.
    pub fused_reduce_keys: u32,
    /// Whether a step dispatches splits for the current keys rather than the capacity. On a large
    /// device idle workgroups are free.
    pub sized_by_keys: bool,
}

impl DecodeTiling {
    /// Returns the best known tiling.
    pub fn of(caps: &Caps, heads: u32, kv_heads: u32, head_dim: u32) -> Self {
        // Heads in a workgroup share reads of the cache; a large device prefers more workgroups.
        let most = caps.constant_or_measured(
            Kernel::AttentionDecode,
            "HEADS",
            if caps.target_workgroups() >= 512 {
                2
            } else {
                8
            },
        );
        let own = (heads / kv_heads).next_power_of_two().min(most);
        let pick =
            |name: &str, own: u32| caps.constant_or_forced(Kernel::AttentionDecode, name, own);
        let heads = pick("HEADS", own);
        let tile = pick(
            "TILE",
            caps.constant_or_measured(Kernel::AttentionDecode, "TILE", 32),
        );

        let single_pass_keys = match (caps.prefers_fast_compile(), caps.dispatch_is_expensive()) {
            (true, _) => u32::MAX,
            (_, true) => SHORT_CONTEXT,
            _ => 0,
        };
        let fused_reduce_keys = if Self::fuses_reduce(caps) {
            SHORT_CONTEXT
        } else {
            0
        };
        // Wide heads need more workgroup memory each, and leave fewer values per thread.
        let (heads, tile) = if head_dim > 256 {
            (heads.min(4), 32)
        } else {
            (heads, tile)
        };
        // A software device runs the threads of a workgroup in turn, with or without work for them.
        // Each key of a tile needs two, and each two threads hold four columns of a head.
        let threads = if caps.software_kernels() && tile == 32 && head_dim <= 128 {
            64
        } else {
            128
        };
        let head_threads = if caps.software_kernels() { 8 } else { 64 };
        Self {
            heads,
            tile,
            threads,
            head_threads,
            specialized: !caps.software_kernels(),
            batch_fill: caps.target_workgroups() / 4,
            single_pass_keys,
            fused_reduce_keys,
            sized_by_keys: caps.target_workgroups() < 512,
        }
    }

    /// Whether matmuls reduce the KV splits. Every workgroup of the matmul reads all splits, which
    /// only a large device does faster than a dispatch.
    pub fn fuses_reduce(caps: &Caps) -> bool {
        caps.constant_or_forced(
            Kernel::GemvBlocks,
            "KV_SPLITS",
            if caps.target_workgroups() >= 1024 {
                MAX_FUSED_SPLITS
            } else {
                0
            },
        ) != 0
    }
}
