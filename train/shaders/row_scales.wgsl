// A power of two for each row that brings its largest magnitude to between 2^14 and 2^15, for products of f16
// (matmul_matrix.wgsl).
struct Params {
    rows: u32,
    cols: u32,
    x_offset: u32,
    x_stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;

// Places of the exponent in the bits of an f32.
const EXPONENT: u32 = 23u;
// The biased exponents of 2^14 and of 1, together.
const TARGET: u32 = 127u + 14u + 127u;
var<workgroup> largest: array<u32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let row = wid.y * groups.x + wid.x;
    if (row >= params.rows) { return; }
    let first = params.x_offset + row * params.x_stride;
    // Bits of magnitudes compare as the magnitudes do.
    var bits = 0u;
    for (var c = lid; c < params.cols; c += 64u) {
        bits = max(bits, bitcast<u32>(x[first + c]) & 0x7fffffffu);
    }
    largest[lid] = bits;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lid < half) { largest[lid] = max(largest[lid], largest[lid + half]); }
    }
    if (lid == 0u) {
        // Rows of tiny values stay tiny: their scale would not be an f32.
        let exponent = max(largest[0] >> EXPONENT, TARGET - 254u);
        scales[row] = bitcast<f32>((TARGET - exponent) << EXPONENT);
    }
}
