//! A linear layer `y = x Wᵀ` and its gradients.

/// Returns `x Wᵀ` for x `[m, k]` and W `[n, k]`.
pub fn linear(x: &[f64], w: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let dot = |i: usize, j: usize| (0..k).map(|r| x[i * k + r] * w[j * k + r]).sum();
    (0..m * n).map(|at| dot(at / n, at % n)).collect()
}

/// Returns `dy W`: the gradient of x.
pub fn linear_input(dy: &[f64], w: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let dot = |i: usize, c: usize| (0..n).map(|j| dy[i * n + j] * w[j * k + c]).sum();
    (0..m * k).map(|at| dot(at / k, at % k)).collect()
}

/// Returns `dyᵀ x`: the gradient of W.
pub fn linear_weight(dy: &[f64], x: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let dot = |j: usize, c: usize| (0..m).map(|i| dy[i * n + j] * x[i * k + c]).sum();
    (0..n * k).map(|at| dot(at / k, at % k)).collect()
}
