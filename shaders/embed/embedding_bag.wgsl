// Weighted sums of table rows (embedding bag). With PAIRS, a row of x holds `taps` pairs of row index and weight, as
// for interpolated positions. Without, its columns weight all table rows: a matmul with a matrix stored [in, out].
struct Params {
    k: u32,
    k_blocks: u32,
    groups: u32,
    taps: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
#ifdef PAIRS
@group(0) @binding(1) var<storage, read> x: array<u32>;
#else
@group(0) @binding(1) var<storage, read> x: array<f32>;
#endif
#import weights/any
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let k = (wid.x * 64u + lid) * 4u;
    if (k < params.k) {
        let at = params.x_offset + row * params.x_stride;
        var sum = vec4<f32>(0.0);
        for (var tap = 0u; tap < params.taps; tap++) {
#ifdef PAIRS
            let number = x[at + 2u * tap];
            let weight = bitcast<f32>(x[at + 2u * tap + 1u]);
#else
            let number = tap;
            let weight = x[at + tap];
#endif
            if (weight != 0.0) { sum += w_load4(number, k) * weight; }
        }
        out[(row * params.out_stride + k) / 4u] = sum;
    }
}
