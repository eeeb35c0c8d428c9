//! CPU reference of shaders/matmul.

pub use super::elementwise::activate;
pub use super::norm::rms_norm;

/// Computes `x [rows, k] · wᵀ [n, k]`, summed in f64.
pub fn matmul(x: &[f32], w: &[f32], rows: usize, n: usize, k: usize) -> Vec<f32> {
    let mut y = Vec::with_capacity(rows * n);
    for r in 0..rows {
        for c in 0..n {
            let xr = &x[r * k..(r + 1) * k];
            let wr = &w[c * k..(c + 1) * k];

            y.push(
                xr.iter()
                    .zip(wr)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum::<f64>() as f32,
            );
        }
    }
    y
}

/// Rounds groups of `size` elements of each row to 8 bits: multiples of 1/127 of their largest
/// magnitude.
pub fn round_groups_to_int8(x: &[f32], cols: usize, size: usize) -> Vec<f32> {
    let round = |group: &[f32]| {
        let scale = group.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 127.0;
        let inverse = 1.0 / scale.max(1e-35);
        group
            .iter()
            .map(|v| (v * inverse).round_ties_even() * scale)
            .collect::<Vec<_>>()
    };
    x.chunks(cols)
        .flat_map(|row| row.chunks(size).flat_map(round).collect::<Vec<_>>())
        .collect()
}
