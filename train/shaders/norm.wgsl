// RMSNorm, or LayerNorm with LAYER, of each row or each of `groups` column groups; one workgroup each:
// y = (x - mean) · factor · (gain + offset) + bias. `stats` has (mean, factor) of each group.
struct Params {
    cols: u32,
    groups: u32,
    parts: u32,
    x_offset: u32,
    x_stride: u32,
    out_offset: u32,
    out_stride: u32,
    gain_offset: u32,
    eps: f32,
    offset: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
#ifdef GAIN
@group(0) @binding(2) var<storage, read> gain: array<f32>;
#endif
#ifdef BIAS
@group(0) @binding(3) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> stats: array<vec2<f32>>;
#import train/total

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let part = wid.x + wid.y * groups.x;
    if (part >= params.parts) { return; }
    let row = part / params.groups;
    let first = part % params.groups * params.cols;
    let base = params.x_offset + row * params.x_stride + first;
    let count = f32(params.cols);
    var mean = 0.0;
#ifdef LAYER
    var sum = 0.0;
    for (var c = lid; c < params.cols; c += 64u) { sum += x[base + c]; }
    mean = total(lid, sum) / count;
#endif
    var squares = 0.0;
    for (var c = lid; c < params.cols; c += 64u) {
        let d = x[base + c] - mean;
        squares += d * d;
    }
    let factor = inverseSqrt(total(lid, squares) / count + params.eps);
    for (var c = lid; c < params.cols; c += 64u) {
        var y = (x[base + c] - mean) * factor;
#ifdef GAIN
        y *= gain[params.gain_offset + c] + params.offset;
#endif
#ifdef BIAS
        y += bias[c];
#endif
        out[params.out_offset + row * params.out_stride + first + c] = y;
    }
    if (lid == 0u) { stats[part] = vec2<f32>(mean, factor); }
}
