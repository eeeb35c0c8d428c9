//! CPU reference of shaders/norm: RMSNorm and LayerNorm in f64, and 8-bit quantization.

/// A norm of rows of `cols` columns:
/// `(x - mean) / sqrt(mean square + eps) * (gain + offset) + bias`. The mean is the row's for
/// LayerNorm and 0 for RMSNorm.
#[derive(Debug, Clone, Copy)]
pub struct NormReference<'a> {
    /// Columns per row.
    pub cols: usize,
    /// Whether the mean is subtracted (LayerNorm).
    pub layer: bool,
    /// `[cols]`; None means 1 - offset.
    pub gain: Option<&'a [f32]>,
    /// `[cols]`.
    pub bias: Option<&'a [f32]>,
    /// Added to the gain.
    pub offset: f32,
    /// Added to the mean square.
    pub eps: f32,
}

impl NormReference<'_> {
    /// Norms each row.
    pub fn of(&self, x: &[f32]) -> Vec<f32> {
        let mut y = Vec::with_capacity(x.len());
        for row in x.chunks_exact(self.cols) {
            let count = self.cols as f64;
            let mean = if self.layer {
                row.iter().map(|v| f64::from(*v)).sum::<f64>() / count
            } else {
                0.0
            };
            let square = row
                .iter()
                .map(|v| (f64::from(*v) - mean).powi(2))
                .sum::<f64>()
                / count;
            let factor = 1.0 / (square + f64::from(self.eps)).sqrt();
            y.extend(row.iter().enumerate().map(|(c, v)| {
                let gain = self
                    .gain
                    .map_or(1.0, |g| f64::from(g[c]) + f64::from(self.offset));
                let bias = self.bias.map_or(0.0, |b| f64::from(b[c]));
                ((f64::from(*v) - mean) * factor * gain + bias) as f32
            }));
        }
        y
    }
}

/// Computes `(rest + normed + more) * scale` elementwise.
pub fn norm_residual(normed: &[f32], rest: &[f32], more: &[f32], scale: f32) -> Vec<f32> {
    let more = more.iter().copied().chain(std::iter::repeat(0.0));
    normed
        .iter()
        .zip(rest)
        .zip(more)
        .map(|((n, r), m)| (r + n + m) * scale)
        .collect()
}

/// RMSNorm of each row: `x / sqrt(mean(x²) + eps) * (gain + offset)`.
pub fn rms_norm(x: &[f32], gain: &[f32], offset: f32, eps: f32) -> Vec<f32> {
    NormReference {
        cols: gain.len(),
        layer: false,
        gain: Some(gain),
        bias: None,
        offset,
        eps,
    }
    .of(x)
}

/// Rounds each row to 8 bits: multiples of 1/127 of its largest magnitude.
pub fn round_to_int8(x: &[f32], cols: usize) -> Vec<f32> {
    x.chunks_exact(cols)
        .flat_map(|row: &[f32]| {
            let steps = 127.0 / row.iter().fold(1e-5f32, |most, v| most.max(v.abs()));
            row.iter()
                .map(|v| (v * steps).round_ties_even() / steps)
                .collect::<Vec<f32>>()
        })
        .collect()
}
