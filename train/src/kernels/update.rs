//! Norm and clipping of gradients, and updates of f32 weights.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;

/// Elements that a workgroup sums for the norm of all gradients.
const RANGE: usize = 16_384;

/// Partial sums of squares of a gradient of `count` elements.
pub fn square_sums(count: usize) -> usize {
    count.div_ceil(RANGE)
}

/// Returns the sums of squares of a gradient, into `out` from place `first` on.
pub fn squares<B: Clone>(count: usize, gradient: B, first: usize, out: B) -> TrainLaunch<B> {
    let variant = Variant::new(TrainKernel("sum")).flag("SQUARES");
    TrainLaunch::new(variant, [square_sums(count) as u32, 1, 1])
        .bind("x", gradient)
        .bind("out", out)
        .set("count", count)
        .set("first", first)
        .set("range", RANGE)
}

/// Returns the norm of all gradients from `count` sums of squares, and the factor that clips them.
pub fn clip<B: Clone>(count: usize, sums: B, hyper: B, out: B) -> TrainLaunch<B> {
    TrainLaunch::new(Variant::new(TrainKernel("sum")).flag("CLIP"), [1, 1, 1])
        .bind("x", sums)
        .bind("hyper", hyper)
        .bind("out", out)
        .set("count", count)
        .set("first", 0)
        .set("range", count)
}

/// An optimizer, with the names and formulas of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Gradient descent.
    Sgd {
        /// Factor of the moving sum of gradients; 0 for none.
        momentum: f32,
    },
    /// AdamW (arXiv 1711.05101).
    AdamW {
        /// Decay of the moving mean of gradients.
        beta1: f32,
        /// Decay of the moving mean of their squares.
        beta2: f32,
        /// Added to the root of the squares.
        eps: f32,
    },
}

impl Optimizer {
    /// AdamW with PyTorch's defaults.
    pub const ADAMW: Self = Self::AdamW {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };

    /// State buffers of a weight, each as large as the weight.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd { momentum: 0.0 } => 0,
            Self::Sgd { .. } => 1,
            Self::AdamW { .. } => 2,
        }
    }

    /// Returns the update of a weight of `count` elements. `states` has [`Self::states`] buffers.
    pub fn update<B: Clone>(
        self,
        count: usize,
        decay: bool,
        weight: B,
        gradient: B,
        states: &[B],
        [clip, hyper]: [B; 2],
    ) -> TrainLaunch<B> {
        let mut variant = Variant::new(TrainKernel("update")).flag_if("DECAY", decay);
        let mut numbers = [0.0; 3];
        match self {
            Self::Sgd { momentum } => {
                variant = variant.flag_if("MOMENTUM", momentum != 0.0);
                numbers[0] = momentum;
            }
            Self::AdamW { beta1, beta2, eps } => {
                variant = variant.flag("ADAMW");
                numbers = [beta1, beta2, eps];
            }
        }
        TrainLaunch::threads(variant, count, 256)
            .bind("weight", weight)
            .bind("gradient", gradient)
            .bind("clip", clip)
            .bind("hyper", hyper)
            .bind_opt("mean", states.first().cloned())
            .bind_opt("square", states.get(1).cloned())
            .set("count", count)
            .set_f32("beta1", numbers[0])
            .set_f32("beta2", numbers[1])
            .set_f32("eps", numbers[2])
    }
}
