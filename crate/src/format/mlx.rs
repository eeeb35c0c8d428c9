//! Decodes MLX's affine quantization: a bit stream per row, a scale and a bias per group.

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::{TranscodeJob, read_code};
use crate::Result;

/// Decodes `w = q * scale + bias`. Codes of 3, 5 and 6 bits straddle words, as `mx.quantize` packs
/// them.
pub(super) fn affine(
    job: &TranscodeJob<'_>,
    bits: u8,
    group: usize,
    scale: Float,
) -> Result<PackedMatrix> {
    let bits = usize::from(bits);
    let rows = job.source.stored_rows;

    let row_bytes = job.cols * bits / 8;
    let groups = job.cols.div_ceil(group.max(1));
    let data = job.part(PartRole::Weight, rows.checked_mul(row_bytes))?;
    let len = rows
        .checked_mul(groups)
        .and_then(|n| n.checked_mul(scale.bytes()));
    let scales = job.part(PartRole::Scales, len)?;
    let biases = job.part(PartRole::Biases, len)?;

    Ok(job.affine(
        |row, k| read_code(data, row * row_bytes, bits, k),
        |row, k| {
            let at = row * groups + k / group;
            (
                scale.get(scales, at).unwrap_or(0.0),
                scale.get(biases, at).unwrap_or(0.0),
            )
        },
    ))
}
