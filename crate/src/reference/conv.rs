//! CPU reference of shaders/conv: causal depthwise convolution, row by row in f64.

use super::elementwise::activate;

/// Filters of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct ShortConvReference<'a> {
    /// Kernel size.
    pub kernel_size: usize,
    /// `[channels][taps]`, oldest row first.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// Activation code of shaders/common/activation.wgsl.
    pub act: u32,
    /// Input scales by first channel, in ascending order.
    pub scales: [(usize, f32); 3],
}

impl ShortConvReference<'_> {
    /// Computes the output rows `[row][channels]`. `memory` holds the `taps - 1` preceding rows and
    /// is updated.
    pub fn of(&self, x: &[f32], memory: &mut Vec<f32>) -> Vec<f32> {
        let channels = self.weight.len() / self.kernel_size;
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(channels) {
            memory.extend(row);
            for c in 0..channels {
                let seen = (0..self.kernel_size).map(|t| {
                    f64::from(self.weight[c * self.kernel_size + t])
                        * f64::from(memory[t * channels + c])
                });
                let scale = self
                    .scales
                    .iter()
                    .rfind(|s| s.0 <= c)
                    .map_or(1.0, |s| f64::from(s.1));
                let sum = scale * seen.sum::<f64>() + self.bias.map_or(0.0, |b| f64::from(b[c]));
                out.push(activate(self.act, sum as f32));
            }
            memory.drain(..channels);
        }
        out
    }
}
