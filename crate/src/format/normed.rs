//! Decodes weight norm: `w = g * v / |v|`, with direction `v` [rows, cols] and one length `g` per row.

use super::encoding::Role;
use super::job::Job;
use super::layout::{Float, Packed};
use crate::Result;

/// Scales each row to its length; both parts have the same element type.
pub(super) fn transcode(job: &Job<'_>, float: Float) -> Result<Packed> {
    let (rows, cols) = (job.source.stored_rows, job.cols);
    let size = |count: usize| count.checked_mul(float.bytes());
    let directions = job.part(Role::Weight, rows.checked_mul(cols).and_then(size))?;
    let lengths = job.part(Role::Scales, size(rows))?;
    let value = |at: usize| float.get(directions, at).unwrap_or(0.0);
    // Without rows only the part sizes are checked.
    let factor = |row: usize| {
        let squares: f64 = (0..cols).map(|col| f64::from(value(row * cols + col)).powi(2)).sum();
        // A zero row stays zero.
        if squares > 0.0 { f64::from(float.get(lengths, row).unwrap_or(0.0)) / squares.sqrt() } else { 0.0 }
    };
    let factors: Vec<f64> = (0..if job.rows == 0 { 0 } else { rows }).map(factor).collect();
    Ok(job.dense(|row, col| (f64::from(value(row * cols + col)) * factors.get(row).copied().unwrap_or(0.0)) as f32))
}

#[cfg(test)]
mod tests {
    use crate::format::{Bytes, Encoding, Float, Layout, Role, WeightSource, transcode_to};

    #[test]
    fn rows_get_their_lengths() {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let (v, g) = (bytes(&[3.0, 4.0, 0.0, 0.0, 0.0, -2.0]), bytes(&[10.0, 7.0, 0.5]));
        let source = WeightSource::new("w", vec![3, 2], Encoding::Normed(Float::F32), vec![]);
        let given = Bytes::new().with(Role::Weight, &v).with(Role::Scales, &g);
        let packed = transcode_to(&source, &given, Layout::Dense(Float::F32)).unwrap();
        let words = packed.layout.row_words(2);
        let row = |r: usize| [0, 1].map(|c| f32::from_bits(packed.planes[0][r * words + c]));
        assert_eq!([row(0), row(1), row(2)], [[6.0, 8.0], [0.0, 0.0], [0.0, -0.5]]);
        let short = Bytes::new().with(Role::Weight, &v).with(Role::Scales, &g[..8]);
        assert!(transcode_to(&source, &short, Layout::Dense(Float::F32)).is_err());
    }
}
