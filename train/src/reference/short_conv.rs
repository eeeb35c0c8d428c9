//! Causal depthwise convolution of rows within their sequences, and its gradients.

/// A convolution of `[rows, cols]`, each column by itself.
#[derive(Debug, Clone)]
pub struct ShortConvLayer {
    /// Columns.
    pub cols: usize,
    /// Kernel size, current row included.
    pub taps: usize,
    /// First and end row of each row's sequence.
    pub spans: Vec<[usize; 2]>,
}

impl ShortConvLayer {
    /// Calls `each` with (output row, input row, tap) of all pairs within a sequence.
    fn pairs(&self, mut each: impl FnMut(usize, usize, usize)) {
        for (row, [first, _]) in self.spans.iter().enumerate() {
            for tap in 0..self.taps {
                let distance = self.taps - 1 - tap;
                if row >= first + distance {
                    each(row, row - distance, tap);
                }
            }
        }
    }

    /// Returns the output of x; `weight` is `[cols][taps]`, oldest row first.
    pub fn forward(&self, x: &[f64], weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
        let mut out = vec![0.0; x.len()];
        if let Some(bias) = bias {
            for row in out.chunks_exact_mut(self.cols) {
                row.copy_from_slice(bias);
            }
        }
        self.pairs(|row, from, tap| {
            for c in 0..self.cols {
                out[row * self.cols + c] += weight[c * self.taps + tap] * x[from * self.cols + c];
            }
        });
        out
    }

    /// Returns the gradient of x.
    pub fn input(&self, dy: &[f64], weight: &[f64]) -> Vec<f64> {
        let mut dx = vec![0.0; dy.len()];
        self.pairs(|row, from, tap| {
            for c in 0..self.cols {
                dx[from * self.cols + c] += weight[c * self.taps + tap] * dy[row * self.cols + c];
            }
        });
        dx
    }

    /// Returns the gradient of the weight.
    pub fn weight(&self, x: &[f64], dy: &[f64]) -> Vec<f64> {
        let mut dw = vec![0.0; self.cols * self.taps];
        self.pairs(|row, from, tap| {
            for c in 0..self.cols {
                dw[c * self.taps + tap] += dy[row * self.cols + c] * x[from * self.cols + c];
            }
        });
        dw
    }
}
