//! Attention over a KV cache: fused norm and RoPE into the cache, tiled attention for prefill,
//! split attention for decode. Sources: FlashAttention (arXiv 2205.14135), FlashDecoding.

use super::kv_splits::{DecodeTiling, KvSplits, MAX_FUSED_SPLITS, SHORT_BATCH_CONTEXT};
use super::view::View;
use super::{GridSpec, Launch, SOFTWARE_LANES};
use crate::device::registry::{Kernel, Variant};
use crate::device::{Caps, MatrixDialect, SubgroupMatrix};

/// Maximum KV splits: enough to fill a device, few enough to reduce in one step.
const MAX_SPLITS: u32 = 64;
/// Head widths with specialized shader code.
const SPECIALIZED_WIDTHS: [u32; 6] = [64, 80, 96, 128, 256, 512];

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kv {
    /// 32 bits.
    F32,
    /// Native f16; needs `shader-f16`.
    F16,
    /// Two f16 packed in a word, for devices without native f16.
    Packed,
    /// 8 bits with one scale per head and position: the head's largest magnitude.
    Int8,
}

impl Kv {
    /// Bytes of one head at one position.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            Kv::F32 => 4 * head_dim,
            Kv::F16 | Kv::Packed => 2 * head_dim,
            Kv::Int8 => head_dim + 4,
        }
    }

    /// Parses the name used in options.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "f32" => Some(Self::F32),
            "f16" => Some(Self::F16),
            "packed" => Some(Self::Packed),
            "int8" => Some(Self::Int8),
            _ => None,
        }
    }

    /// Returns the name used in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Kv::F32 => "f32",
            Kv::F16 => "f16",
            Kv::Packed => "packed",
            Kv::Int8 => "int8",
        }
    }

    pub(super) fn flags(self, variant: Variant) -> Variant {
        match self {
            Kv::F32 => variant.flag("KV_F32"),
            Kv::F16 => variant.flag("KV_F16").flag("F16"),
            Kv::Packed => variant.flag("KV_PACKED"),
            Kv::Int8 => variant.flag("KV_INT8"),
        }
    }
}

/// Norm of the q and k heads.
#[derive(Debug, Clone)]
pub struct HeadNormParams<B> {
    /// `[2 * head_dim]`: q's gain, then k's.
    pub gains: B,
    /// Added to the gains.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the norm follows RoPE.
    pub after_rope: bool,
    /// Whether v is normed too, without a gain, when written to the cache.
    pub values: bool,
}

/// A RoPE table, `[positions][dim / 2]` of (cos, sin).
#[derive(Debug, Clone)]
pub struct Rope<B> {
    /// Table buffer.
    pub table: B,
    /// Rotated columns per head.
    pub dim: u32,
    /// Whether pairs are adjacent columns rather than the two halves.
    pub interleaved: bool,
}

/// Adds head norm and RoPE to a launch whose shader imports attention/head.
pub(super) fn with_heads<B: Clone>(
    mut launch: Launch<B>,
    norm: Option<&HeadNormParams<B>>,
    rope: Option<&Rope<B>>,
) -> Launch<B> {
    launch.variant = launch
        .variant
        .flag_if("HEAD_NORM", norm.is_some())
        .flag_if("NORM_AFTER_ROPE", norm.is_some_and(|n| n.after_rope))
        .flag_if("ROPE", rope.is_some())
        .flag_if("INTERLEAVED", rope.is_some_and(|r| r.interleaved));
    launch
        .bind_opt("gains", norm.map(|n| n.gains.clone()))
        .bind_opt("rope", rope.map(|r| r.table.clone()))
        .set("rope_dim", rope.map_or(0, |r| r.dim))
        .set_f32("eps", norm.map_or(0.0, |n| n.eps))
        .set_f32("norm_offset", norm.map_or(0.0, |n| n.offset))
}

/// Tiling of prefill attention on subgroup matrices (shaders/attention/attention_matrix.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AttentionMatrixTiling {
    units: SubgroupMatrix,
    /// Head columns, rounded up to whole matrices.
    columns: u32,
    /// Subgroups per workgroup, with 16 rows each.
    subgroups: u32,
    /// Whether keys and values have separate workgroup memory.
    separate_kv: bool,
}

impl AttentionMatrixTiling {
    /// Returns the best known tiling, or None without usable subgroup matrices. `exact`: factors
    /// keep f32 precision. `halves`: the cache has native f16.
    fn of(caps: &Caps, head_dim: u32, exact: bool, halves: bool) -> Option<Self> {
        let units = caps
            .subgroup_matrix()
            .filter(|units| !(units.half && exact))?;
        // Attention weights of 32 keys reuse the memory of q.
        let columns = head_dim.next_multiple_of(16).max(32);
        // Wider heads leave no registers for their accumulators.
        let known = columns <= 128 || columns == 256;
        let fits = |teams: u32, apart: bool| {
            let rows = 16 * teams;
            let threads = teams * units.lanes;

            let kept = if units.words == MatrixDialect::Emulated {
                2 * rows
            } else {
                rows
            };
            let keys = if apart { 64 } else { 32 };
            let elements = (kept + keys) / units.side * (units.side + 1) * (columns + 8);
            let floats = (rows + 1) * 36 + rows * (units.lanes / 16 + 1) + 1;
            let bytes = elements * if units.half || halves { 2 } else { 4 } + floats * 4;
            threads <= caps.max_invocations
                && bytes <= caps.max_workgroup_storage
                && (columns * 8).is_multiple_of(threads)
        };
        let teams = [4, 2]
            .into_iter()
            .find(|teams| fits(*teams, false))
            .filter(|_| known)?;
        // In browsers, which check bounds on reads, two tiles in flight need too many registers for
        // wide heads: 10 % slower.
        let apart = fits(teams, true) && (columns <= 64 || units.words == MatrixDialect::Coop);
        Some(Self {
            units,
            columns,
            subgroups: teams,
            separate_kv: apart,
        })
    }

    fn variant(self) -> Variant {
        Variant::new(Kernel::AttentionMatrix)
            .flag(self.units.words.flag())
            .flag_if("F16", self.units.half)
            .set("WIDTH", self.columns)
            .set("SUBGROUP_COUNT", self.subgroups)
            .set("APART", self.separate_kv.into())
            .set("SIDE", self.units.side)
            .set("LANES", self.units.lanes)
    }
}

/// Columns of a head up to which a thread takes whole rows without a GPU: wider heads take longer to
/// compile than to compute in tiles.
const MAX_COLS_BY_ROWS: u32 = 128;

/// Prefill attention without a GPU: shaders/attention/attention_rows.wgsl.
fn by_rows(head_dim: u32) -> (Variant, u32) {
    let wide = (head_dim / 4).next_power_of_two().max(2);
    let rows = (64 / wide).clamp(1, 4);
    let variant = Variant::new(Kernel::AttentionRows)
        .set("THREADS", SOFTWARE_LANES)
        .set("ROWS", rows)
        .set("WIDE", wide);
    (variant, SOFTWARE_LANES * rows)
}

/// Returns the kernel for prefill attention and its rows per workgroup. For `exact` and `halves`
/// see [`AttentionMatrixTiling::of`].
pub(super) fn prefill_variant(
    caps: &Caps,
    head_dim: u32,
    exact: bool,
    halves: bool,
) -> (Variant, u32) {
    match AttentionMatrixTiling::of(caps, head_dim, exact, halves) {
        Some(tile) => (tile.variant(), 16 * tile.subgroups),
        None if caps.software_kernels() && head_dim <= MAX_COLS_BY_ROWS => by_rows(head_dim),
        None => (
            Variant::new(Kernel::Attention).set("SLABS", head_dim.div_ceil(64).next_power_of_two()),
            32,
        ),
    }
}

/// Whether prefill attention runs on subgroup matrices of f16. For `exact` and `halves` see
/// [`AttentionMatrixTiling::of`].
pub(crate) fn uses_f16_matrices(caps: &Caps, head_dim: u32, exact: bool, halves: bool) -> bool {
    AttentionMatrixTiling::of(caps, head_dim, exact, halves).is_some_and(|rows| rows.units.half)
}

/// Binds each row's range of another sequence to a launch whose shader imports attention/kv_splits.
fn with_cross_ranges<B: Clone>(mut launch: Launch<B>, memory: B) -> Launch<B> {
    launch.variant = launch.variant.flag("CROSS");
    launch.bind("memory", memory)
}

/// Positions per page of the KV caches of a batched step; PAGE in shaders/attention/ring.wgsl.
pub const PAGE_POSITIONS: usize = 64;

/// Page table of a batched step: the pages of each sequence slot, by position.
#[derive(Debug, Clone)]
pub struct PageTable<B> {
    /// `[slots][pages_per_slot]`.
    pub pages: B,
    /// Pages of a sequence at full capacity.
    pub pages_per_slot: u32,
    /// Maximum rows of the step, each of another sequence.
    pub rows: u32,
}

/// One attention layer over a KV cache.
#[derive(Debug, Clone)]
pub struct AttentionKernel<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Columns per head, a multiple of 4 up to 512.
    pub head_dim: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// Sliding window: visible keys per query, its own included; 0 for all.
    pub window: u32,
    /// Softcap of the scores; 0 for none.
    pub softcap: f32,
    /// Attention sinks, `[heads]`.
    pub sinks: Option<B>,
    /// Norm of the q and k heads.
    pub head_norm: Option<HeadNormParams<B>>,
    /// RoPE.
    pub rope: Option<Rope<B>>,
    /// Element type of the KV cache.
    pub kv: Kv,
    /// Maximum positions of the sequence.
    pub capacity: u32,
    /// Slots of a ring cache; None if each position has its own slot.
    pub ring: Option<u32>,
    /// Keys, `[position][kv_head][head_dim]`.
    pub k_cache: B,
    /// Values, `[position][kv_head][head_dim]`.
    pub v_cache: B,
    /// Step state.
    pub state: B,
    /// End of each prompt row's visible keys, where it lies after the row; None for causal
    /// attention.
    pub ends: Option<B>,
    /// Decode tiling.
    pub decode: DecodeTiling,
    /// Page table, if each row belongs to another sequence.
    pub batch: Option<PageTable<B>>,
}

impl<B: Clone + PartialEq> AttentionKernel<B> {
    /// Maximum KV splits of a row.
    pub fn max_splits(&self) -> u32 {
        match (self.is_single_pass(), self.has_few_splits()) {
            (true, _) => 1,
            (_, true) => MAX_FUSED_SPLITS,
            _ => self.capacity.div_ceil(self.decode.tile).min(MAX_SPLITS),
        }
    }

    /// Whether one workgroup takes all keys of a row. Sinks need the reduction.
    fn is_single_pass(&self) -> bool {
        let most = match self.batch {
            // Rows fill the device, and a reduction costs more than a few more keys.
            Some(_) => self.decode.single_pass_keys.max(SHORT_BATCH_CONTEXT),
            None => self.decode.single_pass_keys,
        };
        self.sinks.is_none() && self.max_visible_keys() <= most
    }

    /// Whether a row never has more keys than fill [`MAX_FUSED_SPLITS`] splits on a large device.
    fn has_few_splits(&self) -> bool {
        self.max_visible_keys() <= self.decode.fused_reduce_keys
    }

    /// Maximum visible keys of a row.
    fn max_visible_keys(&self) -> u32 {
        self.capacity.min(if self.window == 0 {
            u32::MAX
        } else {
            self.window
        })
    }

    /// Whether steps dispatch KV splits for the current keys: the idle workgroups of many rows cost time on
    /// any device.
    fn is_sized_by_keys(&self) -> bool {
        self.decode.sized_by_keys || self.batch.is_some()
    }

    /// Bytes of partial results for `rows` rows.
    pub fn scratch(&self, rows: u32) -> u64 {
        if self.is_single_pass() {
            return 0;
        }
        u64::from(rows)
            * u64::from(self.heads)
            * u64::from(self.max_splits())
            * u64::from(self.head_dim + 4)
            * 4
    }

    /// Adds the cache slots of positions to a launch whose shader imports attention/ring.
    fn with_places(&self, mut launch: Launch<B>) -> Launch<B> {
        if let Some(ring) = self.ring {
            launch.variant = launch.variant.flag("RING");
            launch = launch.set("ring", ring);
        }
        let table = self.batch.as_ref().filter(|_| self.ring.is_none());
        self.with_rows(launch.bind_opt("pages", table.map(|table| table.pages.clone())))
    }

    /// Makes each row of a launch another sequence's, in a batched step.
    fn with_rows(&self, mut launch: Launch<B>) -> Launch<B> {
        if let Some(table) = &self.batch {
            launch.variant = launch.variant.flag("BATCH");
            launch = launch.set("pages_per_slot", table.pages_per_slot);
        }
        launch
    }

    fn norms_values(&self) -> bool {
        self.head_norm.as_ref().is_some_and(|n| n.values)
    }

    /// Returns the norm and RoPE launch over a subset of heads: ALL, QUERIES or KEYS (keys and
    /// values).
    fn rope_heads(
        &self,
        q: &View<B>,
        k: &View<B>,
        v: &View<B>,
        rotated: &B,
        flag: &'static str,
        count: u32,
    ) -> Launch<B> {
        let variant = self.kv.flags(Variant::new(Kernel::RopeKv).flag(flag));
        let variant = match self.decode.head_threads {
            64 => variant,
            // Each workgroup zeroes its memory, which few threads do slowly.
            threads => variant.set("WG", threads).set(
                "WIDEST",
                match self.head_dim {
                    ..=32 => 32,
                    33..=128 => 128,
                    _ => 512,
                },
            ),
        };
        let first = if flag == "QUERIES" { q } else { k };
        let grid = GridSpec::Tiled {
            x: count,
            per: 1,
            z: 1,
        };
        let launch = Launch::new(format!("{} rope", self.label), variant, grid)
            .bind("k", first.buffer.clone())
            .bind_opt("v", (flag == "KEYS").then(|| v.buffer.clone()))
            .bind_opt("q_out", (flag != "KEYS").then(|| rotated.clone()))
            .bind_opt("k_cache", (flag != "QUERIES").then(|| self.k_cache.clone()))
            .bind_opt("v_cache", (flag != "QUERIES").then(|| self.v_cache.clone()))
            .bind("state", self.state.clone())
            .set("heads", self.heads)
            .set("kv_heads", self.kv_heads)
            .set("head_dim", self.head_dim)
            .set("q_offset", q.offset)
            .set("k_offset", k.offset)
            .set("k_stride", first.stride)
            .set("v_offset", v.offset)
            .set("v_stride", v.stride);
        let mut launch = if flag == "QUERIES" {
            self.with_rows(launch)
        } else {
            self.with_places(launch)
        };
        launch.variant = launch
            .variant
            .flag_if("VALUES", flag != "QUERIES" && self.norms_values());
        with_heads(launch, self.head_norm.as_ref(), self.rope.as_ref())
    }

    /// Applies norm and RoPE to q into `rotated`, `[row][heads * head_dim]`. The cache belongs to
    /// another layer.
    pub fn rope_queries(&self, q: &View<B>, rotated: &B) -> Launch<B> {
        self.rope_heads(q, q, q, rotated, "QUERIES", self.heads)
    }

    /// Applies norm and RoPE to q into `rotated`, `[row][heads * head_dim]`, and to k into the
    /// cache; writes v to the cache.
    pub fn rope_kv(&self, q: &View<B>, k: &View<B>, v: &View<B>, rotated: &B) -> Vec<Launch<B>> {
        let launch = |flag, count| self.rope_heads(q, k, v, rotated, flag, count);
        if self.can_fuse(q, k, v) {
            return vec![launch("ALL", self.heads + 2 * self.kv_heads)];
        }
        vec![
            launch("QUERIES", self.heads),
            launch("KEYS", 2 * self.kv_heads),
        ]
    }

    /// Returns prefill attention over the cache.
    pub fn prefill(&self, caps: &Caps, rotated: B, out: &View<B>) -> Launch<B> {
        let (variant, per) =
            prefill_variant(caps, self.head_dim, self.kv == Kv::F32, self.kv == Kv::F16);
        let variant = self
            .kv
            .flags(variant)
            .flag_if("SINKS", self.sinks.is_some())
            .flag_if("ENDS", self.ends.is_some())
            .flag_if("SOFTCAP", self.softcap > 0.0);
        let grid = GridSpec::Tiled {
            x: 1,
            per,
            z: self.heads,
        };
        let launch = Launch::new(self.label.clone(), variant, grid)
            .bind("q", rotated)
            .bind("k_cache", self.k_cache.clone())
            .bind("v_cache", self.v_cache.clone())
            .bind("out", out.buffer.clone())
            .bind("state", self.state.clone())
            .bind_opt("ends", self.ends.clone())
            .bind_opt("sinks", self.sinks.clone())
            .set("heads", self.heads)
            .set("kv_heads", self.kv_heads)
            .set("head_dim", self.head_dim)
            .set("out_offset", out.offset)
            .set("out_stride", out.stride)
            .set("window", self.window)
            .set_f32("scale", self.scale)
            .set_f32("softcap", self.softcap);
        self.with_places(launch)
    }

    /// Whether [`Self::decode`] accepts these views of q, k and v.
    pub fn can_fuse(&self, q: &View<B>, k: &View<B>, v: &View<B>) -> bool {
        q.buffer == k.buffer && k.buffer == v.buffer
    }

    /// Returns attention of rows of different sequences over the cache in KV splits, and the reduction. Also applies
    /// head norm and RoPE, and writes the cache. q, k and v share one buffer.
    pub fn decode(
        &self,
        q: &View<B>,
        k: &View<B>,
        v: &View<B>,
        parts: B,
        out: &View<B>,
    ) -> Vec<Launch<B>> {
        let mut launch = self
            .split_launch(q, self.is_sized_by_keys())
            .set("k_offset", k.offset)
            .set("v_offset", v.offset);
        launch.variant = launch
            .variant
            .flag("FUSED")
            .flag_if("VALUES", self.norms_values());
        let launch = with_heads(launch, self.head_norm.as_ref(), self.rope.as_ref());
        self.with_reduce(launch, parts, out, None)
    }

    /// Returns the splits that the first launch of [`Self::decode`] leaves, if a matmul may reduce
    /// them instead of the second.
    pub fn kv_splits(&self) -> Option<KvSplits> {
        let few = self.has_few_splits() && !self.is_single_pass() && self.sinks.is_none();
        // A thread of the matmul reads columns of one head only.
        (few && self.head_dim.is_multiple_of(32)).then_some(KvSplits {
            head_dim: self.head_dim,
            window: self.max_visible_keys(),
            tile: self.decode.tile,
        })
    }

    /// Returns attention of few rows over a cache that already holds their keys and values, in KV
    /// splits like [`Self::decode`].
    pub fn decode_rows(&self, rotated: B, parts: B, out: &View<B>) -> Vec<Launch<B>> {
        let queries = View {
            buffer: rotated,
            offset: 0,
            stride: self.heads * self.head_dim,
        };
        let launch = self
            .split_launch(&queries, self.is_sized_by_keys())
            .set("k_offset", 0)
            .set("v_offset", 0);
        self.with_reduce(with_heads(launch, None, None), parts, out, None)
    }

    /// Returns cross attention of few rows over rows `[first, end)` of another sequence, given per
    /// row in `memory`. Keys and values are f32 views.
    pub fn cross_attend(
        &self,
        q: &View<B>,
        [k, v]: [&View<B>; 2],
        memory: B,
        parts: B,
        out: &View<B>,
    ) -> Vec<Launch<B>> {
        // The state does not count the other sequence's keys.
        let launch = self
            .split_launch(q, false)
            .set("k_offset", k.offset)
            .set("v_offset", v.offset);
        let launch = launch.set("k_stride", k.stride).set("v_stride", v.stride);
        let launch = with_heads(with_cross_ranges(launch, memory.clone()), None, None);
        self.with_reduce(launch, parts, out, Some(memory))
    }

    /// Returns a launch over KV splits, plus the reduction of `parts` unless there is only one
    /// split.
    fn with_reduce(
        &self,
        mut launch: Launch<B>,
        parts: B,
        out: &View<B>,
        memory: Option<B>,
    ) -> Vec<Launch<B>> {
        if self.is_single_pass() {
            launch.variant = launch.variant.set("SINGLE_PASS", 1);
            let launch = launch
                .bind("out", out.buffer.clone())
                .set("out_offset", out.offset);
            return vec![launch.set("out_stride", out.stride)];
        }
        let join = self.reduce(parts.clone(), out);
        let join = match memory {
            Some(memory) => with_cross_ranges(join, memory),
            None => join,
        };
        vec![launch.bind("out", parts), join]
    }

    /// Returns a launch over KV splits, sized for the capacity, or for the current keys if
    /// `follows`.
    fn split_launch(&self, q: &View<B>, follows: bool) -> Launch<B> {
        let group = self.heads / self.kv_heads;
        // With few workgroups, each may have more threads, which wait for fewer keys and values.
        // Threads share a key's columns evenly; more heads leave no room for their sums.
        let even = self.head_dim <= 256 && self.head_dim.is_multiple_of(32);
        let is_batched = self.batch.is_some() && self.is_single_pass();
        let x = self.kv_heads * group.div_ceil(self.decode.heads);
        let rows = self.batch.as_ref().map_or(1, |batch| batch.rows);
        let is_full = self.head_dim > 64 && rows * x > self.decode.batch_fill;
        let takes_more = if is_batched {
            self.decode.specialized && !is_full
        } else {
            self.has_few_splits()
        };
        let threads = if takes_more && even && self.decode.heads <= 2 {
            256
        } else {
            self.decode.threads
        };
        // All keys of a row, in half as many rounds.
        let tile = if is_batched && threads == 256 && self.head_dim <= 128 {
            64
        } else {
            self.decode.tile
        };
        let variant = self
            .kv
            .flags(Variant::new(Kernel::AttentionDecode))
            .set("HEADS", self.decode.heads)
            .set("TILE", tile)
            .set(
                "D",
                if self.decode.specialized && SPECIALIZED_WIDTHS.contains(&self.head_dim) {
                    self.head_dim
                } else {
                    0
                },
            )
            .set(
                "WIDE",
                if self.head_dim > 256 {
                    128
                } else {
                    threads / 2
                },
            )
            .set("CUTS", self.cuts(threads));
        let variant = if threads == 128 {
            variant
        } else {
            variant.set("THREADS", threads)
        };
        let most = self.max_splits();

        let grid = match follows {
            true => GridSpec::KvSplits {
                x,
                tile: self.decode.tile,
                max: most,
            },
            false => GridSpec::PerRow { x, y: most, per: 1 },
        };
        let launch = Launch::new(self.label.clone(), variant, grid)
            .bind("q", q.buffer.clone())
            .bind("k_cache", self.k_cache.clone())
            .bind("v_cache", self.v_cache.clone())
            .bind("state", self.state.clone())
            .set("heads", self.heads)
            .set("kv_heads", self.kv_heads)
            .set("head_dim", self.head_dim)
            .set("q_offset", q.offset)
            .set("q_stride", q.stride)
            .set("window", self.window)
            .set("splits", self.max_splits())
            .set_f32("scale", self.scale)
            .set_f32("softcap", self.softcap);
        self.with_places(launch)
    }

    /// Returns the parts that threads split their sums over keys into, with four columns each.
    fn cuts(&self, threads: u32) -> u32 {
        let most = (4 * threads / self.head_dim).clamp(1, 32);
        if most.is_power_of_two() {
            most
        } else {
            most.next_power_of_two() / 2
        }
    }

    fn reduce(&self, parts: B, out: &View<B>) -> Launch<B> {
        let cuts = self.cuts(128);
        let most = if self.has_few_splits() {
            MAX_FUSED_SPLITS
        } else {
            MAX_SPLITS
        };
        let variant = Variant::new(Kernel::AttentionReduce)
            .flag_if("SINKS", self.sinks.is_some())
            .flag_if("BATCH", self.batch.is_some())
            .set("CUTS", cuts)
            // All possible splits, as far as registers allow.
            .set("LEAD", (most / cuts).clamp(2, 16))
            .set("TILE", self.decode.tile);
        let grid = GridSpec::PerRow {
            x: self.heads,
            y: 1,
            per: 1,
        };
        Launch::new(format!("{} reduce", self.label), variant, grid)
            .bind("parts", parts)
            .bind("out", out.buffer.clone())
            .bind("state", self.state.clone())
            .bind_opt("sinks", self.sinks.clone())
            .set("heads", self.heads)
            .set("head_dim", self.head_dim)
            .set("out_offset", out.offset)
            .set("out_stride", out.stride)
            .set("splits", self.max_splits())
            .set("window", self.window)
    }
}
