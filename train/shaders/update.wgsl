// Updates f32 weights from clipped gradients, as PyTorch's optimizers do:
//   SGD: g += decay · w; with MOMENTUM m = beta1 · m + g and g = m; w -= rate · g.
//   ADAMW: w -= rate · decay · w; m and v are moving means of g and g²; w -= rate / correction1 · m / (√(v / correction2) + eps).
// DECAY applies the weight decay.
struct Params {
    count: u32,
    beta1: f32,
    beta2: f32,
    eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> weight: array<f32>;
@group(0) @binding(2) var<storage, read> gradient: array<f32>;
@group(0) @binding(3) var<storage, read> clip: array<f32>;
#ifdef MOMENTUM
@group(0) @binding(4) var<storage, read_write> mean: array<f32>;
#endif
#ifdef ADAMW
@group(0) @binding(4) var<storage, read_write> mean: array<f32>;
@group(0) @binding(5) var<storage, read_write> square: array<f32>;
#endif
#import train/hyper

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * groups.x) * 256u + lid;
    if (i >= params.count) { return; }
    var w = weight[i];
    var g = gradient[i] * clip[1];
#ifdef ADAMW
#ifdef DECAY
    w *= 1.0 - hyper.learning_rate * hyper.weight_decay;
#endif
    let m = params.beta1 * mean[i] + (1.0 - params.beta1) * g;
    let v = params.beta2 * square[i] + (1.0 - params.beta2) * g * g;
    mean[i] = m;
    square[i] = v;
    w -= hyper.learning_rate / hyper.correction1 * m / (sqrt(v / hyper.correction2) + params.eps);
#else
#ifdef DECAY
    g += hyper.weight_decay * w;
#endif
#ifdef MOMENTUM
    g += params.beta1 * mean[i];
    mean[i] = g;
#endif
    w -= hyper.learning_rate * g;
#endif
    weight[i] = w;
}
