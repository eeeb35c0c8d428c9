//! Prefill matmul on subgroup matrices (shaders/matmul/gemm_matrix.wgsl), for every weight layout,
//! or in f32 tiles.

use super::{GemmTiling, Matmul, QuantizedRows, REDUCED_COLUMNS, weight_flags};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};
use crate::kernels::experts::{ExpertTiles, Experts};
use crate::kernels::subgroup_matrix::{MatrixTile, MatrixTiling};
use crate::kernels::{GridSpec, Launch, REDUCE_ROWS, workgroups_per_tile};

impl<B: Clone> Matmul<B> {
    /// Whether matmuls of up to `rows` rows run on subgroup matrices of f16.
    pub fn takes_f16_input(&self, caps: &Caps, rows: usize) -> bool {
        self.weight.cols.is_multiple_of(MatrixTiling::WIDTH)
            && MatrixTiling::of(caps, self, rows).is_some_and(|choice| choice.units.half)
    }

    /// Returns the fastest launches for up to `rows` rows of x, and the bytes that `parts` needs.
    /// With x in 8 bits ([`Self::quantized_rows`]), `quantized` holds it.
    pub fn prefill(
        &self,
        caps: &Caps,
        rows: usize,
        state: B,
        parts: B,
        quantized: Option<(B, QuantizedRows)>,
    ) -> (u64, Vec<Launch<B>>) {
        if let Some(choice) = MatrixTiling::of(caps, self, rows) {
            return (
                self.partials_bytes(rows as u32, choice),
                self.gemm_subgroup_matrix(state, parts, choice).into(),
            );
        }
        if let Some(quantized) = quantized {
            let choice = GemmTiling::packed(caps, self, rows);
            return (
                self.parts_bytes(rows as u32, choice),
                self.gemm_packed(state, quantized, parts, choice).into(),
            );
        }
        let choice = GemmTiling::of(caps, self, rows);
        (
            self.parts_bytes(rows as u32, choice),
            self.gemm(state, parts, choice),
        )
    }

    /// Returns the launches for all rows of the step: the matmul, then the reduction and epilogue
    /// of its [`Self::partials_bytes`] of partials.
    pub fn gemm_subgroup_matrix(&self, state: B, parts: B, choice: MatrixTiling) -> [Launch<B>; 2] {
        let MatrixTiling {
            tile,
            target,
            max_per_tile: most,
            ..
        } = choice;
        let x = self.tiles(tile.bn);
        let product = self.tiled_launch(
            choice,
            GridSpec::SplitK {
                x,
                per: tile.bm,
                target,
                max: most,
            },
        );
        let join = self.splitk_reduce(x, [tile.bm, tile.bn], [target, most], true);
        [product, join].map(|l| l.bind("parts", parts.clone()).bind("state", state.clone()))
    }

    /// Returns the matmul launch with its common bindings.
    fn tiled_launch(&self, choice: MatrixTiling, grid: GridSpec) -> Launch<B> {
        let MatrixTiling { units, tile, .. } = choice;
        let variant = weight_flags(Variant::new(Kernel::GemmMatrix), self.weight.layout)
            .flag_if("EXPERTS", self.experts.is_some())
            .flag_if("F16_IO", self.f16_input);
        let variant = tile.variant(variant, units, self.weight.layout);
        self.bind_inputs(Launch::new(self.label.clone(), variant, grid))
            .set("n", self.n)
            .set("up_row", self.gated.unwrap_or(0))
            .set("x_stride", self.x.stride)
    }

    /// Returns the matmul over row-expert pairs sorted by expert, as [`Self::grouped`]; tile sums
    /// go to `parts`.
    pub fn gemm_experts_subgroup_matrix(
        &self,
        buckets: &ExpertTiles<B>,
        experts: &Experts<B>,
        own: bool,
        parts: B,
        choice: MatrixTiling,
    ) -> Launch<B> {
        let product = self.tiled_launch(choice, buckets.grid(self.tiles(choice.tile.bn)));
        experts
            .bind_subgroup_matrix(product, buckets, own)
            .bind("parts", parts)
    }

    /// Returns the epilogue after all experts have written their sums: one row of `out` per
    /// row-expert pair.
    pub fn gemm_experts_epilogue(
        &self,
        buckets: &ExpertTiles<B>,
        experts: &Experts<B>,
        parts: B,
        choice: MatrixTiling,
    ) -> Launch<B> {
        let MatrixTile { bm, bn, .. } = choice.tile;
        let grid = buckets.grid(self.n.div_ceil(REDUCED_COLUMNS) * bm / REDUCE_ROWS);
        experts
            .bind_reduce(
                self.splitk_reduce_grid(self.tiles(bn), [bm, bn], grid),
                buckets,
            )
            .bind("parts", parts)
    }

    /// Elements per row of these partial sums.
    pub fn expert_partials_stride(&self, choice: MatrixTiling) -> u32 {
        self.tiles(choice.tile.bn) * choice.tile.bn
    }

    /// Bytes of these partial sums.
    pub fn expert_partials_bytes(&self, buckets: &ExpertTiles<B>, choice: MatrixTiling) -> u64 {
        u64::from(buckets.lines() + 1) * u64::from(self.expert_partials_stride(choice)) * 4
    }

    /// Bytes of the sums of up to `rows` rows of x, plus one row: browsers require one after a
    /// matrix's last row.
    pub fn partials_bytes(&self, rows: u32, choice: MatrixTiling) -> u64 {
        let MatrixTiling {
            tile,
            target,
            max_per_tile: most,
            ..
        } = choice;
        let x = self.tiles(tile.bn);

        (1..=rows.div_ceil(tile.bm))
            .map(|y: u32| {
                u64::from(y * tile.bm) * u64::from(workgroups_per_tile(x * y, target, most)) + 1
            })
            .max()
            .unwrap_or(0)
            * u64::from(x * tile.bn)
            * 4
    }
}
