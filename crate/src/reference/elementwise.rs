//! CPU reference of shaders/elementwise and shaders/common/activation, in f64.

/// Returns the last of `rows` rows of `cols` columns.
pub fn last_row(x: &[f32], cols: usize, rows: usize) -> Vec<f32> {
    x[(rows - 1) * cols..rows * cols].to_vec()
}

/// Builds zero-padded heads from inputs of `cols` columns. Each part gives its first column, the
/// stride to the next head, and the column count.
pub fn concat_heads(
    parts: &[([usize; 3], &[f32])],
    cols: usize,
    [rows, heads, head_dim]: [usize; 3],
) -> Vec<f32> {
    let mut out = vec![0.0; rows * heads * head_dim];
    for (at, head) in out.chunks_mut(head_dim).enumerate() {
        let mut place = 0;
        for ([first, step, taken], x) in parts {
            let from = at / heads * cols + first + at % heads * step;
            head[place..place + taken].copy_from_slice(&x[from..from + taken]);
            place += taken;
        }
    }
    out
}

/// Applies the activation of that code in shaders/common/activation.wgsl.
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
        8 => x / (1.0 + (-1.702 * x).exp()),
        _ => x,
    };
    y as f32
}

/// The error function in f64 precision: Maclaurin series below 3, continued fraction above.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        let mut term = a;
        let mut sum = a;
        let mut n = 0.0;

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
