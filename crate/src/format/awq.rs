//! Decodes AWQ (GEMM version): nibbles packed along the outputs in AWQ's order.

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::{TranscodeJob, read_u32};
use crate::Result;

/// The nibble of output j of eight: the inverse of the order 0 2 4 6 1 3 5 7.
const NIBBLE_OF_OUTPUT: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Decodes `w = (q - zero) * scale`.
pub(super) fn transcode(
    job: &TranscodeJob<'_>,
    group: usize,
    scale: Float,
) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    if !n.is_multiple_of(8) {
        return Err(job.malformed(format!("{n} outputs are not a multiple of 8")));
    }
    let words = n / 8;
    let groups = k.div_ceil(group.max(1));

    let codes = job.part(PartRole::Weight, k.checked_mul(n / 2))?;
    let zeros = job.part(PartRole::Zeros, groups.checked_mul(n / 2))?;
    let scales = job.scales(groups, n, scale)?;
    let nibble = |data: &[u8], line: usize, row: usize| {
        (read_u32(data, line * words + row / 8) >> (4 * NIBBLE_OF_OUTPUT[row % 8]) & 15) as u8
    };
    Ok(job.affine(
        |row, k| nibble(codes, k, row),
        |row, k| {
            let g = k / group;
            (
                scale.get(scales, g * n + row).unwrap_or(0.0),
                f32::from(nibble(zeros, g, row)),
            )
        },
    ))
}
