//! Norm and clipping of gradients, and updates of f32 weights.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;

/// Bytes of `Hyper` in train/shaders/hyper.wgsl.
pub const HYPER_BYTES: usize = 32;
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

    /// The numbers of `Hyper` in train/shaders/hyper.wgsl for step `step`, counted from 1, with a loss
    /// over `counted` labels or elements.
    pub fn hyper(
        self,
        step: i32,
        counted: usize,
        learning_rate: f32,
        weight_decay: f32,
        max_norm: f32,
    ) -> [f32; HYPER_BYTES / 4] {
        let [correction1, correction2] = match self {
            Self::AdamW { beta1, beta2, .. } => {
                [beta1, beta2].map(|beta| (1.0 - f64::from(beta).powi(step)) as f32)
            }
            Self::Sgd { .. } => [1.0; 2],
        };
        [
            1.0 / counted as f32,
            learning_rate,
            weight_decay,
            correction1,
            correction2,
            max_norm,
            0.0,
            0.0,
        ]
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

/// A weight that an optimizer updates.
pub struct UpdatedWeight<B> {
    /// Its elements, with the padding of rows.
    pub count: usize,
    /// The weight.
    pub weight: B,
    /// Its gradient.
    pub gradient: B,
    /// Its [`Optimizer::states`] buffers.
    pub states: Vec<B>,
}

/// Buffers that the updates of all weights share.
pub struct UpdateBuffers<B> {
    /// The [`square_sums`] of all gradients.
    pub square_sums: B,
    /// The norm of all gradients and the factor that clips them.
    pub clip: B,
    /// [`Optimizer::hyper`].
    pub hyper: B,
}

/// Returns the norm of all gradients, and the update of each weight.
pub fn update_launches<B: Clone>(
    optimizer: Optimizer,
    decay: bool,
    weights: &[UpdatedWeight<B>],
    shared: &UpdateBuffers<B>,
) -> Vec<TrainLaunch<B>> {
    let mut launches = Vec::new();
    let mut sums = 0;
    for weight in weights {
        let (gradient, out) = (weight.gradient.clone(), shared.square_sums.clone());
        launches.push(squares(weight.count, gradient, sums, out));
        sums += square_sums(weight.count);
    }
    launches.push(clip(
        sums,
        shared.square_sums.clone(),
        shared.hyper.clone(),
        shared.clip.clone(),
    ));
    for weight in weights {
        launches.push(optimizer.update(
            weight.count,
            decay,
            weight.weight.clone(),
            weight.gradient.clone(),
            &weight.states,
            [shared.clip.clone(), shared.hyper.clone()],
        ));
    }
    launches
}
