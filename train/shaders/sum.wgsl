// Sums, in one fixed order. SQUARES: the sum of squares of each of the dispatch's equal ranges of x, into out[first + group].
// Otherwise one workgroup sums x; LOSS adds the sum to out[0], CLIP writes (norm, factor of the gradients) from a sum of
// squares.
struct Params {
    count: u32,
    first: u32,
    range: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#ifdef CLIP
#import train/hyper
#endif
#import train/total

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let begin = wid.x * params.range;
    let end = min(params.count, begin + params.range);
    var sum = 0.0;
    for (var i = begin + lid; i < end; i += 64u) {
#ifdef SQUARES
        sum += x[i] * x[i];
#else
        sum += x[i];
#endif
    }
    sum = total(lid, sum);
    if (lid == 0u) {
#ifdef SQUARES
        out[params.first + wid.x] = sum;
#endif
#ifdef LOSS
        out[0] += sum;
#endif
#ifdef CLIP
        let norm = sqrt(sum);
        var factor = 1.0;
        if (hyper.max_norm > 0.0) { factor = min(1.0, hyper.max_norm / (norm + 1e-6)); }
        out[0] = norm;
        out[1] = factor;
#endif
    }
}
