//! Matmuls of prompts and batches on packed 8-bit dot products (shaders/matmul/gemm_packed.wgsl,
//! gemv_packed.wgsl): x is quantized to
//! 8 bits in groups of 32, as llama.cpp does for quantized weights, or of 64 where weights share
//! their scale as well and the matrix is large.

use super::{GemmTiling, Matmul, NormPrologue, REDUCED_COLUMNS, weight_flags};
use crate::device::Caps;
use crate::device::registry::{Kernel, Variant};
use crate::format::layout::WeightLayout;
use crate::kernels::experts::{ExpertTiles, Experts};
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::kernels::{GridSpec, Launch, workgroups_per_tile};

/// Weights of a matrix from which on 64 inputs share a scale: faster, less precise, and small models
/// suffer more.
const WIDE_MIN_WEIGHTS: u64 = 2_000_000;

/// Maximum rows of a batch for [`Matmul::gemv_packed`].
const MAX_BATCH_ROWS: usize = 8;
/// Minimum outputs and columns for three or four rows: fewer leave the device idle.
const FEW_ROWS_MIN_SIDE: u32 = 1536;
/// The same for five to eight rows.
const MANY_ROWS_MIN_SIDE: u32 = 512;
/// Weights of a matrix that pay for three or four rows of any width.
const FEW_ROWS_WEIGHTS: u64 = 50_000_000;

/// Bytes of 64 quantized elements: 64 bytes, then scale and sum of up to two groups.
const UNIT_BYTES: u64 = 80;

/// Threads of a workgroup that quantizes; each takes eight elements.
const QUANTIZE_THREADS: u32 = 128;

/// When matmuls of many rows quantize their input to 8 bits ([`Matmul::quantized_rows`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QuantizeInputs {
    /// Where it is faster: on GPUs that have an instruction for packed dot products and no subgroup
    /// matrices.
    #[default]
    Auto,
    /// On any device without subgroup matrices.
    Always,
    /// Never.
    Never,
}

/// The 8-bit form of x that a matmul reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedRows {
    /// Units of 64 elements per row.
    units: u32,
    /// Elements that share a scale: 32 or 64.
    group: u32,
    /// Whether bytes are ordered as nibbles are unpacked.
    nibbles: bool,
}

impl QuantizedRows {
    /// The same with `group` elements of 32 or 64 to a scale.
    pub fn with_group(self, group: u32) -> Self {
        Self { group, ..self }
    }

    /// Bytes of `rows` rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        rows as u64 * u64::from(self.units) * UNIT_BYTES
    }

    /// Returns the launch that quantizes the input of a matmul, `[rows, k]` f32, or its norm, to
    /// `out`.
    pub fn launch<B: Clone>(&self, matmul: &Matmul<B>, state: B, out: B) -> Launch<B> {
        self.launch_times(1, matmul, state, out)
    }

    /// Returns the launch that quantizes `times` rows of x, such as those of selected experts, for
    /// each row of the step, as [`Self::launch`].
    pub fn launch_times<B: Clone>(
        &self,
        times: u32,
        matmul: &Matmul<B>,
        state: B,
        out: B,
    ) -> Launch<B> {
        let Matmul { label, x, norm, .. } = matmul;
        let variant = Variant::new(Kernel::QuantizeRows)
            .set("X_GROUP", self.group)
            .flag_if("NORM", norm.is_some())
            .flag_if("NIBBLES", self.nibbles);
        let grid = GridSpec::PerExpert {
            x: (self.units * 8).div_ceil(QUANTIZE_THREADS),
            y: 1,
            top_k: times,
        };
        let launch = Launch::new(format!("{label} input"), variant, grid)
            .bind("x", x.buffer.clone())
            .bind("quantized", out)
            .bind("state", state)
            .set("k", matmul.weight.cols)
            .set("units", self.units)
            .set("times", times)
            .set("x_offset", x.offset)
            .set("x_stride", x.stride);
        match norm {
            Some(_) => launch.norm(norm.as_ref()),
            None => launch,
        }
    }

    /// Makes the last launch write the input of a matmul in this form, if its kernel can. It then
    /// leaves no f32 rows. If the input is normed, the launch also leaves those, and its 8-bit rows
    /// are not yet divided by their RMS; [`divide_by_rms`] or [`Self::divide_product`] divides the
    /// result of the matmul.
    pub fn quantize_output<B: Clone + PartialEq>(
        &self,
        caps: &Caps,
        launches: &mut [Launch<B>],
        matmul: &Matmul<B>,
        rows: usize,
        buffers: OutputBuffers<B>,
    ) -> Option<OutputBytes> {
        let (last, earlier) = launches.split_last_mut()?;
        let x = &matmul.x;
        let word = |name| last.param(name);
        let place = [word("out_offset"), word("out_stride")];
        let written = last.binds.iter().find(|(name, _)| *name == "out");
        let is_x = written.is_some_and(|(_, buffer)| *buffer == x.buffer);
        if !is_x || place != [Some(x.offset), Some(x.stride)] {
            return None;
        }
        let has = |flag| last.variant.flags.contains(&flag);
        let constant = |name| last.variant.constant(name);
        let cols = self.units * 64;
        let head_dim = word("head_dim").unwrap_or(0);
        let is_of_heads = has("BATCH")
            && matmul.norm.is_none()
            && head_dim.is_multiple_of(self.group)
            && word("heads").is_some_and(|heads| heads * head_dim == cols);
        let is_of_sums = !["EXPERTS", "F16_IO", "QUANTIZED"].into_iter().any(has)
            && (matmul.norm.is_none() || !["GATED", "DIVIDED"].into_iter().any(has))
            && word("n") == Some(cols);
        let mut bytes = OutputBytes::default();
        match last.variant.kernel {
            // A thread quantizes eight elements. More heads leave too little workgroup memory.
            Kernel::AttentionDecode
                if constant("SINGLE_PASS") == 1
                    && is_of_heads
                    && constant("HEADS") <= 4
                    && constant("HEADS") * head_dim <= 8 * constant("THREADS") => {}
            Kernel::AttentionReduce if is_of_heads => {}
            // With a norm and a bias it would have nine storage buffers.
            Kernel::GemvPacked
                if is_of_sums && self.group == 32 && !(matmul.norm.is_some() && has("BIAS")) => {}
            Kernel::SplitkReduce if is_of_sums => {
                bytes.partials = reduce_always(earlier.last_mut()?, last, rows)?;
            }
            _ => return None,
        }
        last.variant = last
            .variant
            .clone()
            .flag("QUANTIZED")
            .flag_if("NIBBLES", self.nibbles)
            .flag_if("NORM", matmul.norm.is_some())
            .set("X_GROUP", self.group);
        last.binds.push(("quantized", buffers.quantized));
        match &matmul.norm {
            Some(norm) => {
                last.binds.push(("norm", norm.gain.clone()));
                last.params.push(("norm_offset", norm.offset.to_bits()));
            }
            None => last.binds.retain(|(name, _)| *name != "out"),
        }
        if last.variant.kernel == Kernel::GemvPacked {
            bytes.quantized = self.group_outputs(caps, last, rows);
            return Some(bytes);
        }
        last.params.push(("units", self.units));
        if matmul.norm.is_some() {
            last.binds.push(("squares", buffers.squares));
            let sums = cols.div_ceil(REDUCED_COLUMNS).next_multiple_of(4);
            bytes.squares = rows as u64 * u64::from(sums) * 4;
        } else {
            last.params
                .retain(|(name, _)| !matches!(*name, "out_offset" | "out_stride"));
        }
        Some(bytes)
    }

    /// Gives each workgroup of [`Matmul::gemv_packed`] a group of 32 outputs, which it quantizes.
    /// Returns the bytes of the sums of squares behind the rows.
    fn group_outputs<B>(&self, caps: &Caps, product: &mut Launch<B>, rows: usize) -> u64 {
        let variant = product.variant.clone();
        let has_norm = variant.flags.contains(&"NORM");
        let (tiles, parts) = match variant.flags.contains(&"GATED") {
            true => (4, 2),
            false if caps.max_invocations >= 512 => (2, 8),
            false => (2, 4),
        };
        product.variant = variant.set("TILES", tiles).set("PARTS", parts);
        if let GridSpec::PerRow { x, .. } = &mut product.grid {
            *x = self.units * 2;
        }
        product.params.push(("out_units", self.units));
        if !has_norm {
            return 0;
        }
        product
            .params
            .push(("squares_at", 2 * self.squares_at(rows)));
        rows as u64 * u64::from(self.units) * 16
    }

    /// Where sums of squares begin behind `rows` rows, in words of 16 bytes.
    fn squares_at(&self, rows: usize) -> u32 {
        rows as u32 * self.units * 5
    }

    /// Makes [`Matmul::gemv_packed`] divide by the RMS of its input, from the sums of squares that
    /// another one left behind the rows ([`Self::quantize_output`]).
    pub fn divide_product<B>(
        &self,
        product: &mut Launch<B>,
        norm: &NormPrologue<B>,
        cols: u32,
        rows: usize,
    ) {
        product.variant = product.variant.clone().flag("DIVIDED");
        product.params.extend([
            ("eps", norm.eps.to_bits()),
            ("normed", cols),
            ("divided_at", self.squares_at(rows)),
        ]);
    }
}

/// Buffers of a launch that writes 8 bits.
#[derive(Debug, Clone, Copy)]
pub struct OutputBuffers<B> {
    /// The rows in 8 bits.
    pub quantized: B,
    /// Sums of squares of each row.
    pub squares: B,
}

/// Bytes that a launch needs so that it writes 8 bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputBytes {
    /// Split-K partial sums.
    pub partials: u64,
    /// Sums of squares.
    pub squares: u64,
    /// Sums of squares behind the rows in 8 bits.
    pub quantized: u64,
}

/// Makes the reduction of a matmul finish tiles of one workgroup too. Returns the bytes of partial
/// sums that this needs.
fn reduce_always<B: Clone>(
    gemm: &mut Launch<B>,
    reduction: &mut Launch<B>,
    rows: usize,
) -> Option<u64> {
    let [tiles, height, width] =
        ["tiles", "tile_rows", "tile_cols"].map(|name| reduction.param(name));
    let lines = (rows as u64).next_multiple_of(u64::from(height?));
    let bytes = u64::from(tiles? * width? * 4) * lines;
    let GridSpec::SplitKReduce { always, .. } = &mut reduction.grid else {
        return None;
    };
    let reduced = gemm
        .params
        .iter_mut()
        .find(|(name, _)| *name == "reduced")?;
    (*always, reduced.1) = (true, 1);
    Some(bytes)
}

/// Makes the reduction of a matmul, the second of `launches`, divide by the RMS of the matmul's
/// input, from the sums that [`QuantizedRows::quantize_output`] left of its `cols` columns. Returns
/// the bytes of partial sums that this needs.
pub fn divide_by_rms<B: Clone>(
    launches: &mut [Launch<B>],
    norm: &NormPrologue<B>,
    cols: u32,
    rows: usize,
    squares: B,
) -> Option<u64> {
    let [gemm, reduction] = launches else {
        return None;
    };
    let bytes = reduce_always(gemm, reduction, rows)?;
    reduction.variant = reduction.variant.clone().flag("DIVIDED");
    reduction.binds.push(("squares", squares));
    reduction.params.push(("eps", norm.eps.to_bits()));
    reduction.params.push(("normed", cols));
    Some(bytes)
}

impl<B: Clone> Matmul<B> {
    /// Returns how [`Self::gemm_packed`] reads x, if matmuls of `rows` rows run on it. Weights must
    /// have 4 or 8 bits.
    pub fn quantized_rows(
        &self,
        caps: &Caps,
        rows: usize,
        when: QuantizeInputs,
    ) -> Option<QuantizedRows> {
        let forced = caps
            .force
            .is_some_and(|force| force.kernel == Kernel::GemmPacked);
        let form = self.packed_form()?;
        let chosen = match when {
            QuantizeInputs::Auto => forced || caps.multiplies_packed(),
            QuantizeInputs::Always => caps.packed_dot,
            QuantizeInputs::Never => false,
        };
        if !chosen || MatrixTiling::of(caps, self, rows).is_some() {
            return None;
        }
        Some(form)
    }

    /// Returns how [`Self::gemv_packed`] reads x, if matmuls of a batch of `rows` rows run on it.
    pub fn quantized_batch(&self, caps: &Caps, rows: usize) -> Option<QuantizedRows> {
        let outputs = self.n * self.rows_per_output();
        let weights = u64::from(outputs) * u64::from(self.weight.cols);
        let side = outputs.min(self.weight.cols);
        let pays = match rows {
            3..=4 => side >= FEW_ROWS_MIN_SIDE || weights >= FEW_ROWS_WEIGHTS,
            5..=MAX_BATCH_ROWS => side >= MANY_ROWS_MIN_SIDE,
            _ => return None,
        };
        let forces = |kernel| caps.force.is_some_and(|force| force.kernel == kernel);
        let is_chosen = pays && caps.uses_packed_dot(self.weight.layout);
        // Eight threads share a row of W.
        let has_lanes = caps.subgroups && caps.subgroup_size.0 >= 8;
        let fits = self.batch && !self.quantize && self.experts.is_none() && has_lanes;
        let others = [Kernel::Gemv, Kernel::GemvBlocks].into_iter().any(forces);
        (fits && !others && (is_chosen || forces(Kernel::GemvPacked)))
            .then(|| self.packed_form())?
            .map(|form| form.with_group(32))
    }

    /// Whether workgroups of [`Self::gemm_packed`] share tiles of up to `rows` rows.
    pub fn splits_packed(&self, caps: &Caps, rows: usize) -> bool {
        let choice = GemmTiling::packed(caps, self, rows);
        let tiles = self.tiles(choice.bn) * (rows as u32).div_ceil(choice.bm);
        workgroups_per_tile(tiles, choice.target, choice.max_per_tile) > 1
    }

    /// Returns the launch for a batch of at most `rows` rows, up to eight, whose input `quantized`
    /// holds as [`QuantizedRows::launch`] writes it.
    pub fn gemv_packed(&self, caps: &Caps, rows: usize, state: B, quantized: B) -> Launch<B> {
        let cols = if rows > 4 { 8 } else { 4 };
        let variant = weight_flags(self.variant(Kernel::GemvPacked), self.weight.layout)
            .flag("SUBGROUPS")
            .set("DOT", 1)
            .set("COLS", cols)
            .set("X_GROUP", 32)
            .set(
                "PARTS",
                caps.constant_or_forced(Kernel::GemvPacked, "PARTS", 4),
            );
        let grid = GridSpec::PerRow {
            x: self.tiles(Self::PACKED_ROWS),
            y: 1,
            per: cols,
        };
        let k_blocks = self.weight.k_blocks();
        self.bind_weights(self.bind_epilogue(Launch::new(self.label.clone(), variant, grid)))
            .bind("x", quantized)
            .bind("state", state)
            .set("k_blocks", k_blocks)
            .set("units", k_blocks.div_ceil(2))
            .set("reduced", 0)
    }

    /// Weight rows of a workgroup of [`Self::gemv_packed`].
    const PACKED_ROWS: u32 = 16;

    /// Returns how the packed GEMM reads x, if it reads the layout of the weight.
    fn packed_form(&self) -> Option<QuantizedRows> {
        let layout = self.weight.layout;
        let (bits, group) = match layout {
            WeightLayout::Affine { bits, group, .. } => (bits, group),
            WeightLayout::Q4K | WeightLayout::Mxfp4 => (4, 32),
            _ => return None,
        };
        let weights =
            u64::from(self.n) * u64::from(self.rows_per_output()) * u64::from(self.weight.cols);
        let wide = group.is_multiple_of(64) && weights >= WIDE_MIN_WEIGHTS;
        (matches!(bits, 4 | 8) && group >= 32).then(|| QuantizedRows {
            units: (layout.padded_cols(self.weight.cols as usize) as u32).div_ceil(64),
            group: if wide { 64 } else { 32 },
            nibbles: bits == 4,
        })
    }

    /// Returns the GEMM launches for all rows of the step. `quantized` holds x as
    /// [`QuantizedRows::launch`] writes it, `parts` has [`Self::parts_bytes`] of the same tiling.
    pub fn gemm_packed(
        &self,
        state: B,
        (quantized, form): (B, QuantizedRows),
        parts: B,
        choice: GemmTiling,
    ) -> [Launch<B>; 2] {
        let GemmTiling {
            bm,
            bn,
            target,
            max_per_tile: max,
            ..
        } = choice;
        let x = self.tiles(bn);
        let always = self.always_reduces(choice);
        let own = Self {
            residual: None,
            ..self.clone()
        };
        let grid = GridSpec::SplitK {
            x,
            per: bm,
            target,
            max,
        };
        let product = own
            .packed_product((quantized, form), bm, grid)
            .set("reduced", u32::from(always));
        let join = self.splitk_reduce(x, [bm, bn], [target, max], always);
        [product, join].map(|l| l.bind("parts", parts.clone()).bind("state", state.clone()))
    }

    /// Returns the GEMM launch over row-expert pairs sorted by expert, as [`Self::gemm_experts`], with x
    /// in 8 bits.
    pub fn gemm_experts_packed(
        &self,
        buckets: &ExpertTiles<B>,
        experts: &Experts<B>,
        own: bool,
        quantized: (B, QuantizedRows),
    ) -> Launch<B> {
        let grid = buckets.grid(self.tiles(GemmTiling::PACKED_COLS));
        let product = self
            .packed_product(quantized, buckets.tile_rows, grid)
            .set("reduced", 0);
        experts.bind_prefill(product, buckets, own)
    }

    fn packed_product(
        &self,
        (quantized, form): (B, QuantizedRows),
        bm: u32,
        grid: GridSpec,
    ) -> Launch<B> {
        let variant = weight_flags(self.variant(Kernel::GemmPacked), self.weight.layout)
            .set("DOT", 1)
            .set("X_GROUP", form.group)
            .set("BM", bm);
        let k_blocks = self.weight.k_blocks();
        self.bind_weights(self.bind_epilogue(Launch::new(self.label.clone(), variant, grid)))
            .bind("x", quantized)
            .set("k_blocks", k_blocks)
            .set("units", k_blocks.div_ceil(2))
    }
}
