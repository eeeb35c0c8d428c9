//! Decodes weight norm: `w = g * v / |v|`, with direction `v` [rows, cols] and one length `g` per
//! row.

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::TranscodeJob;
use crate::Result;

/// Scales each row to its length; both parts have the same element type.
pub(super) fn transcode(job: &TranscodeJob<'_>, float: Float) -> Result<PackedMatrix> {
    let rows = job.source.stored_rows;
    let cols = job.cols;

    let size = |count: usize| count.checked_mul(float.bytes());
    let directions = job.part(PartRole::Weight, rows.checked_mul(cols).and_then(size))?;
    let lengths = job.part(PartRole::Scales, size(rows))?;
    let value = |at: usize| float.get(directions, at).unwrap_or(0.0);
    // Without rows only the part sizes are checked.
    let factor = |row: usize| {
        let squares: f64 = (0..cols)
            .map(|col| f64::from(value(row * cols + col)).powi(2))
            .sum();
        // A zero row stays zero.
        if squares > 0.0 {
            f64::from(float.get(lengths, row).unwrap_or(0.0)) / squares.sqrt()
        } else {
            0.0
        }
    };
    let factors: Vec<f64> = (0..if job.rows == 0 { 0 } else { rows })
        .map(factor)
        .collect();
    Ok(job.dense(|row, col| {
        (f64::from(value(row * cols + col)) * factors.get(row).copied().unwrap_or(0.0)) as f32
    }))
}

#[cfg(test)]
mod tests {
    use crate::format::{
        Encoding, Float, PartBytes, PartRole, WeightLayout, WeightSource, transcode_to,
    };

    #[test]
    fn weight_norm_scales_rows() {
        let bytes = |values: &[f32]| {
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let v = bytes(&[3.0, 4.0, 0.0, 0.0, 0.0, -2.0]);
        let g = bytes(&[10.0, 7.0, 0.5]);

        let source = WeightSource::new("w", vec![3, 2], Encoding::WeightNorm(Float::F32), vec![]);
        let given = PartBytes::new()
            .with(PartRole::Weight, &v)
            .with(PartRole::Scales, &g);
        let packed = transcode_to(&source, &given, WeightLayout::Dense(Float::F32)).unwrap();
        let words = packed.layout.row_words(2);
        let row = |r: usize| [0, 1].map(|c| f32::from_bits(packed.planes[0][r * words + c]));
        assert_eq!(
            [row(0), row(1), row(2)],
            [[6.0, 8.0], [0.0, 0.0], [0.0, -0.5]]
        );
        let short = PartBytes::new()
            .with(PartRole::Weight, &v)
            .with(PartRole::Scales, &g[..8]);
        assert!(transcode_to(&source, &short, WeightLayout::Dense(Float::F32)).is_err());
    }
}
