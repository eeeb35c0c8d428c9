//! Runs of keys, into which attention of few rows is split (FlashDecoding): how many, and who joins what they leave. Knows capabilities,
//! neither attention nor the product behind it.

use crate::device::Caps;
use crate::device::registry::Kernel;

/// Keys up to which decode has plans of its own: where a dispatch is dear one workgroup takes all of them, on a large device the
/// product behind joins what several made.
pub const NEAR: u32 = 512;
/// Runs that the product behind attention joins at the most.
pub const RUNS: u32 = 16;

/// What decode attention leaves of a row in up to [`RUNS`] runs of keys, for a product to join (shaders/attention/runs.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// Columns of a head.
    pub head_dim: u32,
    /// Keys that a row sees at the most.
    pub window: u32,
    /// Keys of a run.
    pub tile: u32,
}

/// How decode attention is spread over workgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeChoice {
    /// Query heads of one key-value head that a workgroup takes at the most.
    pub heads: u32,
    /// Keys that it takes at a time.
    pub tile: u32,
    /// Rows that never see more keys than these take them all in one run, whose result nobody joins.
    pub near: u32,
    /// Rows that never see more keys than these leave at most [`RUNS`] runs where a product behind can join them.
    pub joined: u32,
    /// Whether a step has runs for the keys that there are, not for all that there may be: on a large device what has nothing to do
    /// costs nothing.
    pub follows: bool,
}

impl DecodeChoice {
    /// What is known to be good.
    pub fn of(caps: &Caps, heads: u32, kv_heads: u32, head_dim: u32) -> Self {
        // Heads of a workgroup share what it reads of the cache; a large device would rather have more workgroups.
        let most = caps.measured(Kernel::Decode, "HEADS", if caps.full_load() >= 512 { 2 } else { 8 });
        let own = (heads / kv_heads).next_power_of_two().min(most);
        let pick = |name: &str, own: u32| caps.choose(Kernel::Decode, name, own);
        let (heads, tile) = (pick("HEADS", own), pick("TILE", caps.measured(Kernel::Decode, "TILE", 32)));
        let near = match (caps.frugal(), caps.dear_dispatches()) {
            (true, _) => u32::MAX,
            (_, true) => NEAR,
            _ => 0,
        };
        let joined = if Self::joins(caps) { NEAR } else { 0 };
        // Wide heads leave room for fewer of them in a workgroup's memory, and for fewer values in a thread.
        let (heads, tile) = if head_dim > 256 { (heads.min(4), 32) } else { (heads, tile) };
        Self { heads, tile, near, joined, follows: caps.full_load() < 512 }
    }

    /// Whether products join the runs that attention leaves. Each of their workgroups reads all of them: only a large device has
    /// them at hand in less time than a dispatch takes.
    pub fn joins(caps: &Caps) -> bool {
        caps.choose(Kernel::GemvBlocks, "RUNS", if caps.full_load() >= 1024 { RUNS } else { 0 }) != 0
    }
}
