//! Matmul `y = x Wᵀ` for every weight layout: GEMV for few rows of x (decode), tiled GEMM for many
//! (prefill).

mod packed;
mod prefill;
mod tiling;

use super::experts::{ExpertTiles, Experts};
use super::kv_splits::{KvSplits, MAX_FUSED_SPLITS};
pub use super::view::View;
use super::{GridSpec, Launch, SOFTWARE_LANES};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};
use crate::format::layout::{AffineForm, Float, WeightLayout};
pub use packed::{OutputBuffers, OutputBytes, QuantizeInputs, QuantizedRows, divide_by_rms};
pub use tiling::{GemmTiling, GemvBlocksTiling, GemvTiling};

/// Columns of a workgroup of shaders/matmul/splitk_reduce.wgsl.
const REDUCED_COLUMNS: u32 = 256;

/// The planes of a weight matrix, or of a shard of its rows.
#[derive(Debug, Clone)]
pub struct WeightPlanes<B> {
    /// Weight layout of the planes.
    pub layout: WeightLayout,
    /// Rows (outputs) of these planes.
    pub rows: u32,
    /// Columns (K).
    pub cols: u32,
    /// Codes or elements.
    pub q: B,
    /// Scales, if the layout has them.
    pub s: Option<B>,
}

impl<B> WeightPlanes<B> {
    /// Blocks of 32 columns per row.
    pub fn k_blocks(&self) -> u32 {
        self.layout.padded_cols(self.cols as usize) as u32 / 32
    }
}

/// RMSNorm of x fused into a GEMV.
#[derive(Debug, Clone)]
pub struct NormPrologue<B> {
    /// Gain, `[K]` f32.
    pub gain: B,
    /// Added to the gain: 1 for Gemma, else 0.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// One matmul with its fused prologue and epilogue.
#[derive(Debug, Clone)]
pub struct Matmul<B> {
    /// Label for plan dumps and profiles.
    pub label: String,
    /// Weight planes.
    pub weight: WeightPlanes<B>,
    /// First row of the weight planes to use.
    pub row0: u32,
    /// Rows to use, from `row0`.
    pub n: u32,
    /// Input, K columns.
    pub x: View<B>,
    /// Whether x is stored as f16. Requires subgroup matrices of f16 and a multiple of 32 columns.
    pub f16_input: bool,
    /// Output, `n` columns (the gate's columns if gated).
    pub out: View<B>,
    /// `[n]` (all rows if gated), added before the activation.
    pub bias: Option<B>,
    /// Added last.
    pub residual: Option<View<B>>,
    /// Whether `residual` multiplies the result instead.
    pub multiply: bool,
    /// RMSNorm of x; GEMV only.
    pub norm: Option<NormPrologue<B>>,
    /// Whether x, or its norm, is quantized to 8 bits. Requires [`Self::rounds`].
    pub quantize: bool,
    /// Whether a GEMV of several rows may quantize x to 8 bits, as prompts do.
    pub batch: bool,
    /// Row offset from the gate to the up projection: `y = act(x Gᵀ) * (x Uᵀ)`.
    pub gated: Option<u32>,
    /// Activation code of shaders/common/activation.wgsl; 0 for none.
    pub act: u32,
    /// The activation of the kernels that matmuls of a prompt with x in 8 bits share: parameters say
    /// whether a matmul has it, a gate, a bias and a residual. Without, a kernel has what this matmul
    /// has.
    pub shared_act: Option<u32>,
    /// Multiplies the matmul result.
    pub scale: f32,
    /// `cap * tanh(y / cap)`; 0 for none.
    pub softcap: f32,
    /// Selected experts of each row, if the weights are stacked experts.
    pub experts: Option<Experts<B>>,
    /// KV splits to reduce, if x holds partial attention results. Requires [`Self::reduces_kv_splits`].
    pub kv_splits: Option<KvSplits>,
}

impl<B: Clone> Matmul<B> {
    /// Creates `out = x Wᵀ` over all weight rows.
    pub fn plain(
        label: impl Into<String>,
        weight: WeightPlanes<B>,
        x: View<B>,
        out: View<B>,
    ) -> Self {
        let n = weight.rows;
        Self {
            label: label.into(),
            weight,
            row0: 0,
            n,
            x,
            f16_input: false,
            out,
            bias: None,
            residual: None,
            multiply: false,
            norm: None,
            quantize: false,
            batch: false,
            gated: None,
            act: 0,
            shared_act: None,
            scale: 1.0,
            softcap: 0.0,
            experts: None,
            kv_splits: None,
        }
    }

    /// Returns the GEMV launch for at most `rows` rows of x (decode and verification). With `rows`
    /// = 1 it computes the first row only.
    pub fn gemv(&self, caps: &Caps, rows: usize, state: B) -> Launch<B> {
        match GemvBlocksTiling::of(caps, self, rows) {
            Some(choice) => self.gemv_blocks_with(rows, state, choice),
            None => self.gemv_with(caps, rows, state, GemvTiling::of(caps, self, rows)),
        }
    }

    /// Whether [`Self::gemv`] can quantize x. Each workgroup must hold all of x at once.
    pub fn quantizes_input(&self, caps: &Caps, rows: usize) -> bool {
        self.experts.is_none()
            && GemvBlocksTiling::of(caps, self, rows)
                .is_some_and(|choice: GemvBlocksTiling| choice.row_threads * 32 >= self.weight.cols)
    }

    /// Whether a single-row [`Self::gemv`] can reduce KV splits. A workgroup must hold all of x at
    /// once, and a thread's share must fit its registers.
    pub fn reduces_kv_splits(&self, caps: &Caps) -> bool {
        self.norm.is_none()
            && !self.quantize
            && self.experts.is_none()
            && GemvBlocksTiling::of(caps, self, 1).is_some_and(|choice: GemvBlocksTiling| {
                choice.row_groups == 4 && choice.row_threads * 32 >= self.weight.cols
            })
    }

    /// Returns the block GEMV with an explicit tiling, for tuning and tests.
    pub fn gemv_blocks_with(&self, rows: usize, state: B, choice: GemvBlocksTiling) -> Launch<B> {
        let variant = weight_flags(self.variant(Kernel::GemvBlocks), self.weight.layout)
            .flag("SUBGROUPS")
            .flag_if("NORM", self.norm.is_some())
            .flag_if("ROUND", self.quantize)
            .set("ROW_THREADS", choice.row_threads)
            .set("ROW_GROUPS", choice.row_groups)
            .set("COLS", choice.cols)
            .set("DOT", choice.packed_dot)
            .set("X_BITS", choice.x_bits)
            .set("SUMS", choice.sums);
        let x = self.n.div_ceil(choice.outputs * choice.row_groups);
        self.rows_launch(variant, [x, 1], rows, choice.cols, state)
            .set("share", choice.outputs)
    }

    /// Returns the GEMV with an explicit tiling, for tuning and tests.
    pub fn gemv_with(&self, caps: &Caps, rows: usize, state: B, choice: GemvTiling) -> Launch<B> {
        let variant = weight_flags(self.variant(Kernel::Gemv), self.weight.layout)
            .flag_if("SUBGROUPS", caps.subgroups)
            .flag_if("NORM", self.norm.is_some())
            .set("WG", choice.wg)
            .set("ROWS", choice.rows)
            .set("COLS", choice.cols)
            .set("UNROLL", choice.unroll);
        let [x, y, _] = super::fold(u64::from(
            self.n.div_ceil(choice.rows / self.rows_per_output()),
        ));
        self.rows_launch(variant, [x, y], rows, choice.cols, state)
    }

    /// Returns a launch that takes `cols` of at most `rows` rows of x per workgroup.
    fn rows_launch(
        &self,
        variant: Variant,
        [x, y]: [u32; 2],
        rows: usize,
        cols: u32,
        state: B,
    ) -> Launch<B> {
        let grid = match self.experts_per_row() {
            1 if rows == 1 => GridSpec::Exact([x, y, 1]),
            1 => GridSpec::PerRow { x, y, per: cols },
            each => GridSpec::PerExpert { x, y, top_k: each },
        };
        let mut launch = self
            .common(Launch::new(self.label.clone(), variant, grid))
            .norm(self.norm.as_ref())
            .bind_opt(
                "state",
                (cols > 1 || self.kv_splits.is_some()).then_some(state),
            )
            .set("x_stride", self.x.stride);
        let launch = match self.kv_splits {
            Some(KvSplits {
                head_dim,
                window,
                tile,
            }) => {
                launch.variant = launch.variant.set("KV_SPLITS", MAX_FUSED_SPLITS);
                launch
                    .set("head_dim", head_dim)
                    .set("window", window)
                    .set("tile", tile)
            }
            None => launch,
        };
        match &self.experts {
            Some(experts) => experts.bind_decode(launch),
            None => launch,
        }
    }

    /// Selected experts per row that are computed as separate outputs.
    fn experts_per_row(&self) -> u32 {
        self.experts
            .as_ref()
            .map_or(1, |e| if e.sum_experts { 1 } else { e.top_k })
    }

    /// Factor on K when a row's selected experts are summed.
    fn experts_summed(&self) -> u32 {
        self.experts
            .as_ref()
            .map_or(1, |e| if e.sum_experts { e.top_k } else { 1 })
    }

    /// Returns the GEMM launch over row-expert pairs sorted by expert; each tile has one expert.
    /// Rows of `out` are pairs, and so are rows of x if `own`.
    pub fn gemm_experts(
        &self,
        buckets: &ExpertTiles<B>,
        experts: &Experts<B>,
        own: bool,
        choice: GemmTiling,
    ) -> Launch<B> {
        let product = self.gemm_variant(GemmTiling {
            bm: buckets.tile_rows,
            ..choice
        });
        let grid = buckets.grid(self.tiles(choice.bn));
        let launch = self
            .common(Launch::new(self.label.clone(), product, grid))
            .set("x_stride", self.x.stride);
        experts.bind_prefill(launch, buckets, own)
    }

    /// Returns the GEMM launches for all rows of the step. `parts` has [`Self::parts_bytes`] of the
    /// same tiling.
    pub fn gemm(&self, state: B, parts: B, choice: GemmTiling) -> Vec<Launch<B>> {
        let GemmTiling {
            bm,
            bn,
            target,
            max_per_tile: most,
            ..
        } = choice;
        let x = self.tiles(bn);
        let product = self.gemm_variant(choice);
        let grid = GridSpec::SplitK {
            x,
            per: bm,
            target,
            max: most,
        };
        let product = self
            .common(Launch::new(self.label.clone(), product, grid))
            .set("x_stride", self.x.stride);
        let product = product.bind("state", state.clone());
        if choice.kernel == Kernel::GemmRows {
            return vec![product];
        }
        let join = self.splitk_reduce(x, [bm, bn], [target, most], false);
        vec![
            product.bind("parts", parts.clone()),
            join.bind("parts", parts).bind("state", state),
        ]
    }

    fn gemm_variant(&self, choice: GemmTiling) -> Variant {
        let variant = weight_flags(self.variant(choice.kernel), self.weight.layout);
        let variant = variant.set("BM", choice.bm);
        if choice.kernel == Kernel::GemmRows {
            return variant
                .flag_if("SUBGROUPS", choice.lanes > 0)
                .set("THREADS", SOFTWARE_LANES)
                .set("BATCH", if choice.lanes > 0 { choice.lanes } else { 4 })
                .set("BATCHES", if self.is_small() { 1 } else { 2 })
                .set("COLS", choice.bn / SOFTWARE_LANES / self.rows_per_output());
        }
        variant.set("BN", choice.bn).set("UNROLL", choice.unroll)
    }

    /// Returns the launch that sums split-K partials of `x` tile columns (see [`GridSpec::SplitK`])
    /// and applies the epilogue.
    pub(super) fn splitk_reduce(
        &self,
        x: u32,
        [bm, bn]: [u32; 2],
        [target, most]: [u32; 2],
        always: bool,
    ) -> Launch<B> {
        let grid = GridSpec::SplitKReduce {
            groups: self.n.div_ceil(REDUCED_COLUMNS),
            x,
            per: bm,
            target,
            max: most,
            always,
        };
        self.splitk_reduce_grid(x, [bm, bn], grid)
            .set("target_groups", target)
            .set("max_splits", most)
    }

    /// Returns the same reduction for any grid.
    pub(super) fn splitk_reduce_grid(
        &self,
        x: u32,
        [bm, bn]: [u32; 2],
        grid: GridSpec,
    ) -> Launch<B> {
        self.bind_epilogue(Launch::new(
            format!("{} reduce", self.label),
            self.variant(Kernel::SplitkReduce),
            grid,
        ))
        .set("tiles", x)
        .set("tile_rows", bm)
        .set("tile_cols", bn)
    }

    /// Tiles of `bn` weight rows along the columns.
    pub(super) fn tiles(&self, bn: u32) -> u32 {
        self.n.div_ceil(bn / self.rows_per_output())
    }

    /// Bytes of split-K partials for up to `rows` rows of x.
    pub fn parts_bytes(&self, rows: u32, choice: GemmTiling) -> u64 {
        let x = self.tiles(choice.bn);
        let tile = u64::from(choice.bm) * u64::from(choice.bn) * 4;

        (1..=rows.div_ceil(choice.bm))
            .map(|y: u32| {
                match super::workgroups_per_tile(x * y, choice.target, choice.max_per_tile) {
                    1 if !self.always_reduces(choice) => 0,
                    splits => u64::from(x * y * splits),
                }
            })
            .max()
            .unwrap_or(0)
            * tile
    }

    /// Whether unshared tiles leave partial sums too: the packed GEMM adds no residual, so that products with and without
    /// one are the same kernel.
    fn always_reduces(&self, choice: GemmTiling) -> bool {
        choice.kernel == Kernel::GemmPacked && self.residual.is_some()
    }

    fn common(&self, launch: Launch<B>) -> Launch<B> {
        self.bind_inputs(self.bind_epilogue(launch))
    }

    /// Binds the inputs of a matmul.
    pub(super) fn bind_inputs(&self, launch: Launch<B>) -> Launch<B> {
        let w = &self.weight;
        self.bind_weights(launch)
            .bind("x", self.x.buffer.clone())
            .set("k", w.cols)
            .set("k_blocks", w.k_blocks())
            .set("x_offset", self.x.offset)
    }

    /// Binds the weight planes.
    fn bind_weights(&self, launch: Launch<B>) -> Launch<B> {
        let w = &self.weight;
        launch
            .bind("w_q", w.q.clone())
            .bind_opt("w_s", w.s.clone())
            .set("groups", scale_pairs(w.layout, w.cols))
            .set("row0", self.row0)
    }

    /// Returns a kernel variant with the flags of shaders/matmul/epilogue.wgsl.
    fn variant(&self, kernel: Kernel) -> Variant {
        let variant = Variant::new(kernel).flag_if("SOFTCAP", self.softcap > 0.0);
        let can_share = matches!(kernel, Kernel::GemmPacked | Kernel::SplitkReduce);
        if let Some(act) = self
            .shared_act
            .filter(|_| can_share && self.experts.is_none())
        {
            return variant
                .flag("OPTIONAL")
                .flag("GATED")
                .flag("BIAS")
                .flag_if("RESIDUAL", kernel == Kernel::SplitkReduce)
                .set("ACT", if self.act > 0 { self.act } else { act });
        }
        variant
            .flag_if("GATED", self.gated.is_some())
            .flag_if("BIAS", self.bias.is_some())
            .flag_if("RESIDUAL", self.residual.is_some())
            .flag_if("EXPERTS", self.experts.is_some())
            .flag_if(
                "SUM_EXPERTS",
                self.experts.as_ref().is_some_and(|e| e.sum_experts),
            )
            .flag_if(
                "CLAMPED",
                self.experts.as_ref().is_some_and(|e| e.clamp.is_some()),
            )
            .set("ACT", self.act)
    }

    /// What the matmul has of an epilogue: bits of shaders/matmul/epilogue.wgsl.
    fn epilogue_parts(&self) -> u32 {
        let parts = [
            self.act > 0,
            self.gated.is_some(),
            self.bias.is_some(),
            self.residual.is_some(),
        ];
        (0..)
            .zip(parts)
            .map(|(bit, has)| u32::from(has) << bit)
            .sum()
    }

    /// Weight rows per output.
    fn rows_per_output(&self) -> u32 {
        if self.gated.is_some() { 2 } else { 1 }
    }

    /// Binds the inputs of shaders/matmul/epilogue.wgsl.
    fn bind_epilogue(&self, mut launch: Launch<B>) -> Launch<B> {
        let residual = self.residual.as_ref();
        let flags = launch.variant.flags.clone();
        let is_optional = flags.contains("OPTIONAL");
        if is_optional {
            launch = launch.set("has", self.epilogue_parts());
        }
        // The kernel has a binding for what the matmul lacks.
        let or_unread = |flag: &str, buffer: Option<B>| {
            let unread = is_optional && flags.contains(flag);
            buffer.or_else(|| unread.then(|| self.x.buffer.clone()))
        };
        launch
            .bind("out", self.out.buffer.clone())
            .bind_opt("bias", or_unread("BIAS", self.bias.clone()))
            .bind_opt(
                "residual",
                or_unread("RESIDUAL", residual.map(|r| r.buffer.clone())),
            )
            .set("n", self.n)
            .set("out_offset", self.out.offset)
            .set("out_stride", self.out.stride)
            .set("res_offset", residual.map_or(0, |r| r.offset))
            .set("res_stride", residual.map_or(0, |r| r.stride))
            .set("res_times", self.multiply.into())
            .set("up_row", self.gated.unwrap_or(0))
            .set_f32("scale", self.scale)
            .set_f32("softcap", self.softcap)
    }
}

/// Pairs per row of plane 1.
pub fn scale_pairs(layout: WeightLayout, cols: u32) -> u32 {
    match layout {
        WeightLayout::Affine { group, .. } => {
            (layout.padded_cols(cols as usize) as u32).div_ceil(u32::from(group))
        }
        _ => layout.padded_cols(cols as usize) as u32 / 256,
    }
}

/// Adds the flags and constants that make a kernel read a weight layout.
pub fn weight_flags<K>(variant: Variant<K>, layout: WeightLayout) -> Variant<K> {
    match layout {
        WeightLayout::Dense(Float::F32) => variant.flag("W_F32"),
        WeightLayout::Dense(Float::F16) => variant.flag("W_F16"),
        WeightLayout::Dense(Float::BF16) => variant.flag("W_BF16"),
        WeightLayout::Affine {
            bits,
            group,
            form,
            scale,
        } => variant
            .flag("W_AFFINE")
            .set("BITS", bits.into())
            .set("GROUP", group.into())
            .set(
                "SCALE",
                [Float::F16, Float::BF16, Float::F32]
                    .iter()
                    .position(|f| *f == scale)
                    .unwrap_or(0) as u32,
            )
            .set("ZERO", u32::from(form == AffineForm::Zero)),
        WeightLayout::Mxfp4 => variant.flag("W_MXFP4"),
        WeightLayout::Ternary => variant.flag("W_TERNARY").set("BITS", 2),
        WeightLayout::Q4K => variant.flag("W_Q4K"),
        WeightLayout::Q6K => variant.flag("W_Q6K"),
    }
}

impl<B: Clone> Launch<B> {
    /// Records the fused RMSNorm of x.
    fn norm(self, norm: Option<&NormPrologue<B>>) -> Self {
        self.bind_opt("norm", norm.map(|n| n.gain.clone()))
            .set_f32("eps", norm.map_or(0.0, |n| n.eps))
            .set_f32("norm_offset", norm.map_or(0.0, |n| n.offset))
    }
}
