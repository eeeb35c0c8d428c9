// `Params`, input and state of the products whose x is quantized (quantize_octet.wgsl).
struct Params {
    k_blocks: u32,
    groups: u32,
    n: u32,
    row0: u32,
    // Units of 64 per row of x.
    units: u32,
    // 1 if splitk_reduce finishes tiles of one workgroup too.
    reduced: u32,
    out_offset: u32,
    out_stride: u32,
    res_offset: u32,
    res_stride: u32,
    res_times: u32,
#ifdef OPTIONAL
    has: u32,
#endif
    up_row: u32,
    scale: f32,
    softcap: f32,
#ifdef EXPERTS
#import matmul/pair_params
    alpha: f32,
    limit: f32,
#endif
#ifdef QUANTIZED
    // Units of 64 per row of the output.
    out_units: u32,
#ifdef NORM
    norm_offset: f32,
    // Sums of squares behind the rows: one for 32 columns, each in a pair of words.
    squares_at: u32,
#endif
#endif
#ifdef DIVIDED
    eps: f32,
    // Columns that were normed.
    normed: u32,
    // Such sums behind the rows of x: two for 64 columns, in four words.
    divided_at: u32,
#endif
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
// Five per unit: four of bytes, then (scale, sum) of each group.
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
#import matmul/rows
