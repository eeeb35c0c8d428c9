// RMSNorm, or LayerNorm with LAYER, of each row: one workgroup a row.
struct Params {
    cols: u32,
    x_offset: u32,
    x_stride: u32,
    out_stride: u32,
    eps: f32,
    offset: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#ifdef GAIN
@group(0) @binding(3) var<storage, read> gain: array<f32>;
#endif
#ifdef BIAS
@group(0) @binding(4) var<storage, read> bias: array<f32>;
#endif

var<workgroup> partial: array<f32, 256>;
var<workgroup> sixteenths: array<f32, 16>;

// The sum over the workgroup; every thread gets it.
fn total(lid: u32, value: f32) -> f32 {
    partial[lid] = value;
    workgroupBarrier();
    if (lid < 16u) {
        var sum = 0.0;
        for (var i = lid; i < 256u; i += 16u) { sum += partial[i]; }
        sixteenths[lid] = sum;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) { sum += sixteenths[i]; }
    return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.x + wid.y * groups.x;
    let base = params.x_offset + row * params.x_stride;
    var mean = 0.0;
#ifdef LAYER
    var sum = 0.0;
    for (var c = lid; c < params.cols; c += 256u) { sum += x[base + c]; }
    mean = total(lid, sum) / f32(params.cols);
#endif
    var squares = 0.0;
    for (var c = lid; c < params.cols; c += 256u) {
        let v = x[base + c] - mean;
        squares += v * v;
    }
    let factor = inverseSqrt(total(lid, squares) / f32(params.cols) + params.eps);
    for (var c = lid; c < params.cols; c += 256u) {
        var y = (x[base + c] - mean) * factor;
#ifdef GAIN
        y *= gain[c] + params.offset;
#endif
#ifdef BIAS
        y += bias[c];
#endif
        out[row * params.out_stride + c] = y;
    }
}
