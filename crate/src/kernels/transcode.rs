//! Transcodes raw checkpoint bytes to a weight layout on the GPU, or quantizes them on load.
//! Bit-exact with the CPU references format/transcode.rs and format/quantize.rs.

use super::matmul::scale_pairs;
use super::{GridSpec, Launch};
use crate::device::registry::{Kernel, Variant};
use crate::format::ggml::GgmlType;
use crate::format::{AffineForm, Encoding, Float, RowOrder, WeightLayout, quantize};

/// A byte offset in a buffer.
#[derive(Debug, Clone)]
pub struct BufferOffset<B> {
    /// The buffer.
    pub buffer: B,
    /// First byte; a multiple of 4 except for GGUF blocks.
    pub at: u32,
}

/// Rows of a stored weight in GPU memory.
#[derive(Debug, Clone)]
pub struct StoredRows<B> {
    /// Stored encoding.
    pub encoding: Encoding,
    /// Elements or codes.
    pub weight: BufferOffset<B>,
    /// Scales, if the encoding stores them separately.
    pub scales: Option<BufferOffset<B>>,
    /// Zero points, or MLX's biases.
    pub zeros: Option<BufferOffset<B>>,
    /// Table indexed by codes (bitsandbytes) or scales (nvfp4), at its buffer's start.
    pub table: Option<B>,
    /// Table indexed by the scales, and the second-level scales, at their buffers' starts.
    pub nested: Option<(B, B)>,
    /// BitNet's scale.
    pub scale: f32,
    /// Whether each row has a scale, where the encoding does not fix it.
    pub row_scales: bool,
    /// Act-order: the input of each column, sorted by group
    /// ([`crate::format::PackedMatrix::column_order`]).
    pub order: Option<B>,
    /// First row to read, counted from the first byte.
    pub first_row: u32,
    /// Rows to read.
    pub rows: u32,
    /// Rows of the whole matrix, for formats stored transposed.
    pub all_rows: u32,
    /// Row order. The rows read must be whole blocks of it.
    pub row_order: RowOrder,
}

/// Destination of the rows.
#[derive(Debug, Clone)]
pub struct TranscodeTarget<B> {
    /// Weight layout.
    pub layout: WeightLayout,
    /// Columns per row.
    pub cols: u32,
    /// Plane 0.
    pub q: B,
    /// Plane 1, if the layout has one.
    pub s: Option<B>,
    /// First row to write.
    pub first_row: u32,
}

/// Kernel variant and bindings of a source.
struct TranscodeVariant {
    variant: Variant,
    group: u32,
    scales: bool,
    zeros: bool,
    /// Rows per scale.
    block_rows: u32,
}

impl TranscodeVariant {
    fn new(variant: Variant) -> Self {
        Self {
            variant,
            group: 32,
            scales: false,
            zeros: false,
            block_rows: 1,
        }
    }
}

/// Returns the launch that transcodes rows, or None if only the CPU transcoder supports the
/// conversion.
///
/// Dense sources become dense layouts or are quantized to [`quantize::layout`] of 4 or 8 bits.
pub fn transcode<B: Clone>(
    label: &str,
    from: &StoredRows<B>,
    to: &TranscodeTarget<B>,
) -> Option<Launch<B>> {
    let choice = choose_variant(from, to)?;
    let blocks = to.layout.padded_cols(to.cols as usize) as u32 / 32;
    let units = u64::from(from.rows) * u64::from(blocks);
    if let RowOrder::Transposed | RowOrder::ChannelsLast { .. } = from.row_order {
        return None;
    }
    let (order_rows, runs) = from.row_order.grouping().unwrap_or_default();
    let at = |part: &Option<BufferOffset<B>>| part.as_ref().map_or(0, |p| p.at);
    let mut launch = Launch::new(
        label,
        choice.variant,
        GridSpec::Fixed {
            units: u32::try_from(units.div_ceil(64)).ok()?,
        },
    )
    .bind("src", from.weight.buffer.clone())
    .bind("out_q", to.q.clone());
    if !matches!(to.layout, WeightLayout::Dense(_)) {
        launch = launch.bind("out_s", to.s.clone()?);
    }
    if choice.scales {
        launch = launch.bind("src_s", from.scales.as_ref()?.buffer.clone());
    }
    if choice.zeros {
        launch = launch.bind("src_z", from.zeros.as_ref()?.buffer.clone());
    }
    if from.encoding == Encoding::Nvfp4 {
        launch = launch.bind("table", from.table.clone()?);
    }
    let mut nested = (0, from.scale);
    if let Encoding::Bnb4 {
        nested_block,
        nested_offset,
        ..
    } = from.encoding
    {
        launch = launch.bind("table", from.table.clone()?);
        if let Some(block) = nested_block {
            let (table, scales) = from.nested.clone()?;
            launch = launch
                .bind("nested_table", table)
                .bind("nested_scales", scales);
            nested = (u32::try_from(block.max(1)).ok()?, nested_offset);
        }
    }
    Some(
        launch
            .bind_opt("order", from.order.clone())
            .set("block_rows", choice.block_rows)
            .set("nested", nested.0)
            .set_f32("constant", nested.1)
            .set("nothing", 0)
            .set("rows", from.rows)
            .set("cols", to.cols)
            .set("blocks", blocks)
            .set("groups", scale_pairs(to.layout, to.cols))
            .set("first_row", from.first_row)
            .set("order_rows", order_rows as u32)
            .set("run0", runs[0] as u32)
            .set("run1", runs[1] as u32)
            .set("run2", runs[2] as u32)
            .set("run3", runs[3] as u32)
            .set("out_row", to.first_row)
            .set("n", from.all_rows)
            .set("src_at", from.weight.at)
            .set("scale_at", at(&from.scales))
            .set("zero_at", at(&from.zeros))
            .set("group", choice.group),
    )
}

fn choose_variant<B>(from: &StoredRows<B>, to: &TranscodeTarget<B>) -> Option<TranscodeVariant> {
    let grouped = |source: u32, group: usize, zeros: bool, minus_one: bool| {
        let WeightLayout::Affine {
            bits,
            group: out,
            scale,
            ..
        } = to.layout
        else {
            return None;
        };
        let variant = Variant::new(Kernel::TranscodeGrouped)
            .flag_if("ZEROS", zeros)
            .flag_if("ORDER", from.order.is_some())
            .set("SOURCE", source)
            .set("BITS", bits.into())
            .set("GROUP", out.into())
            .set("SCALE", float_code(scale))
            .set("MINUS_ONE", minus_one.into());
        Some(TranscodeVariant {
            group: group as u32,
            scales: true,
            zeros,
            ..TranscodeVariant::new(variant)
        })
    };
    // Kernels write the encoding's default layout; quantization on load is the only alternative.
    let default = from.encoding.layout(to.cols as usize) == Some(to.layout);
    let has_zeros = from.zeros.is_some();
    match from.encoding {
        Encoding::Dense(float) => dense_variant(float, to.layout),
        Encoding::Ggml(GgmlType::F32) => dense_variant(Float::F32, to.layout),
        Encoding::Ggml(GgmlType::F16) => dense_variant(Float::F16, to.layout),
        Encoding::Ggml(GgmlType::BF16) => dense_variant(Float::BF16, to.layout),
        // WGSL's division is not exact, so the CPU decodes scales that divide.
        Encoding::Fp8 { divide: false, .. } | Encoding::MlxMxfp8 | Encoding::Bnb4 { .. } => {
            small_float_variant(from.encoding, to)
        }
        _ if !default => None,
        Encoding::MlxMxfp4 | Encoding::Mxfp4Blocks if to.cols.is_multiple_of(32) => {
            byte_codes_variant(0, None, true)
        }
        Encoding::Nvfp4 if to.cols.is_multiple_of(16) => byte_codes_variant(1, None, true),
        Encoding::Int8 { scale } => byte_codes_variant(2, Some(scale), from.row_scales),
        Encoding::Bnb8 => byte_codes_variant(2, Some(Float::F32), true),
        Encoding::BitNet { .. } => Some(TranscodeVariant::new(Variant::new(
            Kernel::TranscodeTernary,
        ))),
        Encoding::Ggml(kind) => ggml_variant(kind),
        Encoding::MlxAffine { group, .. } => grouped(0, group, true, false),
        Encoding::Gptq {
            bits: 2 | 3 | 4 | 8,
            group,
            minus_one,
            ..
        } => grouped(1, group, has_zeros, minus_one && has_zeros),
        Encoding::Awq { group, .. } => grouped(2, group, true, false),
        Encoding::Mlc { transposed, .. } => {
            grouped(if transposed { 4 } else { 3 }, 32, false, false)
        }
        Encoding::PackQuantized {
            bits,
            group,
            stream,
            ..
        } if stream && bits != 7 => grouped(5, group, has_zeros, false),
        _ => None,
    }
}

/// Dense elements: copied, converted or quantized.
fn dense_variant(float: Float, layout: WeightLayout) -> Option<TranscodeVariant> {
    let variant = match layout {
        WeightLayout::Dense(to) => Variant::new(Kernel::TranscodeDense).set("TO", float_code(to)),
        WeightLayout::Affine {
            bits,
            group: 32,
            form: AffineForm::Bias,
            scale: Float::F16,
        } if quantize::layout(bits) == layout => {
            if !matches!(bits, 4 | 8) {
                return None;
            }
            Variant::new(Kernel::Quantize).set("BITS", bits.into())
        }
        _ => return None,
    };
    Some(TranscodeVariant::new(
        variant.set("FROM", float_code(float)),
    ))
}

/// Whole 4-bit or 8-bit codes with scales; `scale` is the element type of float scales.
fn byte_codes_variant(
    source: u32,
    scale: Option<Float>,
    row_scales: bool,
) -> Option<TranscodeVariant> {
    let variant = Variant::new(Kernel::TranscodeBytes)
        .set("SOURCE", source)
        .set("SCALE", scale.map_or(2, float_code))
        .flag_if("SCALE_BYTES", source == 0)
        .flag_if("TABLE", source == 1);
    Some(TranscodeVariant {
        group: u32::from(row_scales),
        scales: true,
        ..TranscodeVariant::new(variant)
    })
}

/// FP8, FP4 and table codes, to dense layouts only.
fn small_float_variant<B>(encoding: Encoding, to: &TranscodeTarget<B>) -> Option<TranscodeVariant> {
    let WeightLayout::Dense(float) = to.layout else {
        return None;
    };
    let variant = Variant::new(Kernel::TranscodeSmall).set("TO", float_code(float));
    let all = |n: usize| u32::try_from(n.max(1)).ok();
    let (variant, group, rows) = match encoding {
        Encoding::Fp8 { block, scale, .. } => (
            variant.set("SCALE", float_code(scale)),
            all(block.1)?,
            all(block.0)?,
        ),
        Encoding::MlxMxfp8 => (variant.set("SOURCE", 1), 32, 1),
        Encoding::Bnb4 {
            block,
            nested_block,
            ..
        } => (
            variant
                .flag("TABLE")
                .flag_if("NESTED", nested_block.is_some()),
            all(block)?,
            1,
        ),
        _ => return None,
    };
    Some(TranscodeVariant {
        group,
        scales: true,
        block_rows: rows,
        ..TranscodeVariant::new(variant)
    })
}

/// The block types that the kernel supports.
fn ggml_variant(kind: GgmlType) -> Option<TranscodeVariant> {
    use GgmlType as G;
    let number = match kind {
        G::Q4_0 => 2,
        G::Q4_1 => 3,
        G::Q5_0 => 6,
        G::Q5_1 => 7,
        G::Q8_0 => 8,
        G::Q2_K => 10,
        G::Q3_K => 11,
        G::Q4_K => 12,
        G::Q5_K => 13,
        G::Q6_K => 14,
        G::IQ4_NL => 20,
        G::IQ4_XS => 23,
        G::TQ1_0 => 34,
        G::TQ2_0 => 35,
        G::I2S => 36,
        G::MXFP4 => 39,
        _ => return None,
    };
    let variant = Variant::new(Kernel::TranscodeGgml)
        .set("KIND", number)
        .set("BITS", kind.layout()?.bits() as u32)
        .set("SUBS", kind.block_elements() as u32 / 32)
        .set("BLOCK_BYTES", kind.block_bytes() as u32)
        .flag_if("SCALE_BYTES", kind == G::MXFP4);
    Some(TranscodeVariant::new(variant))
}

/// Returns the shader's code of an element type.
fn float_code(float: Float) -> u32 {
    match float {
        Float::F16 => 0,
        Float::BF16 => 1,
        Float::F32 => 2,
    }
}
