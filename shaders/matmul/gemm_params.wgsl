// Parameters and operands of a GEMM over rows of x, or with EXPERTS over row-expert pairs, and the weight row of an
// output.
struct Params {
#import matmul/product_params
    scale: f32,
    softcap: f32,
#ifdef EXPERTS
#import matmul/pair_params
    alpha: f32,
    limit: f32,
#endif
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import weights/any
#import matmul/epilogue
#import matmul/bounds
#import matmul/rows
