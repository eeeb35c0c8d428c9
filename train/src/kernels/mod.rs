//! Launches of the kernels of train/shaders, by what they compute.

pub mod attention;
pub mod convolution;
pub mod elementwise;
pub mod embed;
pub mod gru;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod preference;
pub mod recurrent;
pub mod rope;
pub mod short_conv;
pub mod softmax;
pub mod update;

use crate::kernel::{TrainKernel, TrainLaunch};
use jerboa::device::registry::Variant;
use jerboa::kernels::view::View;

/// Returns the launch that zeroes `count` elements of a buffer.
pub fn fill<B: Clone>(count: usize, out: B) -> TrainLaunch<B> {
    TrainLaunch::threads(Variant::new(TrainKernel("fill")), count, 256)
        .bind("out", out)
        .set("count", count)
}

/// Returns the launch that swaps the first two dimensions of `[outer, middle, cols]`.
pub fn swap<B: Clone>([outer, middle, cols]: [usize; 3], x: B, out: B) -> TrainLaunch<B> {
    let count = outer * middle * cols;
    TrainLaunch::threads(Variant::new(TrainKernel("swap")), count, 256)
        .bind("x", x)
        .bind("out", out)
        .set("count", count)
        .set("outer", outer)
        .set("middle", middle)
        .set("cols", cols)
}

/// A view whose rows follow each other.
pub fn contiguous<B>(buffer: B, cols: usize) -> View<B> {
    View {
        buffer,
        offset: 0,
        stride: cols as u32,
    }
}
