// Parameters and operands of the matmuls of a linear layer, and the end of each sum.
struct Params {
    rows: u32,
    cols: u32,
    depth: u32,
    a_offset: u32,
    a_stride: u32,
    out_offset: u32,
    out_stride: u32,
    alpha: f32,
#ifdef WEIGHT
    b_offset: u32,
    b_stride: u32,
#else
    row0: u32,
    k_blocks: u32,
    groups: u32,
#endif
}
@group(0) @binding(0) var<uniform> params: Params;
#ifdef VECTORS
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read> a: array<f32>;
#endif
#ifdef WEIGHT
@group(0) @binding(2) var<storage, read> b: array<f32>;
#else
#import weights/any
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
#ifdef BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif
#ifdef SCALED
@group(0) @binding(6) var<storage, read> scales: array<f32>;
#endif

fn store(row: u32, col: u32, sum: f32) {
    if (row >= params.rows || col >= params.cols) { return; }
    let at = params.out_offset + row * params.out_stride + col;
    var value = params.alpha * sum;
#ifdef BIAS
    value += bias[col];
#endif
#ifdef ADD
    value += out[at];
#endif
    out[at] = value;
}
