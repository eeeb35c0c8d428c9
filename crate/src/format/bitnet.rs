//! BitNet's packed safetensors: ternary weights, four rows per byte, one scale. Knows no files.

use super::encoding::Role;
use super::layout::{Float, Packed};
use super::transcode::Job;
use crate::Result;

/// Bits 2i and 2i+1 of byte row r hold row i * rows / 4 + r, value plus one.
pub(super) fn transcode(job: &Job<'_>, divide: bool, scale: Float) -> Result<Packed> {
    let (n, k) = (job.source.stored_rows, job.cols);
    let quarter = n.div_ceil(4);
    let codes = job.part(Role::Weight, quarter.checked_mul(k))?;
    let stored = scale.get(job.part(Role::Scales, Some(scale.bytes()))?, 0).unwrap_or(0.0);
    // Dividing 1 gives the bits of dividing -1 or 0, but for the sign.
    let scale = if divide { 1.0 / stored } else { stored };
    let mut out = Packed::zeros(job.layout, job.rows, k);
    for row in 0..job.rows {
        let at = job.stored_row(row);
        let (byte_row, shift) = (at % quarter, 2 * (at / quarter));
        job.codes(&mut out, row, |k| codes[byte_row * job.cols + k] >> shift & 3);
        out.planes[1][row] = scale.to_bits();
    }
    Ok(out)
}
