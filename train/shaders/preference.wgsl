// DPO's loss of pairs (arXiv 2305.18290, eq. 7), a workgroup per pair, from the cross-entropies of rows. An answer's
// log-ratio is its log-probability less that by the reference model. With
//   z = beta · (log-ratio of chosen - log-ratio of rejected)
// `results` has per pair: -log sigmoid(z), both log-ratios, and 1 if z > 0. A pair without rows has zeros.
// GRADIENT also writes the gradient of each row's cross-entropy, for cross_entropy.wgsl: sigmoid(-z) · beta ·
// hyper.loss_scale for the rows of chosen, the opposite for those of rejected.
struct Params {
    beta: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> losses: array<f32>;
// First and end row of chosen, then of rejected.
@group(0) @binding(2) var<storage, read> pairs: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> references: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> results: array<vec4<f32>>;
#ifdef GRADIENT
@group(0) @binding(5) var<storage, read_write> scales: array<f32>;
#import train/hyper
#endif
#import train/total

fn log_probability(lid: u32, first: u32, end: u32) -> f32 {
    var sum = 0.0;
    for (var row = first + lid; row < end; row += 64u) { sum -= losses[row]; }
    return total(lid, sum);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let rows = pairs[wid.y];
    if (rows.x == rows.y) {
        if (lid == 0u) { results[wid.y] = vec4<f32>(0.0); }
        return;
    }
    let chosen = log_probability(lid, rows.x, rows.y) - references[wid.y].x;
    let rejected = log_probability(lid, rows.z, rows.w) - references[wid.y].y;
    let z = params.beta * (chosen - rejected);
    if (lid == 0u) {
        var is_preferred = 0.0;
        if (z > 0.0) { is_preferred = 1.0; }
        results[wid.y] = vec4<f32>(max(-z, 0.0) + log(1.0 + exp(-abs(z))), chosen, rejected, is_preferred);
    }
#ifdef GRADIENT
    let scale = params.beta * hyper.loss_scale / (1.0 + exp(min(z, 80.0)));
    for (var row = rows.x + lid; row < rows.y; row += 64u) { scales[row] = scale; }
    for (var row = rows.z + lid; row < rows.w; row += 64u) { scales[row] = -scale; }
#endif
}
