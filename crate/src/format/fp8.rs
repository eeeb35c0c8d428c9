//! Decodes FP8 E4M3 with scales per block, row or tensor, and MLX's mxfp8 with E8M0 scales.

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::TranscodeJob;
use crate::Result;

/// The value of an E4M3 byte (the `fn` variant: no infinities, 0x7f and 0xff are NaN).
pub fn e4m3(byte: u8) -> f32 {
    let exponent = byte >> 3 & 15;
    let mantissa = byte & 7;

    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => f32::from(m) / 512.0,
        (e, m) => f32::from_bits((u32::from(e) + 120) << 23 | u32::from(m) << 20),
    };
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Decodes `w = e4m3 * scale`, or `e4m3 / scale` with `divide`, in f32; `block` is (rows, columns)
/// per scale.
pub(super) fn transcode(
    job: &TranscodeJob<'_>,
    block: (usize, usize),
    divide: bool,
    scale: Float,
) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    let block_rows = block.0.max(1);
    let block_cols = block.1.max(1);

    let across = k.div_ceil(block_cols);
    let codes = job.part(PartRole::Weight, n.checked_mul(k))?;
    let len = n
        .div_ceil(block_rows)
        .checked_mul(across)
        .and_then(|x| x.checked_mul(scale.bytes()));
    let scales = job.part(PartRole::Scales, len)?;
    Ok(job.dense(|row, col| {
        let at = row / block_rows * across + col / block_cols;
        let code = e4m3(codes[row * k + col]);
        let scale = scale.get(scales, at).unwrap_or(0.0);
        if divide { code / scale } else { code * scale }
    }))
}

/// Decodes MLX's mxfp8: `w = e4m3 * 2^(e - 127)`, exact in bf16 except for subnormals.
pub(super) fn mxfp8(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;

    let blocks = k.div_ceil(32);
    let codes = job.part(PartRole::Weight, n.checked_mul(k))?;
    let scales = job.part(PartRole::Scales, n.checked_mul(blocks))?;
    Ok(job.dense(|row, col| e4m3(codes[row * k + col]) * e8m0(scales[row * blocks + col / 32])))
}

/// Computes 2^(e - 127).
pub fn e8m0(e: u8) -> f32 {
    f32::from_bits(if e == 0 {
        0x0040_0000
    } else {
        u32::from(e) << 23
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_values() {
        assert_eq!(
            [0x38, 0xb8, 0x7e, 0x01, 0x08, 0x00].map(e4m3),
            [1.0, -1.0, 448.0, 1.0 / 512.0, 1.0 / 64.0, 0.0]
        );
        assert!(e4m3(0x7f).is_nan() && e4m3(0x80).is_sign_negative());
    }
}
