//! Decodes FP4 E2M1: MLX's mxfp4 and nvfp4, gpt-oss blocks, nvfp4 of compressed-tensors and
//! ModelOpt.

use super::encoding::PartRole;
use super::fp8::e4m3;
use super::layout::{E2M1, Float, PackedMatrix};
use super::transcode_job::{TranscodeJob, read_code};
use crate::Result;

/// Decodes codes in element order, low nibble first, with an E8M0 byte per 32: both MLX's words and
/// gpt-oss blocks.
fn decode_mxfp4(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    if !k.is_multiple_of(32) {
        return Err(job.malformed(format!(
            "{k} columns are not a multiple of the block size 32"
        )));
    }
    let codes = job.part(PartRole::Weight, n.checked_mul(k / 2))?;
    let scales = job.part(PartRole::Scales, n.checked_mul(k / 32))?;
    let mut out = PackedMatrix::zeros(job.layout, job.rows, k);
    for row in 0..job.rows {
        let stored = job.stored_row(row);
        job.codes(&mut out, row, |k| {
            read_code(codes, stored * (job.cols / 2), 4, k)
        });
        for block in 0..k / 32 {
            out.set_param_byte(row * (k / 32) + block, scales[stored * (k / 32) + block]);
        }
    }
    Ok(out)
}

/// Decodes MLX mode `mxfp4`.
pub(super) fn mlx(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    decode_mxfp4(job)
}

/// Decodes gpt-oss: `*_blocks` [experts, out, in / 32, 16] and `*_scales` [experts, out, in / 32].
pub(super) fn gpt_oss(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    decode_mxfp4(job)
}

/// Half of the scale of each E4M3 byte, with the global scale of NVFP4 applied. `part` returns the
/// bytes of a part, if it is stored. Kernels look these up because GPU division is inexact.
pub fn half_scales<'a>(part: &dyn Fn(PartRole) -> Option<&'a [u8]>) -> Vec<f32> {
    let global = |role| Float::F32.get(part(role)?, 0);
    let divisor = global(PartRole::GlobalScale).unwrap_or(1.0);
    let factor = global(PartRole::GlobalFactor).unwrap_or(1.0);
    (0..=255u8)
        .map(|byte| e4m3(byte) / divisor * factor * 0.5)
        .collect()
}

/// Decodes `w = e2m1 * scale` with an E4M3 scale per 16, divided or multiplied by the global scale if
/// present.
///
/// Twice an E2M1 value is a signed 5-bit integer, so the affine layout with half the scale is exact
/// (-0 becomes 0).
pub(super) fn nvfp4(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    if !k.is_multiple_of(16) {
        return Err(job.malformed(format!(
            "{k} columns are not a multiple of the group size 16"
        )));
    }
    let codes = job.part(PartRole::Weight, n.checked_mul(k / 2))?;
    let scales = job.part(PartRole::Scales, n.checked_mul(k / 16))?;
    for role in [PartRole::GlobalScale, PartRole::GlobalFactor] {
        if job.bytes.get(role).is_some() {
            job.part(role, Some(4))?;
        }
    }
    let half = half_scales(&|role| job.bytes.get(role));
    Ok(job.affine(
        |row, k| {
            (2.0 * E2M1[usize::from(read_code(codes, row * (job.cols / 2), 4, k))] + 16.0) as u8
        },
        |row, k| {
            (
                half[usize::from(scales[row * (job.cols / 16) + k / 16])],
                16.0,
            )
        },
    ))
}
