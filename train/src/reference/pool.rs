//! Pooling of packed sequences and its gradient.

use jerboa::ir::Pooling;

/// Pooling of rows with `cols` columns.
#[derive(Debug, Clone)]
pub struct PoolLayer {
    /// Columns.
    pub cols: usize,
    /// How rows become one.
    pub pooling: Pooling,
    /// First and end row of each sequence.
    pub spans: Vec<[usize; 2]>,
}

impl PoolLayer {
    /// Weights of the rows of a span in column `c`.
    fn weights(&self, x: &[f64], [first, end]: [usize; 2], c: usize) -> Vec<f64> {
        let n = (end - first) as f64;
        let only = |wanted: usize| (first..end).map(|row| f64::from(row == wanted)).collect();
        match self.pooling {
            Pooling::Mean => vec![1.0 / n; end - first],
            Pooling::First => only(first),
            Pooling::Last => only(end - 1),
            Pooling::Max => {
                let at = |row: usize| x[row * self.cols + c];
                let larger = |best: usize, row: usize| if at(row) > at(best) { row } else { best };
                only((first..end).fold(first, larger))
            }
            Pooling::MeanSqrt => vec![1.0 / n.sqrt(); end - first],
            Pooling::Weighted => {
                let all = n * (n + 1.0) / 2.0;
                (1..=end - first).map(|place| place as f64 / all).collect()
            }
        }
    }

    /// Returns the pooled rows of x, `[spans, cols]`.
    pub fn forward(&self, x: &[f64]) -> Vec<f64> {
        let mut out = Vec::with_capacity(self.spans.len() * self.cols);
        for span in &self.spans {
            for c in 0..self.cols {
                let weights = self.weights(x, *span, c);
                let rows = weights.iter().zip(span[0]..);
                out.push(rows.map(|(w, row)| w * x[row * self.cols + c]).sum());
            }
        }
        out
    }

    /// Returns the gradient of x; rows outside the spans have none.
    pub fn input(&self, x: &[f64], dy: &[f64]) -> Vec<f64> {
        let mut dx = vec![0.0; x.len()];
        for (sequence, span) in self.spans.iter().enumerate() {
            for c in 0..self.cols {
                let above = dy[sequence * self.cols + c];
                for (w, row) in self.weights(x, *span, c).iter().zip(span[0]..) {
                    dx[row * self.cols + c] += w * above;
                }
            }
        }
        dx
    }
}
