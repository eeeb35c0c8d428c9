//! RMSNorm and LayerNorm and their gradients.

/// A norm of rows of `cols` columns: `(x - mean) / √(mean square + eps) * (gain + offset) + bias`.
#[derive(Debug, Clone)]
pub struct NormLayer {
    /// Columns per row.
    pub cols: usize,
    /// Whether the mean is subtracted (LayerNorm).
    pub layer: bool,
    /// `[cols]`; None means 1 without an offset.
    pub gain: Option<Vec<f64>>,
    /// `[cols]`.
    pub bias: Option<Vec<f64>>,
    /// Added to the gain.
    pub offset: f64,
    /// Added to the mean square.
    pub eps: f64,
}

impl NormLayer {
    fn normed(&self, row: &[f64]) -> (Vec<f64>, f64) {
        let count = self.cols as f64;
        let mean = if self.layer {
            row.iter().sum::<f64>() / count
        } else {
            0.0
        };
        let square = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (square + self.eps).sqrt();
        (row.iter().map(|v| (v - mean) * factor).collect(), factor)
    }

    fn gain(&self, c: usize) -> f64 {
        self.gain.as_ref().map_or(1.0, |gain| gain[c] + self.offset)
    }

    /// Returns the normed rows.
    pub fn forward(&self, x: &[f64]) -> Vec<f64> {
        let rows = x.chunks_exact(self.cols);
        rows.flat_map(|row| {
            let normed = self.normed(row).0;
            let bias = |c: usize| self.bias.as_ref().map_or(0.0, |bias| bias[c]);
            (0..self.cols)
                .map(|c| normed[c] * self.gain(c) + bias(c))
                .collect::<Vec<f64>>()
        })
        .collect()
    }

    /// Returns the gradient of x.
    pub fn input(&self, x: &[f64], dy: &[f64]) -> Vec<f64> {
        let count = self.cols as f64;
        let rows = x.chunks_exact(self.cols).zip(dy.chunks_exact(self.cols));
        rows.flat_map(|(row, dy)| {
            let (normed, factor) = self.normed(row);
            let d: Vec<f64> = (0..self.cols).map(|c| dy[c] * self.gain(c)).collect();
            let mean = if self.layer {
                d.iter().sum::<f64>() / count
            } else {
                0.0
            };
            let along = d.iter().zip(&normed).map(|(d, n)| d * n).sum::<f64>() / count;
            (0..self.cols)
                .map(|c| factor * (d[c] - mean - normed[c] * along))
                .collect::<Vec<f64>>()
        })
        .collect()
    }

    /// Returns the gradients of gain and bias.
    pub fn weights(&self, x: &[f64], dy: &[f64]) -> [Vec<f64>; 2] {
        let mut gain = vec![0.0; self.cols];
        let mut bias = vec![0.0; self.cols];
        for (row, dy) in x.chunks_exact(self.cols).zip(dy.chunks_exact(self.cols)) {
            let normed = self.normed(row).0;
            for c in 0..self.cols {
                gain[c] += dy[c] * normed[c];
                bias[c] += dy[c];
            }
        }
        [gain, bias]
    }
}
