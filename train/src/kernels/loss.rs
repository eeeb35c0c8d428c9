//! Losses of rows with their gradients, and their sum.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// Label of a row without a loss.
pub const IGNORED: u32 = u32::MAX;

/// Returns the softmax cross-entropy of each row of logits into `losses`. With `gradient`, replaces
/// the logits by their gradient.
pub fn cross_entropy<B: Clone>(
    [rows, cols]: [usize; 2],
    logits: &View<B>,
    labels: B,
    losses: B,
    hyper: Option<B>,
) -> TrainLaunch<B> {
    debug_assert_eq!(logits.offset, 0);
    let variant = Variant::new(TrainKernel("cross_entropy")).flag_if("GRADIENT", hyper.is_some());
    TrainLaunch::new(variant, [1, rows as u32, 1])
        .bind("logits", logits.buffer.clone())
        .bind("labels", labels)
        .bind("losses", losses)
        .bind_opt("hyper", hyper)
        .set("cols", cols)
        .set("stride", logits.stride as usize)
}

/// Returns the sum of squared errors of each row into `losses`, and replaces the predictions by the
/// gradient of the mean square error.
pub fn mean_square<B: Clone>(
    [rows, cols]: [usize; 2],
    predictions: &View<B>,
    goals: B,
    losses: B,
    hyper: B,
) -> TrainLaunch<B> {
    debug_assert_eq!(predictions.offset, 0);
    TrainLaunch::new(
        Variant::new(TrainKernel("mean_square")),
        [1, rows as u32, 1],
    )
    .bind("predictions", predictions.buffer.clone())
    .bind("goals", goals)
    .bind("losses", losses)
    .bind("hyper", hyper)
    .set("cols", cols)
    .set("stride", predictions.stride as usize)
}

/// Adds the sum of the losses of `rows` rows to `out[0]`.
pub fn add_losses<B: Clone>(rows: usize, losses: B, out: B) -> TrainLaunch<B> {
    TrainLaunch::new(Variant::new(TrainKernel("sum")).flag("LOSS"), [1, 1, 1])
        .bind("x", losses)
        .bind("out", out)
        .set("count", rows)
        .set("first", 0)
        .set("range", rows)
}
