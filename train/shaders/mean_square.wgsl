// Mean square error of predictions against targets: the gradient in place of the predictions, 2 (p - t) · hyper.loss_scale,
// and the sum of squares of each row in `losses`.
struct Params {
    cols: u32,
    stride: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> predictions: array<f32>;
@group(0) @binding(2) var<storage, read> goals: array<f32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;
#import train/hyper
#import train/total

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let base = wid.y * params.stride;
    var squares = 0.0;
    for (var c = lid; c < params.cols; c += 64u) {
        let d = predictions[base + c] - goals[wid.y * params.cols + c];
        squares += d * d;
        predictions[base + c] = 2.0 * d * hyper.loss_scale;
    }
    squares = total(lid, squares);
    if (lid == 0u) { losses[wid.y] = squares; }
}
