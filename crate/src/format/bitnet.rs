//! Decodes BitNet's safetensors: packed ternary weights (four rows per byte, one scale) or
//! unquantized master weights.

use super::encoding::{Encoding, PartRole, WeightSource};
use super::layout::{Float, PackedMatrix};
use super::transcode_job::TranscodeJob;
use crate::Result;

/// The factor of a stored scale. 1 / scale has the same bits as ±1 / scale except for the sign.
fn scale_factor(divide: bool, scale: Float, bytes: &[u8]) -> f32 {
    let stored = scale.get(bytes, 0).unwrap_or(0.0);
    if divide { 1.0 / stored } else { stored }
}

/// The scale of all rows of a packed BitNet weight; `None` for other encodings.
pub fn row_scale(source: &WeightSource, bytes: &[u8]) -> Option<f32> {
    match source.encoding {
        Encoding::BitNet { divide, scale } => Some(scale_factor(divide, scale, bytes)),
        _ => None,
    }
}

/// Decodes packed ternary weights: bits 2i and 2i+1 of byte row r encode row i * rows / 4 + r, as
/// value plus one.
pub(super) fn transcode(
    job: &TranscodeJob<'_>,
    divide: bool,
    scale: Float,
) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    let quarter = n.div_ceil(4);
    let codes = job.part(PartRole::Weight, quarter.checked_mul(k))?;
    let scale = scale_factor(
        divide,
        scale,
        job.part(PartRole::Scales, Some(scale.bytes()))?,
    );
    let mut out = PackedMatrix::zeros(job.layout, job.rows, k);
    for row in 0..job.rows {
        let at = job.stored_row(row);
        let byte_row = at % quarter;
        let shift = 2 * (at / quarter);

        job.codes(&mut out, row, |k| {
            codes[byte_row * job.cols + k] >> shift & 3
        });
        out.planes[1][row] = scale.to_bits();
    }
    Ok(out)
}

/// Ternarizes master weights: `clamp(round(w / m), -1, 1) * m`, where m is the mean magnitude of
/// the tensor.
pub(super) fn ternarize(job: &TranscodeJob<'_>, float: Float) -> Result<PackedMatrix> {
    let count = job.source.stored_rows.checked_mul(job.cols);
    let data = job.part(
        PartRole::Weight,
        count.and_then(|n| n.checked_mul(float.bytes())),
    )?;
    let count = count.unwrap_or(0);
    let value = |i: usize| float.get(data, i).unwrap_or(0.0);
    let sum: f64 = (0..if job.rows > 0 { count } else { 0 })
        .map(|i| f64::from(value(i).abs()))
        .sum();
    let scale = 1.0 / ((sum / count.max(1) as f64) as f32).max(1e-5);
    let mut out = PackedMatrix::zeros(job.layout, job.rows, job.cols);
    for row in 0..job.rows {
        let at = job.stored_row(row) * job.cols;
        job.codes(&mut out, row, |k| {
            (1.0 + (value(at + k) * scale).round_ties_even().clamp(-1.0, 1.0)) as u8
        });
        out.planes[1][row] = (1.0 / scale).to_bits();
    }
    Ok(out)
}
