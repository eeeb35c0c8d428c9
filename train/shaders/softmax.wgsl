// Softmax of rows, or with GRADIENT the gradient of its input from its output y: y · (dy - Σ dy · y).
struct Params {
    cols: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
#ifdef GRADIENT
@group(0) @binding(2) var<storage, read> dy: array<f32>;
#endif
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
#import train/total

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let base = wid.y * params.cols;
#ifdef GRADIENT
    var sum = 0.0;
    for (var c = lid; c < params.cols; c += 64u) { sum += x[base + c] * dy[base + c]; }
    sum = total(lid, sum);
    for (var c = lid; c < params.cols; c += 64u) { out[base + c] = x[base + c] * (dy[base + c] - sum); }
#else
    var most = -3.0e38;
    for (var c = lid; c < params.cols; c += 64u) { most = max(most, x[base + c]); }
    most = highest(lid, most);
    var sum = 0.0;
    for (var c = lid; c < params.cols; c += 64u) { sum += exp(max(x[base + c] - most, -80.0)); }
    sum = total(lid, sum);
    for (var c = lid; c < params.cols; c += 64u) { out[base + c] = exp(max(x[base + c] - most, -80.0)) / sum; }
#endif
}
