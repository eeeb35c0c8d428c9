//! Decodes compressed-tensors: packed integers (`pack-quantized`) and signed bytes
//! (`int-quantized`).

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::{TranscodeJob, pack_grouped, read_code, read_group_index, read_u32};
use crate::Result;

/// The code at column `k` of a row of words: a dense bit stream, or 32 / bits codes per word in
/// older files.
fn code(data: &[u8], row_words: usize, line: usize, bits: usize, stream: bool, k: usize) -> u8 {
    if stream {
        return read_code(data, line * row_words * 4, bits, k);
    }
    let per_word = 32 / bits;
    (read_u32(data, line * row_words + k / per_word) >> (k % per_word * bits) & ((1 << bits) - 1))
        as u8
}

/// Decodes `w = (q - zero) * scale`. Codes and zero points are both offset by half the range, which
/// cancels; symmetric weights use that offset as zero point.
pub(super) fn pack_quantized(
    job: &TranscodeJob<'_>,
    bits: u8,
    group: usize,
    stream: bool,
    scale: Float,
) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;
    let bits = usize::from(bits);

    let words = |count: usize| {
        if stream {
            (count * bits).div_ceil(32)
        } else {
            count.div_ceil(32 / bits)
        }
    };
    let indexed = read_group_index(job)?.and_then(|g| g.iter().max().map(|m| m + 1));
    let row_words = words(k);
    let groups = indexed.unwrap_or(0).max(k.div_ceil(group.max(1)));

    let codes = job.part(PartRole::Weight, n.checked_mul(row_words * 4))?;
    let scales = job.scales(groups, n, scale)?;
    let zeros = match job.bytes.get(PartRole::Zeros) {
        Some(_) => Some(job.part(PartRole::Zeros, words(n).checked_mul(4 * groups))?),
        None => None,
    };
    let zero = |row: usize, g: usize| match zeros {
        // Zero points are packed along the outputs: word (row / codes per word, group).
        Some(zeros) => {
            let bit = if stream {
                row * bits
            } else {
                row / (32 / bits) * 32 + row % (32 / bits) * bits
            };
            let low = read_u32(zeros, bit / 32 * groups + g) >> (bit % 32);
            let over = bit % 32 + bits > 32;
            let high = if over {
                read_u32(zeros, (bit / 32 + 1) * groups + g) << (32 - bit % 32)
            } else {
                0
            };
            (low | high) & ((1 << bits) - 1)
        }
        None => 1 << (bits - 1),
    };
    pack_grouped(
        job,
        group,
        |row, k| code(codes, row_words, row, bits, stream, k),
        |row, g| {
            (
                scale.get(scales, row * groups + g).unwrap_or(0.0),
                zero(row, g) as f32,
            )
        },
    )
}

/// Decodes `w = q * scale` with signed bytes and one scale per row or per tensor.
pub(super) fn int8(job: &TranscodeJob<'_>, scale: Float) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    let codes = job.part(PartRole::Weight, n.checked_mul(k))?;
    let scales = job.part(PartRole::Scales, Some(scale.bytes()))?;
    let per_row = scales.len() / scale.bytes() >= n;
    Ok(job.affine(
        |row, k| codes[row * job.cols + k] ^ 0x80,
        |row, _| {
            (
                scale
                    .get(scales, if per_row { row } else { 0 })
                    .unwrap_or(0.0),
                128.0,
            )
        },
    ))
}
