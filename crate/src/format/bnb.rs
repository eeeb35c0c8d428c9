//! Decodes bitsandbytes: nf4 and fp4 with one or two levels of scales, int8 with one scale per row.

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::TranscodeJob;
use crate::Result;

/// Decodes `w = map[code] * absmax`; with double quantization
/// `absmax = nested_map[byte] * nested_absmax + offset`.
pub(super) fn four_bit(
    job: &TranscodeJob<'_>,
    block: usize,
    nested: Option<usize>,
    offset: f32,
) -> Result<PackedMatrix> {
    let block = block.max(1);
    let total = job.source.stored_rows.checked_mul(job.cols);
    let codes = job.part(PartRole::Weight, total.map(|n| n.div_ceil(2)))?;
    let map = job.part(PartRole::QuantMap, Some(64))?;
    let blocks = total.map(|n| n.div_ceil(block));
    let scales = job.part(
        PartRole::Scales,
        blocks.and_then(|n| n.checked_mul(if nested.is_some() { 1 } else { 4 })),
    )?;
    let second = match nested {
        Some(size) => {
            let len = blocks
                .map(|n| n.div_ceil(size.max(1)))
                .and_then(|n| n.checked_mul(4));
            Some((
                job.part(PartRole::NestedMap, Some(1024))?,
                job.part(PartRole::NestedScales, len)?,
                size.max(1),
            ))
        }
        None => None,
    };
    let absmax = |i: usize| match second {
        Some((map, scales2, size)) => {
            let level = Float::F32.get(map, usize::from(scales[i])).unwrap_or(0.0);
            level * Float::F32.get(scales2, i / size).unwrap_or(0.0) + offset
        }
        None => Float::F32.get(scales, i).unwrap_or(0.0),
    };
    Ok(job.dense(|row, col| {
        let i = row * job.cols + col;
        // The high nibble comes first.
        let code = if i.is_multiple_of(2) {
            codes[i / 2] >> 4
        } else {
            codes[i / 2] & 15
        };
        Float::F32.get(map, usize::from(code)).unwrap_or(0.0) * absmax(i / block)
    }))
}

/// Row scales from the largest magnitude of each row (f32, little-endian), divided by 127.
pub fn row_scales(largest: &[u8]) -> Vec<f32> {
    (0..largest.len() / 4)
        .map(|row| Float::F32.get(largest, row).unwrap_or(0.0) / 127.0)
        .collect()
}

/// Decodes `w = q * (largest magnitude of the row / 127)`.
pub(super) fn int8(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let codes = job.part(PartRole::Weight, n.checked_mul(job.cols))?;
    let scales = row_scales(job.part(PartRole::Scales, n.checked_mul(4))?);
    Ok(job.affine(
        |row, k| codes[row * job.cols + k] ^ 0x80,
        |row, _| (scales.get(row).copied().unwrap_or(0.0), 128.0),
    ))
}
