//! Attention: heads normed and rotated into the cache, tiled attention for many rows, split attention for few.
//! Sources: FlashAttention (arXiv 2205.14135), FlashDecoding. It knows neither layers nor where buffers come from.

use super::runs::{DecodeChoice, RUNS, Runs};
use super::view::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};
use crate::device::{Caps, MatrixUnits, MatrixWords};

/// Runs of keys that it is split into at most: enough to fill a device, few enough to join in one step.
const MAX_SPLITS: u32 = 64;
/// Widths of heads that have a text of their own.
const WIDTHS: [u32; 6] = [64, 80, 96, 128, 256, 512];

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kv {
    /// 32 bits.
    F32,
    /// Native halves; needs `shader-f16`.
    F16,
    /// Two halves in a word, for devices without native halves.
    Packed,
    /// 8 bits: shares of the largest magnitude of the head, which is kept with it.
    Int8,
}

impl Kv {
    /// Bytes of a head of a position.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            Kv::F32 => 4 * head_dim,
            Kv::F16 | Kv::Packed => 2 * head_dim,
            Kv::Int8 => head_dim + 4,
        }
    }

    /// By its name in options.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "f32" => Some(Self::F32),
            "f16" => Some(Self::F16),
            "packed" => Some(Self::Packed),
            "int8" => Some(Self::Int8),
            _ => None,
        }
    }

    /// Its name in options and reports.
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

/// Norm of q and k heads.
#[derive(Debug, Clone)]
pub struct HeadNorm<B> {
    /// `[2 * head_dim]`: q's gain, then k's.
    pub gains: B,
    /// Added to the gains.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// After the rotation rather than before it.
    pub after_rope: bool,
    /// Of v too, without a gain, where it is written to the cache.
    pub values: bool,
}

/// A rotation table, `[positions][dim / 2]` of (cos, sin).
#[derive(Debug, Clone)]
pub struct Rope<B> {
    /// The table.
    pub table: B,
    /// Rotated columns.
    pub dim: u32,
    /// Pairs are neighbours rather than halves.
    pub interleaved: bool,
}

/// Gives a launch, whose shader imports attention/head, the norm of its heads and their rotation.
pub(super) fn with_heads<B: Clone>(
    mut launch: Launch<B>,
    norm: Option<&HeadNorm<B>>,
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

/// How attention of many rows is cut for matrix units (shaders/attention/attention_matrix.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MatrixRows {
    units: MatrixUnits,
    /// Columns of a head in whole matrices.
    columns: u32,
    /// Subgroups of a workgroup, each with 16 rows.
    teams: u32,
    /// Places apart for keys and values.
    apart: bool,
}

impl MatrixRows {
    /// What is known to be good, or nothing where the units do not serve. `exact`: factors keep f32's precision; `halves`: the
    /// cache has native ones.
    fn of(caps: &Caps, head_dim: u32, exact: bool, halves: bool) -> Option<Self> {
        let units = caps.matrix_units().filter(|units| !(units.half && exact))?;
        // Weights of 32 keys take the place of q.
        let columns = head_dim.next_multiple_of(16).max(32);
        // Wider heads leave no registers for their sums.
        let known = columns <= 128 || columns == 256;
        let fits = |teams: u32, apart: bool| {
            let (rows, threads) = (16 * teams, teams * units.lanes);
            let kept = if units.words == MatrixWords::Spelled { 2 * rows } else { rows };
            let keys = if apart { 64 } else { 32 };
            let elements = (kept + keys) / units.side * (units.side + 1) * (columns + 8);
            let floats = (rows + 1) * 36 + rows * (units.lanes / 16 + 1) + 1;
            let bytes = elements * if units.half || halves { 2 } else { 4 } + floats * 4;
            threads <= caps.max_invocations
                && bytes <= caps.max_workgroup_storage
                && (columns * 8).is_multiple_of(threads)
        };
        let teams = [4, 2].into_iter().find(|teams| fits(*teams, false)).filter(|_| known)?;
        // In pages, which read with checks, two tiles on their way take too many registers of wide heads: a tenth slower.
        let apart = fits(teams, true) && (columns <= 64 || units.words == MatrixWords::Coop);
        Some(Self { units, columns, teams, apart })
    }

    fn variant(self) -> Variant {
        Variant::new(Kernel::AttentionMatrix)
            .flag(self.units.words.flag())
            .flag_if("F16", self.units.half)
            .set("WIDTH", self.columns)
            .set("TEAMS", self.teams)
            .set("APART", self.apart.into())
            .set("SIDE", self.units.side)
            .set("LANES", self.units.lanes)
    }
}

/// The kernel for attention of many rows, and the rows that a workgroup of it takes. `exact` and `halves` as
/// [`MatrixRows::of`] has them.
pub(super) fn many(caps: &Caps, head_dim: u32, exact: bool, halves: bool) -> (Variant, u32) {
    match MatrixRows::of(caps, head_dim, exact, halves) {
        Some(tile) => (tile.variant(), 16 * tile.teams),
        None => (Variant::new(Kernel::Attention).set("SLABS", head_dim.div_ceil(64).next_power_of_two()), 32),
    }
}

/// Whether attention of many rows is on matrix units of halves. `exact` and `halves` as [`MatrixRows::of`] has them.
pub(crate) fn on_halves(caps: &Caps, head_dim: u32, exact: bool, halves: bool) -> bool {
    MatrixRows::of(caps, head_dim, exact, halves).is_some_and(|rows| rows.units.half)
}

/// Gives a launch, whose shader imports attention/splits, what each row sees of another sequence.
fn over_memory<B: Clone>(mut launch: Launch<B>, memory: B) -> Launch<B> {
    launch.variant = launch.variant.flag("MEMORY");
    launch.bind("memory", memory)
}

/// One attention layer over a KV cache.
#[derive(Debug, Clone)]
pub struct Attention<B> {
    /// For dumps and profiles.
    pub label: String,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Columns of a head, a multiple of 4 up to 512.
    pub head_dim: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// Keys a query sees, its own included; 0 for all.
    pub window: u32,
    /// Softcap of the scores; 0 for none.
    pub softcap: f32,
    /// `[heads]`.
    pub sinks: Option<B>,
    /// Norm of the heads.
    pub head_norm: Option<HeadNorm<B>>,
    /// Rotation.
    pub rope: Option<Rope<B>>,
    /// Element type of the cache.
    pub kv: Kv,
    /// Positions of the sequence.
    pub capacity: u32,
    /// Places of the cache where positions take turns in them; none where each has its own.
    pub ring: Option<u32>,
    /// Keys, `[position][kv_head][head_dim]`.
    pub k_cache: B,
    /// Values, likewise.
    pub v_cache: B,
    /// Where the step stands.
    pub state: B,
    /// Where what each row of a prompt sees ends, if that is behind the row; none where all see what is before.
    pub ends: Option<B>,
    /// How few rows are spread.
    pub decode: DecodeChoice,
}

impl<B: Clone + PartialEq> Attention<B> {
    /// Runs that the keys of a row are split into at most.
    pub fn splits(&self) -> u32 {
        match (self.is_alone(), self.has_few_runs()) {
            (true, _) => 1,
            (_, true) => RUNS,
            _ => self.capacity.div_ceil(self.decode.tile).min(MAX_SPLITS),
        }
    }

    /// Whether a row never has more keys than one workgroup takes; sinks join with the runs.
    pub fn is_alone(&self) -> bool {
        self.sinks.is_none() && self.sight() <= self.decode.near
    }

    /// Whether a row never has more keys than make [`RUNS`] runs on a large device.
    fn has_few_runs(&self) -> bool {
        self.sight() <= self.decode.joined
    }

    /// Keys that a row sees at the most.
    fn sight(&self) -> u32 {
        self.capacity.min(if self.window == 0 { u32::MAX } else { self.window })
    }

    /// Bytes of the parts that `rows` rows leave.
    pub fn scratch(&self, rows: u32) -> u64 {
        if self.is_alone() {
            return 0;
        }
        u64::from(rows) * u64::from(self.heads) * u64::from(self.splits()) * u64::from(self.head_dim + 4) * 4
    }

    /// A launch whose shader imports attention/ring, with the places that positions have.
    fn placed(&self, mut launch: Launch<B>) -> Launch<B> {
        if let Some(ring) = self.ring {
            launch.variant = launch.variant.flag("RING");
            return launch.set("ring", ring);
        }
        launch
    }

    fn norms_values(&self) -> bool {
        self.head_norm.as_ref().is_some_and(|n| n.values)
    }

    /// One launch over some of the heads: ALL, QUERIES or KEYS, which are keys and values.
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
        let first = if flag == "QUERIES" { q } else { k };
        let grid = GridSpec::Tiled { x: count, per: 1, z: 1 };
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
        let mut launch = if flag == "QUERIES" { launch } else { self.placed(launch) };
        launch.variant = launch.variant.flag_if("VALUES", flag != "QUERIES" && self.norms_values());
        with_heads(launch, self.head_norm.as_ref(), self.rope.as_ref())
    }

    /// Norms and rotates q into `rotated` (`[row][heads * head_dim]`); the cache is another layer's.
    pub fn rope_queries(&self, q: &View<B>, rotated: &B) -> Launch<B> {
        self.rope_heads(q, q, q, rotated, "QUERIES", self.heads)
    }

    /// Norms and rotates q into `rotated` (`[row][heads * head_dim]`), k and v into the cache.
    pub fn rope_kv(&self, q: &View<B>, k: &View<B>, v: &View<B>, rotated: &B) -> Vec<Launch<B>> {
        let launch = |flag, count| self.rope_heads(q, k, v, rotated, flag, count);
        if self.fuses(q, k, v) {
            return vec![launch("ALL", self.heads + 2 * self.kv_heads)];
        }
        vec![launch("QUERIES", self.heads), launch("KEYS", 2 * self.kv_heads)]
    }

    /// Attention of many rows over the cache.
    pub fn prefill(&self, caps: &Caps, rotated: B, out: &View<B>) -> Launch<B> {
        let (variant, per) = many(caps, self.head_dim, self.kv == Kv::F32, self.kv == Kv::F16);
        let variant = self
            .kv
            .flags(variant)
            .flag_if("SINKS", self.sinks.is_some())
            .flag_if("ENDS", self.ends.is_some())
            .flag_if("SOFTCAP", self.softcap > 0.0);
        let grid = GridSpec::Tiled { x: 1, per, z: self.heads };
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
        self.placed(launch)
    }

    /// Whether [`Self::decode`] can take q, k and v from these views.
    pub fn fuses(&self, q: &View<B>, k: &View<B>, v: &View<B>) -> bool {
        q.buffer == k.buffer && k.buffer == v.buffer
    }

    /// Attention of one row over the cache, in runs of keys that a second launch joins; norms and rotates the heads and
    /// fills the cache on the way. q, k and v lie in one buffer.
    pub fn decode(&self, q: &View<B>, k: &View<B>, v: &View<B>, parts: B, out: &View<B>) -> Vec<Launch<B>> {
        let mut launch = self.split(q, self.decode.follows).set("k_offset", k.offset).set("v_offset", v.offset);
        launch.variant = launch.variant.flag("FUSED").flag_if("VALUES", self.norms_values());
        let launch = with_heads(launch, self.head_norm.as_ref(), self.rope.as_ref());
        self.joined(launch, parts, out, None)
    }

    /// The runs that the first launch of [`Self::decode`] leaves, where a product may join them in place of the second.
    pub fn runs(&self) -> Option<Runs> {
        let few = self.has_few_runs() && !self.is_alone() && self.sinks.is_none();
        // What a thread of the product takes is of one head.
        (few && self.head_dim.is_multiple_of(32)).then_some(Runs {
            head_dim: self.head_dim,
            window: self.sight(),
            tile: self.decode.tile,
        })
    }

    /// Attention of few rows over the cache, which holds their keys and values already, in runs as [`Self::decode`].
    pub fn few(&self, rotated: B, parts: B, out: &View<B>) -> Vec<Launch<B>> {
        let queries = View { buffer: rotated, offset: 0, stride: self.heads * self.head_dim };
        let launch = self.split(&queries, self.decode.follows).set("k_offset", 0).set("v_offset", 0);
        self.joined(with_heads(launch, None, None), parts, out, None)
    }

    /// Attention of few rows over `[first, end)` of the rows of another sequence, as `memory` has them for each row: keys and
    /// values lie in views of the caches, f32.
    pub fn look(&self, q: &View<B>, [k, v]: [&View<B>; 2], memory: B, parts: B, out: &View<B>) -> Vec<Launch<B>> {
        // How many keys another sequence has is not this one's to know.
        let launch = self.split(q, false).set("k_offset", k.offset).set("v_offset", v.offset);
        let launch = launch.set("k_stride", k.stride).set("v_stride", v.stride);
        let launch = with_heads(over_memory(launch, memory.clone()), None, None);
        self.joined(launch, parts, out, Some(memory))
    }

    /// A launch over runs of keys, and the one that joins what they leave in `parts`, unless there is one run only.
    fn joined(&self, mut launch: Launch<B>, parts: B, out: &View<B>, memory: Option<B>) -> Vec<Launch<B>> {
        if self.is_alone() {
            launch.variant = launch.variant.set("ALONE", 1);
            let launch = launch.bind("out", out.buffer.clone()).set("out_offset", out.offset);
            return vec![launch.set("out_stride", out.stride)];
        }
        let join = self.reduce(parts.clone(), out);
        let join = match memory {
            Some(memory) => over_memory(join, memory),
            None => join,
        };
        vec![launch.bind("out", parts), join]
    }

    /// A launch over the runs of keys, which are those of all keys that there may be, or of those that there are.
    fn split(&self, q: &View<B>, follows: bool) -> Launch<B> {
        let group = self.heads / self.kv_heads;
        // Of few workgroups each may have more threads, which wait for fewer keys and values. Threads share a key's columns
        // evenly, and more heads leave no room for what they add up.
        let even = self.head_dim <= 256 && self.head_dim.is_multiple_of(32);
        let threads = if self.has_few_runs() && even && self.decode.heads <= 2 { 256 } else { 128 };
        let variant = self
            .kv
            .flags(Variant::new(Kernel::Decode))
            .set("HEADS", self.decode.heads)
            .set("TILE", self.decode.tile)
            .set("D", if WIDTHS.contains(&self.head_dim) { self.head_dim } else { 0 })
            .set("WIDE", if self.head_dim > 256 { 128 } else { threads / 2 })
            .set("CUTS", self.cuts(threads));
        let variant = if threads == 128 { variant } else { variant.set("THREADS", threads) };
        let (x, most) = (self.kv_heads * group.div_ceil(self.decode.heads), self.splits());
        let grid = match follows {
            true => GridSpec::Runs { x, tile: self.decode.tile, most },
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
            .set("splits", self.splits())
            .set_f32("scale", self.scale)
            .set_f32("softcap", self.softcap);
        self.placed(launch)
    }

    /// Into how many parts threads cut what they add up over keys, when each has four columns.
    fn cuts(&self, threads: u32) -> u32 {
        let most = (4 * threads / self.head_dim).clamp(1, 32);
        if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 }
    }

    fn reduce(&self, parts: B, out: &View<B>) -> Launch<B> {
        let cuts = self.cuts(128);
        let most = if self.has_few_runs() { RUNS } else { MAX_SPLITS };
        let variant = Variant::new(Kernel::AttentionReduce)
            .flag_if("SINKS", self.sinks.is_some())
            .set("CUTS", cuts)
            // All runs that there may be, as far as there are registers for them.
            .set("LEAD", (most / cuts).clamp(2, 16))
            .set("TILE", self.decode.tile);
        let grid = GridSpec::PerRow { x: self.heads, y: 1, per: 1 };
        Launch::new(format!("{} reduce", self.label), variant, grid)
            .bind("parts", parts)
            .bind("out", out.buffer.clone())
            .bind("state", self.state.clone())
            .bind_opt("sinks", self.sinks.clone())
            .set("heads", self.heads)
            .set("head_dim", self.head_dim)
            .set("out_offset", out.offset)
            .set("out_stride", out.stride)
            .set("splits", self.splits())
            .set("window", self.window)
    }
}
