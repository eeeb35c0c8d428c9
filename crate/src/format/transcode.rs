//! Transcodes stored weights to a canonical layout on the CPU: the reference for the GPU transcoder
//! and the fallback for encodings that it does not support. Reads no files.

use super::encoding::{Encoding, PartRole, RowOrder, WeightSource};
use super::layout::{Float, PackedMatrix, WeightLayout};
pub use super::transcode_job::PartBytes;
use super::transcode_job::TranscodeJob;
use super::{
    awq, bitnet, bnb, compressed, fp8, ggml, gptq, mlc, mlx, mxfp4, quantize, weight_norm,
};
use crate::Result;

/// Transcodes a weight to [`WeightSource::layout`], or to dense f32 if `exact` is set and that
/// layout rounds.
pub fn transcode(
    source: &WeightSource,
    bytes: &PartBytes<'_>,
    exact: bool,
) -> Result<PackedMatrix> {
    let layout = if exact && !source.is_exact() {
        WeightLayout::Dense(Float::F32)
    } else {
        source.layout()?
    };
    transcode_to(source, bytes, layout)
}

/// Transcodes a weight to its own layout, to a dense layout, or from unquantized to a quantized
/// layout.
pub fn transcode_to(
    source: &WeightSource,
    bytes: &PartBytes<'_>,
    layout: WeightLayout,
) -> Result<PackedMatrix> {
    let own = source.layout()?;
    let to_dense = matches!(layout, WeightLayout::Dense(_));
    let number = matches!(own, WeightLayout::Dense(_));
    let known =
        own == layout || (to_dense && (number || matches!(own, WeightLayout::Affine { .. })));
    let is_affine = matches!(layout, WeightLayout::Affine { .. });
    let quantized = number && is_affine && layout == quantize::layout(layout.bits() as u8);
    if !known && !quantized {
        return Err(source.unsupported(&format!(
            "It cannot be converted to {layout}; use its own layout or a dense one."
        )));
    }
    if !known {
        let plain = transcode_to(source, bytes, WeightLayout::Dense(Float::F32))?;
        let words = plain.layout.row_words(plain.cols);
        let cols = plain.cols;

        return Ok(quantize::quantize(
            layout.bits() as u8,
            plain.rows,
            cols,
            |row: usize, col: usize| f32::from_bits(plain.planes[0][row * words + col]),
        ));
    }
    let (rows, cols) = source.rows_cols();
    if source.is_transposed_code() {
        let stored = WeightSource {
            shape: vec![cols, rows],
            stored_rows: cols,
            row_order: RowOrder::Stored,
            ..source.clone()
        };
        let plain = transcode_to(&stored, bytes, WeightLayout::Dense(Float::F32))?;
        let words = plain.layout.row_words(plain.cols);
        let mut out = PackedMatrix::zeros(layout, rows, cols);
        for row in 0..rows {
            for col in 0..cols {
                out.set_dense(row, col, f32::from_bits(plain.planes[0][col * words + row]));
            }
        }
        return Ok(out);
    }
    let job = TranscodeJob {
        source,
        bytes,
        rows,
        cols,
        layout,
    };
    let last = source
        .first_row
        .checked_add(rows)
        .filter(|last| *last <= source.stored_rows);
    if last.is_none() || rows.checked_mul(cols).is_none() {
        return Err(job.malformed(format!(
            "its rows start at {} and number {rows}, but {} are stored",
            source.first_row, source.stored_rows
        )));
    }
    decode(&job)
}

fn decode(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    match job.source.encoding {
        Encoding::Dense(float) => {
            let data = job.part(PartRole::Weight, stored_bytes(job, float.bytes()))?;
            Ok(dense(job, data, float))
        }
        Encoding::F64 => {
            let data = job.part(PartRole::Weight, stored_bytes(job, 8))?;
            let narrow = |wide: &[u8; 8]| (f64::from_le_bytes(*wide) as f32).to_le_bytes();
            let floats: Vec<u8> = data.as_chunks().0.iter().flat_map(narrow).collect();
            Ok(dense(job, &floats, Float::F32))
        }
        Encoding::WeightNorm(float) => weight_norm::transcode(job, float),
        Encoding::MlxAffine { bits, group, scale } => mlx::affine(job, bits, group, scale),
        Encoding::MlxMxfp4 => mxfp4::mlx(job),
        Encoding::MlxMxfp8 => fp8::mxfp8(job),
        Encoding::Nvfp4 => mxfp4::nvfp4(job),
        Encoding::Mxfp4Blocks => mxfp4::gpt_oss(job),
        Encoding::Ggml(kind) => ggml::transcode(job, kind),
        Encoding::Mlc { transposed, scale } => mlc::decode_q4(job, transposed, scale),
        Encoding::Gptq {
            bits,
            group,
            minus_one,
            scale,
        } => gptq::transcode(job, bits, group, minus_one, scale),
        Encoding::Awq { group, scale } => awq::transcode(job, group, scale),
        Encoding::PackQuantized {
            bits,
            group,
            stream,
            scale,
        } => compressed::pack_quantized(job, bits, group, stream, scale),
        Encoding::Int8 { scale } => compressed::int8(job, scale),
        Encoding::Fp8 {
            block,
            divide,
            scale,
        } => fp8::transcode(job, block, divide, scale),
        Encoding::Bnb4 {
            block,
            nested_block,
            nested_offset,
            ..
        } => bnb::four_bit(job, block, nested_block, nested_offset),
        Encoding::Bnb8 => bnb::int8(job),
        Encoding::BitNet { divide, scale } => bitnet::transcode(job, divide, scale),
        Encoding::Ternarized(float) => bitnet::ternarize(job, float),
    }
}

/// Checks that the parts of a matrix are long enough for its shape, for bytes that go to the GPU
/// without decoding on the CPU.
///
/// # Errors
/// `Malformed` with the part's name and both lengths, and every other shape error of the decoder.
pub fn check_parts(source: &WeightSource) -> Result<()> {
    let layout = source.layout()?;
    if source.shape.len() < 2 {
        return Ok(());
    }
    let mut bytes = PartBytes::new();
    for part in &source.parts {
        let length = usize::try_from(part.info.bytes()).unwrap_or(usize::MAX);
        bytes.parts.push((part.role, &[], length));
    }
    // With 0 rows the decoders only check part sizes. The group index is left out because its
    // values cannot be checked without the bytes; it does not change the sizes of weights whose
    // columns can be reordered.
    let job = TranscodeJob {
        source,
        bytes: &bytes,
        rows: 0,
        cols: source.rows_cols().1,
        layout,
    };
    if source.is_scattered() {
        job.part(PartRole::GroupIndex, job.cols.checked_mul(4))?;
    }
    let without: Vec<_> = bytes
        .parts
        .iter()
        .filter(|p| p.0 != PartRole::GroupIndex)
        .copied()
        .collect();
    decode(&TranscodeJob {
        bytes: &PartBytes { parts: without },
        ..job
    })
    .map(|_| ())
}

/// The bytes of a part with `bytes` for each stored element.
fn stored_bytes(job: &TranscodeJob<'_>, bytes: usize) -> Option<usize> {
    let count = job.source.stored_rows.checked_mul(job.cols);
    count.and_then(|n| n.checked_mul(bytes))
}

/// Decodes unquantized elements.
fn dense(job: &TranscodeJob<'_>, data: &[u8], float: Float) -> PackedMatrix {
    let offset = job.source.offset;
    let rows = job.source.stored_rows;
    let order = job.source.row_order;

    job.dense(|row, col| {
        let at = match order {
            RowOrder::Transposed => col * rows + row,
            RowOrder::ChannelsLast { channels } => {
                let window = (job.cols / channels).max(1);
                row * job.cols + col % window * channels + col / window
            }
            _ => row * job.cols + col,
        };
        let value = float.get(data, at).unwrap_or(0.0);
        // Adding 0.0 would turn -0.0 into 0.0.
        if offset == 0.0 { value } else { value + offset }
    })
}
