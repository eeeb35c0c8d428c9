//! Softmax of rows as a layer, and its gradient.

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;

/// Returns the softmax of each row.
pub fn softmax<B: Clone>([rows, cols]: [usize; 2], x: B, y: B) -> TrainLaunch<B> {
    TrainLaunch::new(Variant::new(TrainKernel("softmax")), [1, rows as u32, 1])
        .bind("x", x)
        .bind("out", y)
        .set("cols", cols)
}

/// Returns the gradient of the input from the output.
pub fn softmax_gradient<B: Clone>([rows, cols]: [usize; 2], y: B, dy: B, dx: B) -> TrainLaunch<B> {
    let variant = Variant::new(TrainKernel("softmax")).flag("GRADIENT");
    TrainLaunch::new(variant, [1, rows as u32, 1])
        .bind("x", y)
        .bind("dy", dy)
        .bind("out", dx)
        .set("cols", cols)
}
