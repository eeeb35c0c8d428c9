//! The matmuls of a linear layer `y = alpha · x Wᵀ`: forward, gradient of the input, gradient of
//! the weights. The first two read W in any layout of the engine.

use crate::kernel::{TrainKernel, TrainLaunch, TrainVariant};
use jerboa::device::registry::Variant;
use jerboa::format::WeightLayout;
use jerboa::format::layout::Float;
use jerboa::kernels::fold;
use jerboa::kernels::matmul::{WeightPlanes, weight_flags};
use jerboa::kernels::view::View;

/// The three matmuls.
pub(crate) const MATMUL: TrainKernel = TrainKernel("matmul");

/// The first two on subgroup matrices.
pub(crate) const MATMUL_MATRIX: TrainKernel = TrainKernel("matmul_matrix");
/// Scales of rows for products of f16, which only subgroup matrices read.
pub(crate) const ROW_SCALES: TrainKernel = TrainKernel("row_scales");

/// What a matmul needs on subgroup matrices, next to its other operands.
#[derive(Debug, Clone, Copy)]
pub struct MatrixOperands<B> {
    /// The layout of its weight.
    pub layout: WeightLayout,
    /// A power of two for each row of the left factor: see [`row_scales`]. Gradients need them,
    /// activations are within f16 as they are.
    pub scales: Option<B>,
}

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

impl<B> WeightRows<B> {
    /// Whether matmuls with them may run on subgroup matrices. f32 weights keep their precision.
    pub fn takes_matrices(&self) -> bool {
        self.planes.layout != WeightLayout::Dense(Float::F32)
    }

    fn matrix_operands(&self) -> Option<MatrixOperands<B>> {
        self.takes_matrices().then_some(MatrixOperands {
            layout: self.planes.layout,
            scales: None,
        })
    }
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
    let mut launch = matmul(variant, m, weight.count, weight.planes.cols as usize);
    launch.matrix = weight.matrix_operands();
    read_weight(operands(launch, x, y, alpha), weight).bind_opt("bias", bias)
}

/// Returns `scales[m]` of the rows of `x[m, cols]`, for [`TrainLaunch::with_scales`].
pub fn row_scales<B: Clone>([m, cols]: [usize; 2], x: &View<B>, scales: B) -> TrainLaunch<B> {
    TrainLaunch::new(Variant::new(ROW_SCALES), fold(m as u64))
        .set("rows", m)
        .set("cols", cols)
        .view(["x", "x_offset", "x_stride"], x)
        .bind("scales", scales)
}

/// Returns `dx[m, k] = alpha · dy[m, n] W`; adds to dx if `add`. It may run on subgroup matrices
/// with the scales of the rows of dy: [`TrainLaunch::with_scales`].
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
    let mut launch = matmul(variant, m, weight.planes.cols as usize, weight.count);
    launch.matrix = weight.matrix_operands();
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
