// Joins the runs of keys that decode attention left: a workgroup of 128 threads takes one query head of one row.
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
#import attention/splits

// At most 64 splits: their (maximum, sum), their weights, and sums on their way to other threads.
var<workgroup> tops: array<vec2<f32>, 64>;
var<workgroup> weights: array<f32, 64>;
var<workgroup> pool: array<vec4<f32>, 64>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let d4 = params.head_dim / 4u;
    let h = wid.x;
    let row = wid.z;
    let count = splits_of(row).count;
    let base = (row * params.heads + h) * params.splits;
    if (lid < count) {
        tops[lid] = parts[(base + lid) * (d4 + 1u) + d4].xy;
    }
    workgroupBarrier();
    var best = -1e30;
#ifdef SINKS
    best = sinks[h];
#endif
    for (var s = 0u; s < count; s++) { best = max(best, tops[s].x); }
    if (lid < count) {
        weights[lid] = exp(max(tops[lid].x - best, -80.0));
    }
    workgroupBarrier();
    var sum = 0.0;
#ifdef SINKS
    sum = exp(max(sinks[h] - best, -80.0));
#endif
    for (var s = 0u; s < count; s++) { sum += weights[s] * tops[s].y; }
    // CUTS threads share a column, each every CUTS-th run.
    let cut = lid / d4;
    let column = lid % d4;
    var total: vec4<f32>;
    if (cut < CUTS) {
        for (var s = cut; s < count; s += CUTS) { total += parts[(base + s) * (d4 + 1u) + column] * weights[s]; }
    }
    for (var half = CUTS / 2u; half > 0u; half /= 2u) {
        if (cut >= half && cut < 2u * half) { pool[(cut - half) * d4 + column] = total; }
        workgroupBarrier();
        if (cut < half) { total += pool[cut * d4 + column]; }
        workgroupBarrier();
    }
    if (cut == 0u) {
        out[(params.out_offset + row * params.out_stride) / 4u + h * d4 + column] = total / max(sum, 1e-30);
    }
}
