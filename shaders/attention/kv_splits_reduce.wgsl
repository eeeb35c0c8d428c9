// Reduces the KV splits of one row when a matmul loads them as x: two groups of four columns of one head. The KV_SPLITS
// splits of params.tile keys are [head][split][columns, then (maximum, sum)].
fn joined(first: u32, second: u32) -> array<vec4<f32>, 2> {
    let d4 = params.head_dim / 4u;
    let last = (params.k - 1u) / 4u;
    let base = min(first, last) / d4 * KV_SPLITS * (d4 + 1u);
    let a_at = base + min(first, last) % d4;
    let b_at = base + min(second, last) % d4;
    // All loads start before the first is used, including those of unused splits.
#for r in 0..KV_SPLITS
    let top$r = x[base + $ru * (d4 + 1u) + d4].xy;
    let a$r = x[a_at + $ru * (d4 + 1u)];
    let b$r = x[b_at + $ru * (d4 + 1u)];
#endfor
    let keys = min(state.pos + 1u, params.window);
    var best = -1e30;
#for r in 0..KV_SPLITS
    if ($ru * params.tile < keys) { best = max(best, top$r.x); }
#endfor
    var sum = 0.0;
    var a: vec4<f32>;
    var b: vec4<f32>;
#for r in 0..KV_SPLITS
    if ($ru * params.tile < keys) {
        let weight = exp(max(top$r.x - best, -80.0));
        sum += weight * top$r.y;
        a += weight * a$r;
        b += weight * b$r;
    }
#endfor
    sum = 1.0 / max(sum, 1e-30);
    return array(a * sum, b * sum);
}
