//! The matmuls of a linear layer `y = alpha · x Wᵀ`: forward, gradient of the input, gradient of
//! the weights. The first two read W in any layout of the engine.

use crate::kernel::{TrainKernel, TrainLaunch, TrainVariant};
use jerboa::device::registry::Variant;
use jerboa::kernels::matmul::{WeightPlanes, weight_flags};
use jerboa::kernels::view::View;

/// The three matmuls.
pub(crate) const MATMUL: TrainKernel = TrainKernel("matmul");

/// Rows of a weight that a linear layer uses.
#[derive(Debug, Clone)]
pub struct WeightRows<B> {
    /// The weight, or a shard of it.
    pub planes: WeightPlanes<B>,
    /// First row to use.
    pub first: usize,
    /// Rows to use: outputs of the layer.
    pub count: usize,
}

/// A matmul with an output of `[rows, cols]` and sums of `depth` terms. Its grid is the device's
/// choice.
fn matmul<B: Clone>(
    variant: TrainVariant,
    rows: usize,
    cols: usize,
    depth: usize,
) -> TrainLaunch<B> {
    TrainLaunch::new(variant, [1, 1, 1])
        .set("rows", rows)
        .set("cols", cols)
        .set("depth", depth)
}

fn read_weight<B: Clone>(launch: TrainLaunch<B>, weight: &WeightRows<B>) -> TrainLaunch<B> {
    let planes = &weight.planes;
    launch
        .weight(
            planes.layout,
            planes.cols as usize,
            planes.q.clone(),
            planes.s.clone(),
        )
        .set("row0", weight.first)
}

fn operands<B: Clone>(
    launch: TrainLaunch<B>,
    a: &View<B>,
    out: &View<B>,
    alpha: f32,
) -> TrainLaunch<B> {
    launch
        .view(["a", "a_offset", "a_stride"], a)
        .view(["out", "out_offset", "out_stride"], out)
        .set_f32("alpha", alpha)
}

/// Returns `y[m, n] = alpha · x[m, k] Wᵀ + bias`.
pub fn linear<B: Clone>(
    weight: &WeightRows<B>,
    m: usize,
    alpha: f32,
    x: &View<B>,
    bias: Option<B>,
    y: &View<B>,
) -> TrainLaunch<B> {
    let variant = Variant::new(MATMUL)
        .flag("FORWARD")
        .flag_if("BIAS", bias.is_some());
    let variant = weight_flags(variant, weight.planes.layout);
    let launch = matmul(variant, m, weight.count, weight.planes.cols as usize);
    read_weight(operands(launch, x, y, alpha), weight).bind_opt("bias", bias)
}

/// Returns `dx[m, k] = alpha · dy[m, n] W`; adds to dx if `add`.
pub fn linear_input<B: Clone>(
    weight: &WeightRows<B>,
    m: usize,
    alpha: f32,
    dy: &View<B>,
    dx: &View<B>,
    add: bool,
) -> TrainLaunch<B> {
    let variant = Variant::new(MATMUL).flag("INPUT").flag_if("ADD", add);
    let variant = weight_flags(variant, weight.planes.layout);
    let launch = matmul(variant, m, weight.planes.cols as usize, weight.count);
    read_weight(operands(launch, dy, dx, alpha), weight)
}

/// Returns `dW[n, k] += alpha · dy[m, n]ᵀ x[m, k]`, with `[m, n, k]` in `sizes`.
pub fn linear_weight<B: Clone>(
    [m, n, k]: [usize; 3],
    alpha: f32,
    dy: &View<B>,
    x: &View<B>,
    dw: &View<B>,
) -> TrainLaunch<B> {
    let variant = Variant::new(MATMUL).flag("WEIGHT").flag("ADD");
    operands(matmul(variant, n, k, m), dy, dw, alpha).view(["b", "b_offset", "b_stride"], x)
}
