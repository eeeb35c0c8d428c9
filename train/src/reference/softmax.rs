//! Softmax of rows and its gradient.

/// Returns the softmax of each row of `cols` columns.
pub fn softmax(x: &[f64], cols: usize) -> Vec<f64> {
    let rows = x.chunks_exact(cols).flat_map(|row| {
        let most = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
        row.iter().map(move |x| (x - most).exp() / sum)
    });
    rows.collect()
}

/// Returns the gradient of x.
pub fn softmax_gradient(x: &[f64], dy: &[f64], cols: usize) -> Vec<f64> {
    let y = softmax(x, cols);
    let rows = y.chunks_exact(cols).zip(dy.chunks_exact(cols));
    rows.flat_map(|(y, dy)| {
        let sum: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
        y.iter().zip(dy).map(move |(y, dy)| y * (dy - sum))
    })
    .collect()
}
