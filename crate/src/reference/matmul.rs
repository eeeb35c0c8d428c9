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
