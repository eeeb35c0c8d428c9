//! Updates of weights, as PyTorch's optimizers do them.

use crate::kernels::update::Optimizer;

/// A weight with the states of its optimizer.
#[derive(Debug, Clone)]
pub struct OptimizedWeight {
    /// The values.
    pub values: Vec<f64>,
    mean: Vec<f64>,
    square: Vec<f64>,
    steps: i32,
}

impl OptimizedWeight {
    /// A weight before its first step.
    pub fn new(values: Vec<f64>) -> Self {
        Self {
            mean: vec![0.0; values.len()],
            square: vec![0.0; values.len()],
            values,
            steps: 0,
        }
    }

    /// Updates the weight with a gradient.
    pub fn step(&mut self, optimizer: Optimizer, rate: f64, decay: f64, gradient: &[f64]) {
        self.steps += 1;
        for (i, g) in gradient.iter().enumerate() {
            let w = &mut self.values[i];
            match optimizer {
                Optimizer::Sgd { momentum } => {
                    self.mean[i] = f64::from(momentum) * self.mean[i] + g + decay * *w;
                    *w -= rate * self.mean[i];
                }
                Optimizer::AdamW { beta1, beta2, eps } => {
                    let [beta1, beta2, eps] = [beta1, beta2, eps].map(f64::from);
                    *w *= 1.0 - rate * decay;
                    self.mean[i] = beta1 * self.mean[i] + (1.0 - beta1) * g;
                    self.square[i] = beta2 * self.square[i] + (1.0 - beta2) * g * g;
                    let mean = self.mean[i] / (1.0 - beta1.powi(self.steps));
                    let square = self.square[i] / (1.0 - beta2.powi(self.steps));
                    *w -= rate * mean / (square.sqrt() + eps);
                }
            }
        }
    }
}
