// Joins the parts that split attention left: a workgroup of 64 threads takes one query head of one row.
struct Params {
    heads: u32,
    head_dim: u32,
    out_offset: u32,
    out_stride: u32,
    splits: u32,
    window: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> state: State;
#ifdef SINKS
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let d4 = params.head_dim / 4u;
    let h = wid.x;
    let row = wid.z;
    let end = state.pos + row + 1u;
    var first = 0u;
    if (params.window > 0u) { first = (end - min(end, params.window)) / 64u; }
    let last = min((end + 63u) / 64u, params.splits);
    let base = (row * params.heads + h) * params.splits;
    var best = -1e30;
    for (var s = first; s < last; s++) { best = max(best, parts[(base + s) * (d4 + 1u) + d4].x); }
    var sum = 0.0;
#ifdef SINKS
    best = max(best, sinks[h]);
    sum = exp(max(sinks[h] - best, -80.0));
#endif
    for (var s = first; s < last; s++) {
        let part = parts[(base + s) * (d4 + 1u) + d4];
        sum += part.y * exp(max(part.x - best, -80.0));
    }
    for (var i = lid; i < d4; i += 64u) {
        var total = vec4<f32>(0.0);
        for (var s = first; s < last; s++) {
            let at = (base + s) * (d4 + 1u);
            total += parts[at + i] * exp(max(parts[at + d4].x - best, -80.0));
        }
        out[(params.out_offset + row * params.out_stride) / 4u + h * d4 + i] = total / max(sum, 1e-30);
    }
}
