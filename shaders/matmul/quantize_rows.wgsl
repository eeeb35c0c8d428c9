// Quantizes rows of x to signed bytes for gemm_packed and gemv_packed (see quantize_octet.wgsl), eight elements a
// thread: `times` rows of x for each of the step. Columns beyond K are zero. NORM quantizes rmsnorm(x): the norm's
// factor only multiplies scales and sums, and each workgroup computes it for itself.
struct Params {
    k: u32,
    // Units of 64 per row.
    units: u32,
    times: u32,
    x_offset: u32,
    x_stride: u32,
#ifdef NORM
    eps: f32,
    norm_offset: f32,
#endif
}
#import common/state
const THREADS: u32 = 128u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import matmul/bounds
@group(0) @binding(2) var<storage, read_write> quantized: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> state: State;
#import matmul/quantize_octet
#ifdef NORM
@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>;

const WG: u32 = THREADS;
#import common/total

// The factor of the norm of a row that begins at `start`.
fn norm_factor(start: u32, lid: u32) -> f32 {
    var square = 0.0;
    for (var at = lid; at * 4u < params.k; at += THREADS) {
        let v = inside(x[start + at], at * 4u);
        square += dot(v, v);
    }
    return inverseSqrt(total(lid, square) / f32(params.k) + params.eps);
}
#endif

// Four values of the row, times the norm's gain.
fn value_of(start: u32, column: u32) -> vec4<f32> {
    let at = min(column, params.k - 1u) / 4u;
#ifdef NORM
    return inside(x[start + at] * (norm[at] + params.norm_offset), column);
#else
    return inside(x[start + at], column);
#endif
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.z;
    if (row >= state.rows * params.times) {
        return;
    }
    let octet = wid.x * THREADS + lid;
    let start = (params.x_offset + row * params.x_stride) / 4u;
    let a = value_of(start, octet * 8u);
    let b = value_of(start, octet * 8u + 4u);
    var factor = 1.0;
#ifdef NORM
    factor = norm_factor(start, lid);
#endif
    quantize_octet(lid, row, params.units, octet, a, b, factor);
}
