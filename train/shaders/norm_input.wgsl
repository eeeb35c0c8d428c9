// Gradient of a norm's input, from `stats` of its forward: with n = (x - mean) · factor and d = dy · (gain + offset),
// dx = factor · (d - mean(d) - n · mean(d · n)); RMSNorm has no mean(d). ADD adds to out.
struct Params {
    cols: u32,
    groups: u32,
    parts: u32,
    x_offset: u32,
    x_stride: u32,
    dy_offset: u32,
    dy_stride: u32,
    out_offset: u32,
    out_stride: u32,
    gain_offset: u32,
    offset: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
#ifdef GAIN
@group(0) @binding(3) var<storage, read> gain: array<f32>;
#endif
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> stats: array<vec2<f32>>;
#import train/total

fn scaled(at: u32, c: u32) -> f32 {
#ifdef GAIN
    return dy[at + c] * (gain[params.gain_offset + c] + params.offset);
#else
    return dy[at + c];
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let part = wid.x + wid.y * groups.x;
    if (part >= params.parts) { return; }
    let row = part / params.groups;
    let first = part % params.groups * params.cols;
    let below = params.x_offset + row * params.x_stride + first;
    let above = params.dy_offset + row * params.dy_stride + first;
    let count = f32(params.cols);
    let mean = stats[part].x;
    let factor = stats[part].y;
    var products = 0.0;
    for (var c = lid; c < params.cols; c += 64u) { products += scaled(above, c) * (x[below + c] - mean) * factor; }
    let along = total(lid, products) / count;
    var level = 0.0;
#ifdef LAYER
    var sum = 0.0;
    for (var c = lid; c < params.cols; c += 64u) { sum += scaled(above, c); }
    level = total(lid, sum) / count;
#endif
    let to = params.out_offset + row * params.out_stride + first;
    for (var c = lid; c < params.cols; c += 64u) {
        var value = factor * (scaled(above, c) - level - (x[below + c] - mean) * factor * along);
#ifdef ADD
        value += out[to + c];
#endif
        out[to + c] = value;
    }
}
