//! Matrix products `y = x Wᵀ`: GEMV for few rows of x (decode), tiled GEMM for many (prefill), for every weight layout.
//! Knows layouts and capabilities; where W's planes come from and what y is for is the plan's business.

use super::experts::{Buckets, Experts};
use super::runs::{RUNS, Runs};
pub use super::view::View;
use super::{GridSpec, Launch};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};
use crate::device::tuned::GemvPick;
use crate::format::layout::{Float, Form, Layout};

/// The planes of a weight matrix (or of a run of its rows).
#[derive(Debug, Clone)]
pub struct Weight<B> {
    /// How the planes are to be read.
    pub layout: Layout,
    /// Rows (outputs) in these planes.
    pub rows: u32,
    /// Columns (K).
    pub cols: u32,
    /// Codes or elements.
    pub q: B,
    /// Scales, where the layout has them.
    pub s: Option<B>,
}

/// The norm of x that a GEMV takes along.
#[derive(Debug, Clone)]
pub struct NormPrologue<B> {
    /// Its gain, `[K]` f32.
    pub gain: B,
    /// Added to the gain: 1 for Gemma, else 0.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// One product with all that is done to its input and output on the way.
#[derive(Debug, Clone)]
pub struct Matmul<B> {
    /// For dumps and profiles.
    pub label: String,
    /// The weights.
    pub weight: Weight<B>,
    /// The first row of the weights' planes that is used.
    pub row0: u32,
    /// Rows used, from `row0`.
    pub n: u32,
    /// The input, K columns.
    pub x: View<B>,
    /// Whether it is kept as halves: only on matrix units that take them, and of whole blocks of 32 columns.
    pub halves: bool,
    /// The output, `n` columns (of the gate alone when gated).
    pub out: View<B>,
    /// `[n]` (or all rows' when gated), added before the activation.
    pub bias: Option<B>,
    /// Added last.
    pub residual: Option<View<B>>,
    /// Whether it multiplies instead.
    pub times: bool,
    /// RMSNorm of x, GEMV only.
    pub norm: Option<NormPrologue<B>>,
    /// Whether x, or its norm, is rounded to 8 bits: only where [`Self::rounds`].
    pub round: bool,
    /// Rows from the gate to the up projection: `y = act(x Gᵀ) * (x Uᵀ)`.
    pub gated: Option<u32>,
    /// The activation's number in shaders/common/activation.wgsl; 0 for none.
    pub act: u32,
    /// Multiplies the product.
    pub scale: f32,
    /// `cap * tanh(y / cap)`; 0 for none.
    pub softcap: f32,
    /// Where the weights are those of experts: which of them a row takes.
    pub experts: Option<Experts<B>>,
    /// Where x is what attention left in runs: only where [`Self::takes_runs`].
    pub runs: Option<Runs>,
}

impl<B: Clone> Matmul<B> {
    /// `out = x Wᵀ` over all rows of the weights.
    pub fn plain(label: impl Into<String>, weight: Weight<B>, x: View<B>, out: View<B>) -> Self {
        let n = weight.rows;
        Self {
            label: label.into(),
            weight,
            row0: 0,
            n,
            x,
            halves: false,
            out,
            bias: None,
            residual: None,
            times: false,
            norm: None,
            round: false,
            gated: None,
            act: 0,
            scale: 1.0,
            softcap: 0.0,
            experts: None,
            runs: None,
        }
    }

    /// The launch for few rows of x (decode and verification), at most `rows`; the first alone when that is one.
    pub fn gemv(&self, caps: &Caps, rows: usize, state: B) -> Launch<B> {
        match BlocksChoice::of(caps, self, rows) {
            Some(choice) => self.gemv_blocks(rows, state, choice),
            None => self.gemv_as(caps, rows, state, GemvChoice::of(caps, self, rows)),
        }
    }

    /// Whether [`Self::gemv`] can round x: each workgroup has all of it at once then.
    pub fn rounds(&self, caps: &Caps, rows: usize) -> bool {
        let all = |choice: BlocksChoice| choice.team * 32 >= self.weight.cols;
        self.experts.is_none() && BlocksChoice::of(caps, self, rows).is_some_and(all)
    }

    /// Whether [`Self::gemv`] of one row can join what attention left in runs: a workgroup has all of x at once, and a thread no
    /// more of it than its registers hold.
    pub fn takes_runs(&self, caps: &Caps) -> bool {
        let few = |choice: BlocksChoice| choice.teams == 4 && choice.team * 32 >= self.weight.cols;
        self.norm.is_none() && !self.round && self.experts.is_none() && BlocksChoice::of(caps, self, 1).is_some_and(few)
    }

    /// The same going through whole blocks of weights, with a choice of the caller: for tuning and tests.
    pub fn gemv_blocks(&self, rows: usize, state: B, choice: BlocksChoice) -> Launch<B> {
        let variant = weight_flags(self.variant(Kernel::GemvBlocks), self.weight.layout)
            .flag("SUBGROUPS")
            .flag_if("NORM", self.norm.is_some())
            .flag_if("ROUND", self.round)
            .set("TEAM", choice.team)
            .set("TEAMS", choice.teams)
            .set("COLS", choice.cols)
            .set("DOT", choice.dot);
        let x = self.n.div_ceil(choice.share * choice.teams);
        self.few(variant, [x, 1], rows, choice.cols, state).set("share", choice.share)
    }

    /// The same with a choice of the caller: for tuning and tests.
    pub fn gemv_as(&self, caps: &Caps, rows: usize, state: B, choice: GemvChoice) -> Launch<B> {
        let variant = weight_flags(self.variant(Kernel::Gemv), self.weight.layout)
            .flag_if("SUBGROUPS", caps.subgroups)
            .flag_if("NORM", self.norm.is_some())
            .set("WG", choice.wg)
            .set("ROWS", choice.rows)
            .set("COLS", choice.cols)
            .set("UNROLL", choice.unroll);
        let [x, y, _] = super::fold(u64::from(self.n.div_ceil(choice.rows / self.rows_each())));
        self.few(variant, [x, y], rows, choice.cols, state)
    }

    /// A launch of `cols` of at most `rows` rows of x at a time.
    fn few(&self, variant: Variant, [x, y]: [u32; 2], rows: usize, cols: u32, state: B) -> Launch<B> {
        let grid = match self.each_alone() {
            1 if rows == 1 => GridSpec::Exact([x, y, 1]),
            1 => GridSpec::PerRow { x, y, per: cols },
            each => GridSpec::Picks { x, y, each },
        };
        let mut launch = self
            .common(Launch::new(self.label.clone(), variant, grid))
            .norm(self.norm.as_ref())
            .bind_opt("state", (cols > 1 || self.runs.is_some()).then_some(state))
            .set("x_stride", self.x.stride);
        let launch = match self.runs {
            Some(Runs { head_dim, window, tile }) => {
                launch.variant = launch.variant.set("RUNS", RUNS);
                launch.set("head_dim", head_dim).set("window", window).set("tile", tile)
            }
            None => launch,
        };
        match &self.experts {
            Some(experts) => experts.few(launch),
            None => launch,
        }
    }

    /// Picks of a row that are each a product of its own.
    fn each_alone(&self) -> u32 {
        self.experts.as_ref().map_or(1, |e| if e.mixed { 1 } else { e.each })
    }

    /// What a sum over the picks of a row multiplies K by.
    fn each_mixed(&self) -> u32 {
        self.experts.as_ref().map_or(1, |e| if e.mixed { e.each } else { 1 })
    }

    /// The launch for many rows of x whose picks are sorted: each tile has one expert's. Rows of `out` are picks; those of x
    /// too where `own` says so.
    pub fn grouped(&self, buckets: &Buckets<B>, experts: &Experts<B>, own: bool, choice: GemmChoice) -> Launch<B> {
        let GemmChoice { bn, unroll, .. } = choice;
        let product = weight_flags(self.variant(Kernel::Gemm), self.weight.layout);
        let product = product.set("BM", buckets.tile_rows).set("BN", bn).set("UNROLL", unroll);
        let grid = buckets.grid(self.tiles(bn));
        let launch = self.common(Launch::new(self.label.clone(), product, grid)).set("x_stride", self.x.stride);
        experts.many(launch, buckets, own)
    }

    /// The launches for as many rows of x as the step has; `parts` has [`Self::parts_bytes`] of the same choice.
    pub fn gemm(&self, state: B, parts: B, choice: GemmChoice) -> [Launch<B>; 2] {
        let GemmChoice { bm, bn, unroll, target, most } = choice;
        let x = self.tiles(bn);
        let product = weight_flags(self.variant(Kernel::Gemm), self.weight.layout);
        let product = product.set("BM", bm).set("BN", bn).set("UNROLL", unroll);
        let grid = GridSpec::Split { x, per: bm, target, most };
        let product = self.common(Launch::new(self.label.clone(), product, grid)).set("x_stride", self.x.stride);
        let join = self.join(x, [bm, bn], [target, most], false);
        [product, join].map(|l| l.bind("parts", parts.clone()).bind("state", state.clone()))
    }

    /// What adds the parts of a product of `x` columns of tiles, cut as [`GridSpec::Split`] says, and finishes them.
    pub(super) fn join(&self, x: u32, [bm, bn]: [u32; 2], [target, most]: [u32; 2], always: bool) -> Launch<B> {
        let grid = GridSpec::Join { groups: self.n.div_ceil(256), x, per: bm, target, most, always };
        self.joining(x, [bm, bn], grid).set("target_groups", target).set("max_splits", most)
    }

    /// The same for parts of any grid.
    pub(super) fn joining(&self, x: u32, [bm, bn]: [u32; 2], grid: GridSpec) -> Launch<B> {
        self.ending(Launch::new(format!("{} join", self.label), self.variant(Kernel::GemmJoin), grid))
            .set("tiles", x)
            .set("tile_rows", bm)
            .set("tile_cols", bn)
    }

    /// Tiles of `bn` rows of W along the columns.
    pub(super) fn tiles(&self, bn: u32) -> u32 {
        self.n.div_ceil(bn / self.rows_each())
    }

    /// Bytes of the parts that workgroups leave which share a tile, for up to `rows` rows of x.
    pub fn parts_bytes(&self, rows: u32, choice: GemmChoice) -> u64 {
        let x = self.tiles(choice.bn);
        let tile = u64::from(choice.bm) * u64::from(choice.bn) * 4;
        let groups = |y: u32| match super::splits(x * y, choice.target, choice.most) {
            1 => 0,
            splits => u64::from(x * y * splits),
        };
        (1..=rows.div_ceil(choice.bm)).map(groups).max().unwrap_or(0) * tile
    }

    fn common(&self, launch: Launch<B>) -> Launch<B> {
        self.sources(self.ending(launch))
    }

    /// What a product reads.
    pub(super) fn sources(&self, launch: Launch<B>) -> Launch<B> {
        let w = &self.weight;
        launch
            .bind("x", self.x.buffer.clone())
            .bind("w_q", w.q.clone())
            .bind_opt("w_s", w.s.clone())
            .set("k", w.cols)
            .set("k_blocks", w.layout.padded_cols(w.cols as usize) as u32 / 32)
            .set("groups", groups(w.layout, w.cols))
            .set("row0", self.row0)
            .set("x_offset", self.x.offset)
    }

    /// A kernel with the conditions of shaders/matmul/finish.wgsl.
    fn variant(&self, kernel: Kernel) -> Variant {
        Variant::new(kernel)
            .flag_if("GATED", self.gated.is_some())
            .flag_if("BIAS", self.bias.is_some())
            .flag_if("RESIDUAL", self.residual.is_some())
            .flag_if("SOFTCAP", self.softcap > 0.0)
            .flag_if("EXPERTS", self.experts.is_some())
            .flag_if("MIXED", self.experts.as_ref().is_some_and(|e| e.mixed))
            .flag_if("CLAMPED", self.experts.as_ref().is_some_and(|e| e.clamp.is_some()))
            .set("ACT", self.act)
    }

    /// Rows of W for an output.
    fn rows_each(&self) -> u32 {
        if self.gated.is_some() { 2 } else { 1 }
    }

    /// What shaders/matmul/finish.wgsl takes.
    fn ending(&self, launch: Launch<B>) -> Launch<B> {
        let residual = self.residual.as_ref();
        launch
            .bind("out", self.out.buffer.clone())
            .bind_opt("bias", self.bias.clone())
            .bind_opt("residual", residual.map(|r| r.buffer.clone()))
            .set("n", self.n)
            .set("out_offset", self.out.offset)
            .set("out_stride", self.out.stride)
            .set("res_offset", residual.map_or(0, |r| r.offset))
            .set("res_stride", residual.map_or(0, |r| r.stride))
            .set("res_times", self.times.into())
            .set("up_row", self.gated.unwrap_or(0))
            .set_f32("scale", self.scale)
            .set_f32("softcap", self.softcap)
    }
}

/// Pairs per row of plane 1.
pub fn groups(layout: Layout, cols: u32) -> u32 {
    match layout {
        Layout::Affine { group, .. } => (layout.padded_cols(cols as usize) as u32).div_ceil(u32::from(group)),
        _ => layout.padded_cols(cols as usize) as u32 / 256,
    }
}

/// The conditions and numbers that make a kernel read a layout.
pub fn weight_flags(variant: Variant, layout: Layout) -> Variant {
    match layout {
        Layout::Dense(Float::F32) => variant.flag("W_F32"),
        Layout::Dense(Float::F16) => variant.flag("W_F16"),
        Layout::Dense(Float::BF16) => variant.flag("W_BF16"),
        Layout::Affine { bits, group, form, scale } => variant
            .flag("W_AFFINE")
            .set("BITS", bits.into())
            .set("GROUP", group.into())
            .set("SCALE", [Float::F16, Float::BF16, Float::F32].iter().position(|f| *f == scale).unwrap_or(0) as u32)
            .set("ZERO", u32::from(form == Form::Zero)),
        Layout::Mxfp4 => variant.flag("W_MXFP4"),
        Layout::Ternary => variant.flag("W_TERNARY").set("BITS", 2),
        Layout::Q4K => variant.flag("W_Q4K"),
        Layout::Q6K => variant.flag("W_Q6K"),
    }
}

/// How a GEMM is cut into tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmChoice {
    /// Rows of x of a tile.
    pub bm: u32,
    /// Rows of W of a tile.
    pub bn: u32,
    /// Elements of K, of 16, that the text has one after another.
    pub unroll: u32,
    /// Workgroups that fill a device: where tiles are fewer, several share one.
    pub target: u32,
    /// The most that share one.
    pub most: u32,
}

impl GemmChoice {
    /// Rows of x that are a short prompt, or a turn of a chat: lower tiles have the fewer rows to spare.
    pub const SHORT: usize = 32;
    /// Rows of x that take a device without a GPU longer than a text takes to compile.
    const LONG: usize = 1024;

    /// What is known to be good for up to `rows` rows of x.
    pub fn of<B>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Self {
        let known = if rows <= Self::SHORT { 32 } else { caps.measured(Kernel::Gemm, "BM", 64) };
        let bm = caps.choose(Kernel::Gemm, "BM", known);
        // Without a GPU columns of a tile that nobody wants take as long as the others; where rows are few, all take less than the
        // text of narrow tiles, in which a thread brings more, takes longer to compile.
        let narrow = caps.software && m.n <= 64 && rows >= Self::LONG;
        let bn = caps.choose(Kernel::Gemm, "BN", if narrow { 64 } else { 128 });
        // Nor is a text that is written out compiled in the time that it saves.
        let unroll = caps.choose(Kernel::Gemm, "UNROLL", if caps.software { 1 } else { 16 });
        // A share of K shorter than this costs more to join than it saves.
        let most = (m.weight.cols / 128).clamp(1, 16);
        // Somewhat more than fill it: a last round of workgroups that fills it by half costs as much as a full one.
        Self { bm, bn, unroll, target: caps.measured(Kernel::Gemm, "FILL", caps.full_load() * 9 / 8), most }
    }
}

/// How a GEMV is spread over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvChoice {
    /// Threads of a workgroup, which share its rows of W.
    pub wg: u32,
    /// Rows of W that a workgroup takes.
    pub rows: u32,
    /// Rows of x that it takes.
    pub cols: u32,
    /// Units of eight elements that a thread has under way.
    pub unroll: u32,
}

impl GemvChoice {
    /// What is known to be good for a product of `x_rows` rows of x.
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, x_rows: usize) -> Self {
        let alone = m.experts.is_some();
        let cols = if alone { 1 } else { (x_rows.max(1) as u32).next_power_of_two().min(4) };
        let outputs = m.n * m.rows_each() * m.each_alone();
        let units = m.weight.cols.div_ceil(8) * m.each_mixed();
        let narrow = !matches!(m.weight.layout, Layout::Dense(_));
        // Few rows of W want all threads on each of them. Many can give a thread more rows, which reuse x from
        // registers; narrow weights gain the most, as they leave the most loads of x for a byte.
        let (rows, threads) = match outputs {
            0..2048 if cols == 4 => (4, units / 4),
            _ if cols == 4 => (4, units / 16),
            0..16_384 => (2, units),
            16_384..65_536 => (4, units / 4),
            _ if narrow && cols == 1 => (8, units / 4),
            _ => (4, units / 4),
        };
        // Without subgroups each thread leaves its sums in workgroup memory, those of many rows of x too much of it.
        let room = caps.max_workgroup_storage / (4 * cols * (rows + 1));
        let most = if caps.subgroups { 256 } else { (1 << room.max(32).ilog2()).min(256) };
        let wg = threads.next_power_of_two().clamp(32, most);
        // Loads of a thread on their way at once: what the larger groups have together, the small ones need each.
        let unroll = if wg == 32 && cols <= 2 && rows <= 4 { 2 } else { 1 };
        let pick = |name: &str, own: u32| caps.choose(Kernel::Gemv, name, own);
        let cols = if alone { 1 } else { pick("COLS", cols) };
        Self { wg: pick("WG", wg), rows: pick("ROWS", rows), cols, unroll: pick("UNROLL", unroll) }
    }
}

impl<B: Clone> Launch<B> {
    /// The norm of x that a product takes along.
    fn norm(self, norm: Option<&NormPrologue<B>>) -> Self {
        self.bind_opt("norm", norm.map(|n| n.gain.clone()))
            .set_f32("eps", norm.map_or(0.0, |n| n.eps))
            .set_f32("norm_offset", norm.map_or(0.0, |n| n.offset))
    }
}

/// How a product of one row of x with whole blocks of weights is spread over threads (shaders/matmul/gemv_blocks.wgsl).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlocksChoice {
    /// Threads that have all of K between them, a block each, in turns where K is longer.
    pub team: u32,
    /// Teams of a workgroup.
    pub teams: u32,
    /// Outputs of a team.
    pub share: u32,
    /// Rows of x that a workgroup takes.
    pub cols: u32,
    /// 1 to multiply packed bytes.
    pub dot: u32,
}

impl BlocksChoice {
    /// Numbers of workgroup memory for the sums: SUMS of the shader.
    const SUMS: u32 = 1024;
    /// The largest team that variants.toml declares.
    const LARGEST: u32 = 512;
    /// Rows of W that a thread has under way.
    pub const ROWS: u32 = 4;

    /// What is known to be good for a product of `rows` rows of x, or nothing where blocks of weights do not pay or cannot
    /// be had.
    pub fn of<B: Clone>(caps: &Caps, m: &Matmul<B>, rows: usize) -> Option<Self> {
        match m.weight.layout {
            Layout::Affine { bits: 4 | 8, group, .. } if group >= 32 => {}
            Layout::Q4K | Layout::Mxfp4 | Layout::Ternary => {}
            _ => return None,
        }
        let forces = |kernel| caps.force.is_some_and(|f| f.kernel == kernel);
        let forced = forces(Kernel::GemvBlocks);
        let each = m.rows_each();
        let dot = caps.choose(Kernel::GemvBlocks, "DOT", caps.packs(m.weight.layout).into());
        // Few outputs keep no device busy with whole rows for a team, unless each is soon done.
        let fewest = if dot == 1 { 512 } else { 2048 };
        // Several rows of x as floats are more than a thread's registers hold.
        let alone = m.experts.is_some();
        let few = m.n * each * m.each_alone() < fewest
            || (rows > 1 && dot == 0 && !alone)
            || caps.tuned(m.weight.layout) == Some(GemvPick::Rows);
        if !caps.subgroups || caps.subgroup_size.0 < 4 || forces(Kernel::Gemv) || (few && !forced) {
            return None;
        }
        let unit = caps.subgroup_size.1.max(32);
        let blocks = m.weight.layout.padded_cols(m.weight.cols as usize) as u32 / 32 * m.each_mixed();
        let memory = caps.max_workgroup_storage.saturating_sub(4 * Self::SUMS + 1024) / 72;
        let most = caps.max_invocations.min(memory).min(Self::LARGEST) / unit * unit;
        if most == 0 || (blocks * 2 < unit && !forced) {
            return None;
        }
        let team = blocks.div_ceil(blocks.div_ceil(most)).next_multiple_of(unit);
        // Teams that read x together; more threads wait for one another too long.
        let fits = |teams: u32| if team * teams <= 320.min(most) { teams } else { 1 };
        let pick = |name: &str, own: u32| caps.choose(Kernel::GemvBlocks, name, own);
        let teams = fits(pick("TEAMS", fits(4).max(fits(2))));
        // As many workgroups as run at once: what each has to read of x comes once then, and none is left for a second turn.
        // A team by itself holds more of x on its way, which takes registers, and so do several rows of x.
        let cols = if alone { 1 } else { pick("COLS", if rows > 1 { 2 } else { 1 }) };
        let threads = match (cols, teams) {
            (2, _) => 256,
            (_, 1) => 512,
            _ => 768,
        };
        let groups = (caps.full_load() / 8 * (threads / (team * teams)).max(1) / m.each_alone()).max(1);
        let least = Self::ROWS / each;
        let room = Self::SUMS / each / cols / (team * teams / caps.subgroup_size.0) / least * least;
        let turns = m.n.div_ceil(groups * teams * room);
        let share = m.n.div_ceil(groups * teams * turns).next_multiple_of(least);
        Some(Self { team, teams, share, cols, dot })
    }
}
