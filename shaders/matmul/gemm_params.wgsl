// Parameters and operands of a GEMM over rows of x, or with EXPERTS over row-expert pairs, and the weight row of an
// output.
struct Params {
#import matmul/product_params
    scale: f32,
    softcap: f32,
#ifdef EXPERTS
    // Selected experts per row of x, and the start of their order.
    each: u32,
    order_at: u32,
    first_expert: u32,
    expert_count: u32,
    expert_rows: u32,
    row_step: u32,
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
#ifdef EXPERTS
// Row-expert pairs sorted by expert, in tiles (shaders/experts/bucket.wgsl): rows of x are those of a tile's pairs.
@group(0) @binding(7) var<storage, read> buckets: array<u32>;
var<private> expert_row: u32;
var<private> bias_row: u32;
// Each pair has its own row of out.
const out_first: u32 = 0u;
#else
@group(0) @binding(8) var<storage, read> state: State;
#endif

fn output_row(n: u32) -> u32 {
#ifdef EXPERTS
    return expert_row + n * params.row_step;
#else
    return params.row0 + n;
#endif
}
