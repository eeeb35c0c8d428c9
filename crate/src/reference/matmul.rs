//! Twin of shaders/matmul: products with all that is done to their input and output.

/// `x [rows, k] · wᵀ [n, k]`, summed in f64.
pub fn product(x: &[f32], w: &[f32], rows: usize, n: usize, k: usize) -> Vec<f32> {
    let mut y = Vec::with_capacity(rows * n);
    for r in 0..rows {
        for c in 0..n {
            let (xr, wr) = (&x[r * k..(r + 1) * k], &w[c * k..(c + 1) * k]);
            y.push(xr.iter().zip(wr).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32);
        }
    }
    y
}

/// RMSNorm of each row: `x / sqrt(mean(x²) + eps) * (gain + offset)`.
pub fn rms_norm(x: &[f32], gain: &[f32], offset: f32, eps: f32) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(gain.len()) {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        y.extend(row.iter().zip(gain).map(|(v, g)| (f64::from(*v) * factor * f64::from(g + offset)) as f32));
    }
    y
}

/// The activation of that number in shaders/common/activation.wgsl.
pub fn activate(kind: u32, x: f32) -> f32 {
    let x = f64::from(x);
    let y = match kind {
        1 => x / (1.0 + (-x).exp()),
        2 => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x.powi(3))).tanh()),
        3 => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        4 => x.max(0.0),
        5 => 1.0 / (1.0 + (-x).exp()),
        6 => x.tanh(),
        7 => x.max(0.0).powi(2),
        _ => x,
    };
    y as f32
}

/// The error function by its Maclaurin series below 3 and its continued fraction above, to f64's precision there.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        return x.signum() * sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut fraction = 0.0;
    for n in (1..60).rev() {
        fraction = f64::from(n) / 2.0 / (a + fraction);
    }
    x.signum() * (1.0 - (-a * a).exp() / ((a + fraction) * std::f64::consts::PI.sqrt()))
}
