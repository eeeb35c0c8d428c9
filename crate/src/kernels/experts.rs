//! Mixture of experts: router, row-expert pairs sorted by expert, and the expert bindings of a
//! matmul. The matmuls themselves are in `matmul`.

use super::view::View;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};
pub use crate::ir::{ExpertGroups, RouterScore};

/// Top-k selection and weighting of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterKernel<B> {
    /// Experts.
    pub experts: u32,
    /// Selected experts per row (k).
    pub top_k: u32,
    /// Scoring function of the router.
    pub score: RouterScore,
    /// `[experts]`, added to the scores for selection but not for the weights.
    pub bias: Option<B>,
    /// Restricts the selection to the best expert groups.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights are divided by their sum.
    pub renormalize: bool,
    /// Added to that sum; for the mixer, its tolerance.
    pub eps: f32,
    /// Multiplies the weights.
    pub scale: f32,
    /// `[experts]`, also multiplies the weights.
    pub gain: Option<B>,
}

impl<B: Clone> RouterKernel<B> {
    /// Maps logits to `[rows][2 * selected]`: expert ids, then their weights.
    pub fn launch(&self, label: &str, logits: &View<B>, out: &View<B>) -> Launch<B> {
        let variant = Variant::new(Kernel::Route)
            .flag(match self.score {
                RouterScore::Softmax => "SOFTMAX",
                RouterScore::Sigmoid => "SIGMOID",
                RouterScore::Mixer => "MIXER",
            })
            .flag_if("BIAS", self.bias.is_some())
            .flag_if("GROUPS", self.groups.is_some())
            .flag_if("PAIRS", self.groups.is_some_and(|g| g.sum_two_best))
            .flag_if("GAIN", self.gain.is_some());
        Launch::new(label, variant, GridSpec::Rows { units: 1, per: 1 })
            .bind("x", logits.buffer.clone())
            .bind("out", out.buffer.clone())
            .bind_opt("bias", self.bias.clone())
            .bind_opt("gain", self.gain.clone())
            .set("experts", self.experts)
            .set("picks", self.top_k)
            .set("x_offset", logits.offset)
            .set("x_stride", logits.stride)
            .set("out_stride", out.stride)
            .set("group_count", self.groups.map_or(1, |g| g.count))
            .set("group_keep", self.groups.map_or(1, |g| g.keep))
            .set("renormalize", self.renormalize.into())
            .set_f32("eps", self.eps)
            .set_f32("scale", self.scale)
    }
}

/// Experts whose weights are stacked in the planes of a matmul.
#[derive(Debug, Clone)]
pub struct Experts<B> {
    /// Output of [`RouterKernel::launch`].
    pub selection: View<B>,
    /// Selected experts per row.
    pub top_k: u32,
    /// First expert in these planes.
    pub first: u32,
    /// Experts in these planes; other launches cover the rest.
    pub count: u32,
    /// Weight rows per expert.
    pub rows: u32,
    /// Weight rows from one output to the next.
    pub row_stride: u32,
    /// Elements between a row's selected experts, in the output of the first matmul and the input
    /// of the second.
    pub span: u32,
    /// Whether a row's selected experts are summed by their weights (second matmul).
    pub sum_experts: bool,
    /// Whether the sum is added to an earlier launch's output.
    pub accumulate: bool,
    /// GPT-OSS gate: sigmoid factor, and limit of gate and up.
    pub clamp: Option<[f32; 2]>,
}

impl<B: Clone> Experts<B> {
    /// Sets the weight rows of an expert.
    fn set_rows(&self, launch: Launch<B>) -> Launch<B> {
        launch
            .set("expert_rows", self.rows)
            .set("row_step", self.row_stride)
    }

    fn set_shard(&self, launch: Launch<B>) -> Launch<B> {
        self.set_rows(launch)
            .set("first_expert", self.first)
            .set("expert_count", self.count)
    }

    fn set_clamp(&self, launch: Launch<B>) -> Launch<B> {
        let [alpha, limit] = self.clamp.unwrap_or_default();
        launch.set_f32("alpha", alpha).set_f32("limit", limit)
    }

    /// Binds the inputs of shaders/matmul/splitk_reduce.wgsl.
    pub(super) fn bind_reduce(&self, launch: Launch<B>, buckets: &ExpertTiles<B>) -> Launch<B> {
        let launch = self.set_clamp(self.set_rows(launch));
        launch
            .bind("buckets", buckets.buffer.clone())
            .set("order_at", buckets.order_at())
    }

    /// Binds the inputs of shaders/matmul/experts.wgsl.
    pub(super) fn bind_decode(&self, launch: Launch<B>) -> Launch<B> {
        self.set_clamp(self.set_shard(launch))
            .bind("picks", self.selection.buffer.clone())
            .set("each", self.top_k)
            .set("pick_offset", self.selection.offset)
            .set("pick_stride", self.selection.stride)
            .set("span", self.span)
            .set("later", self.accumulate.into())
    }

    /// Binds the inputs of shaders/matmul/gemm.wgsl and gemm_packed.wgsl. Rows of x are row-expert pairs if `own`.
    pub(super) fn bind_prefill(
        &self,
        launch: Launch<B>,
        buckets: &ExpertTiles<B>,
        own: bool,
    ) -> Launch<B> {
        self.set_clamp(self.bind_subgroup_matrix(launch, buckets, own))
    }

    /// Binds the inputs of shaders/matmul/gemm_matrix.wgsl.
    pub(super) fn bind_subgroup_matrix(
        &self,
        launch: Launch<B>,
        buckets: &ExpertTiles<B>,
        own: bool,
    ) -> Launch<B> {
        self.set_shard(launch)
            .bind("buckets", buckets.buffer.clone())
            .set("each", if own { 1 } else { self.top_k })
            .set("order_at", buckets.order_at())
    }
}

/// Row-expert pairs sorted by expert, in tiles of one expert each.
#[derive(Debug, Clone)]
pub struct ExpertTiles<B> {
    /// Buffer of [`Self::bytes`].
    pub buffer: B,
    /// Experts.
    pub experts: u32,
    /// Selected experts per row.
    pub top_k: u32,
    /// Maximum rows.
    pub rows: u32,
    /// Pairs per tile.
    pub tile_rows: u32,
}

/// Returns the maximum tiles for `picks` pairs.
pub(super) fn max_tiles(picks: u32, per: u32, experts: u32) -> u32 {
    let first = picks.min(experts);
    first + (picks - first) / per
}

impl<B: Clone> ExpertTiles<B> {
    /// Returns the tile height for so many rows: experts with few rows leave tall tiles empty.
    pub fn tile_rows(rows: u32, each: u32, experts: u32) -> u32 {
        if rows * each < 48 * experts { 32 } else { 64 }
    }

    fn order_at(&self) -> u32 {
        4 + 4 * max_tiles(self.rows * self.top_k, self.tile_rows, self.experts)
    }

    fn place_at(&self) -> u32 {
        self.order_at() + self.rows * self.top_k
    }

    /// Rows of all tiles together.
    pub(super) fn lines(&self) -> u32 {
        max_tiles(self.rows * self.top_k, self.tile_rows, self.experts) * self.tile_rows
    }

    /// Bytes of the sorted pairs.
    pub fn bytes(&self) -> u64 {
        u64::from(self.place_at() + self.rows * self.top_k) * 4
    }

    pub(super) fn grid(&self, x: u32) -> GridSpec {
        GridSpec::ExpertTiles {
            x,
            top_k: self.top_k,
            per: self.tile_rows,
            experts: self.experts,
        }
    }

    /// Returns the sort.
    pub fn launch(&self, label: &str, picks: &View<B>, state: B) -> Launch<B> {
        Launch::new(
            label,
            Variant::new(Kernel::Bucket),
            GridSpec::Fixed { units: 1 },
        )
        .bind("picks", picks.buffer.clone())
        .bind("buckets", self.buffer.clone())
        .bind("state", state)
        .set("experts", self.experts)
        .set("each", self.top_k)
        .set("x_offset", picks.offset)
        .set("x_stride", picks.stride)
        .set("tile_rows", self.tile_rows)
        .set("order_at", self.order_at())
        .set("place_at", self.place_at())
    }

    /// Returns the weighted sum for `y` written by [`Matmul::gemm_experts_subgroup_matrix`]; `bias` has a row
    /// of `cols` per expert.
    ///
    /// [`Matmul::gemm_experts_subgroup_matrix`]: super::matmul::Matmul::gemm_experts_subgroup_matrix
    pub fn combine_partials(&self, combine: Launch<B>, bias: Option<B>) -> Launch<B> {
        let mut launch = combine
            .bind("buckets", self.buffer.clone())
            .set("place_at", self.place_at());
        launch.variant = launch.variant.flag("PARTS").flag_if("BIAS", bias.is_some());
        launch.bind_opt("bias", bias)
    }
}

/// Sums the outputs of each row's selected experts by their weights. `y` has one row per row-expert
/// pair.
pub fn combine<B: Clone>(
    label: &str,
    y: &View<B>,
    experts: &Experts<B>,
    residual: Option<&View<B>>,
    out: &View<B>,
    cols: u32,
) -> Launch<B> {
    let variant = Variant::new(Kernel::Combine).flag_if("RESIDUAL", residual.is_some());
    Launch::new(
        label,
        variant,
        GridSpec::Tiled {
            x: cols.div_ceil(256),
            per: 1,
            z: 1,
        },
    )
    .bind("y", y.buffer.clone())
    .bind("picks", experts.selection.buffer.clone())
    .bind("out", out.buffer.clone())
    .bind_opt("residual", residual.map(|r| r.buffer.clone()))
    .set("cols", cols)
    .set("each", experts.top_k)
    .set("p_offset", experts.selection.offset)
    .set("p_stride", experts.selection.stride)
    .set("y_stride", y.stride)
    .set("out_offset", out.offset)
    .set("out_stride", out.stride)
    .set("res_offset", residual.map_or(0, |r| r.offset))
    .set("res_stride", residual.map_or(0, |r| r.stride))
}
