// Quantizes rows of x to signed bytes for gemm_packed and gemv_packed: per X_GROUP elements (32 or 64) a scale, so that the largest is
// 127, and the sum of its bytes times the scale. A thread takes a group. Rows are stored in units of 64 elements, ten
// pairs of words: sixteen words of bytes, then (scale, sum) of each group. Columns beyond K are zero. NIBBLES: the bytes
// of an octet are ordered as its nibbles are unpacked, the even ones first. NORM quantizes rmsnorm(x): the norm's factor
// only multiplies scales and sums, and each workgroup computes it for itself.
struct Params {
    k: u32,
    // Units of 64 per row.
    units: u32,
    x_offset: u32,
    x_stride: u32,
#ifdef NORM
    eps: f32,
    norm_offset: f32,
#endif
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
#import matmul/bounds
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> state: State;
#ifdef NORM
@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>;

var<workgroup> squares: array<f32, 64>;

// The factor of the norm of a row that begins at `start`.
fn norm_factor(start: u32, lid: u32) -> f32 {
    var square = 0.0;
    for (var at = lid; at * 4u < params.k; at += 64u) {
        let v = inside(x[start + at], at * 4u);
        square += dot(v, v);
    }
    squares[lid] = square;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lid < half) {
            squares[lid] += squares[lid + half];
        }
    }
    workgroupBarrier();
    return inverseSqrt(squares[0] / f32(params.k) + params.eps);
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

// Added to a float below 2^22, it leaves the nearest integer in the lowest bits: conversions are slow.
const WHOLE: f32 = 12582912.0;

// The lowest bytes of four words.
fn bytes_of(v: vec4<u32>) -> u32 {
    let b = v & vec4<u32>(255u);
    return (b.x | (b.y << 8u)) | ((b.z << 16u) | (b.w << 24u));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = wid.x * 64u + lid;
    let row = wid.z;
    if (row >= state.rows) {
        return;
    }
    let start = (params.x_offset + row * params.x_stride) / 4u;
    var factor = 1.0;
#ifdef NORM
    factor = norm_factor(start, lid);
#endif
    if (group >= params.units * (64u / X_GROUP)) {
        return;
    }
    let first = group * X_GROUP;
    var top = vec4<f32>();
#for i in 0..X_GROUP/8
    let a$i = value_of(start, first + $iu * 8u);
    let b$i = value_of(start, first + $iu * 8u + 4u);
    top = max(top, max(abs(a$i), abs(b$i)));
#endfor
    let scale = max(max(top.x, top.y), max(top.z, top.w)) / 127.0;
    // Below, a scale has no inverse.
    let inverse = 1.0 / max(scale, 1e-35);
    let at = (row * params.units + first / 64u) * 10u;
    let part = group % (64u / X_GROUP);
    var sum = 0i;
#for i in 0..X_GROUP/8
    let p$i = fma(a$i, vec4<f32>(inverse), vec4<f32>(WHOLE));
    let q$i = fma(b$i, vec4<f32>(inverse), vec4<f32>(WHOLE));
#ifdef NIBBLES
    let low$i = bitcast<vec4<u32>>(vec4<f32>(p$i.xz, q$i.xz));
    let high$i = bitcast<vec4<u32>>(vec4<f32>(p$i.yw, q$i.yw));
#else
    let low$i = bitcast<vec4<u32>>(p$i);
    let high$i = bitcast<vec4<u32>>(q$i);
#endif
    let bytes$i = vec2<u32>(bytes_of(low$i), bytes_of(high$i));
    sum += dot4I8Packed(bytes$i.x, 0x01010101u) + dot4I8Packed(bytes$i.y, 0x01010101u);
    out[at + part * 4u + $iu] = bytes$i;
#endfor
    out[at + 8u + part] = bitcast<vec2<u32>>(vec2<f32>(scale, f32(sum) * scale) * factor);
}
