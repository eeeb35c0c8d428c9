// Softmax cross-entropy of each row of logits, and its gradient in their place: (softmax - one hot) · hyper.loss_scale, or
// with SCALES · scales[row]. Rows whose label is IGNORED have no loss and no gradient. `losses` has a loss per row.
struct Params {
    cols: u32,
    stride: u32,
}
const IGNORED = 0xffffffffu;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;
@group(0) @binding(2) var<storage, read> labels: array<u32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;
#ifdef GRADIENT
#ifdef SCALES
@group(0) @binding(4) var<storage, read> scales: array<f32>;
#else
#import train/hyper
#endif
#endif
#import train/total

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = wid.y;
    let base = row * params.stride;
    let label = labels[row];
    if (label == IGNORED) {
#ifdef GRADIENT
        for (var c = lid; c < params.cols; c += 64u) { logits[base + c] = 0.0; }
#endif
        if (lid == 0u) { losses[row] = 0.0; }
        return;
    }
    var most = -3.0e38;
    for (var c = lid; c < params.cols; c += 64u) { most = max(most, logits[base + c]); }
    most = highest(lid, most);
    var sum = 0.0;
    for (var c = lid; c < params.cols; c += 64u) { sum += exp(max(logits[base + c] - most, -80.0)); }
    sum = total(lid, sum);
    if (lid == 0u) { losses[row] = log(sum) - (logits[base + label] - most); }
#ifdef GRADIENT
    workgroupBarrier();
#ifdef SCALES
    let scale = scales[row];
#else
    let scale = hyper.loss_scale;
#endif
    for (var c = lid; c < params.cols; c += 64u) {
        var probability = exp(max(logits[base + c] - most, -80.0)) / sum;
        if (c == label) { probability -= 1.0; }
        logits[base + c] = probability * scale;
    }
#endif
}
