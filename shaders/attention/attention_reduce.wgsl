// Reduces the KV splits of decode attention: a workgroup takes one query head of one row.
// QUANTIZED writes results in 8 bits for the next matmul.
struct Params {
    heads: u32,
    head_dim: u32,
#ifdef QUANTIZED
    units: u32,
#else
    out_offset: u32,
    out_stride: u32,
#endif
    splits: u32,
    window: u32,
}
#import common/state
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;
const THREADS: u32 = 128u;
#ifdef QUANTIZED
@group(0) @binding(2) var<storage, read_write> quantized: array<vec2<u32>>;
#import matmul/quantize_octet
#else
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
#endif
@group(0) @binding(3) var<storage, read> state: State;
#ifdef SINKS
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
#endif
#ifdef CROSS
@group(0) @binding(5) var<storage, read> memory: array<vec2<u32>>;
#endif
#import attention/kv_splits

// At most 64 splits: their (maximum, sum), then their weights and weighted sums; maxima and sums of eight at a time;
// and columns exchanged between threads.
var<workgroup> tops: array<vec2<f32>, 64>;
var<workgroup> weights: array<vec2<f32>, 64>;
var<workgroup> bests: array<f32, 8>;
var<workgroup> sums: array<f32, 8>;
var<workgroup> pool: array<vec4<f32>, 64>;
#ifdef QUANTIZED
var<workgroup> columns: array<vec4<f32>, THREADS>;
#endif

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let d4 = params.head_dim / 4u;
    let h = wid.x;
    let row = wid.z;
    let count = splits_of(row).count;
    let base = (row * params.heads + h) * params.splits;
    // CUTS threads share a column, each every CUTS-th split. The first loads start before their weights are known.
    let cut = lid / d4;
    let column = lid % d4;
    let last = max(count, 1u) - 1u;
#for j in 0..LEAD
    let run$j = parts[(base + min($ju * CUTS + cut, last)) * (d4 + 1u) + column];
#endfor
    var top = vec2<f32>(-1e30, 0.0);
    if (lid < count) { top = parts[(base + lid) * (d4 + 1u) + d4].xy; }
    if (lid < 64u) { tops[lid] = top; }
    workgroupBarrier();
    // Eight threads reduce eight splits each, then every thread reduces those eight results.
    if (lid < 8u) {
        var best = tops[lid * 8u].x;
#for i in 1..8
        best = max(best, tops[lid * 8u + $iu].x);
#endfor
        bests[lid] = best;
    }
    workgroupBarrier();
    var best = bests[0];
#for i in 1..8
    best = max(best, bests[$iu]);
#endfor
#ifdef SINKS
    best = max(best, sinks[h]);
#endif
    if (lid < 64u) { weights[lid] = vec2<f32>(1.0, top.y) * exp(max(top.x - best, -80.0)); }
    workgroupBarrier();
    if (lid < 8u) {
        var part = 0.0;
#for i in 0..8
        part += weights[lid * 8u + $iu].y;
#endfor
        sums[lid] = part;
    }
    var total: vec4<f32>;
#for j in 0..LEAD
    if (cut < CUTS && $ju * CUTS + cut < count) { total += run$j * weights[$ju * CUTS + cut].x; }
#endfor
#if CUTS < 4
    for (var first = LEAD * CUTS + cut; first < count; first += LEAD * CUTS) {
#for j in 0..LEAD
        let next$j = parts[(base + min(first + $ju * CUTS, last)) * (d4 + 1u) + column];
#endfor
#for j in 0..LEAD
        if (first + $ju * CUTS < count) { total += next$j * weights[first + $ju * CUTS].x; }
#endfor
    }
#endif
    workgroupBarrier();
    var sum = 0.0;
#for i in 0..8
    sum += sums[$iu];
#endfor
#ifdef SINKS
    sum += exp(max(sinks[h] - best, -80.0));
#endif
    for (var half = CUTS / 2u; half > 0u; half /= 2u) {
        if (cut >= half && cut < 2u * half) { pool[(cut - half) * d4 + column] = total; }
        workgroupBarrier();
        if (cut < half) { total += pool[cut * d4 + column]; }
        workgroupBarrier();
    }
    let result = total / max(sum, 1e-30);
#ifdef QUANTIZED
    if (cut == 0u) { columns[column] = result; }
    workgroupBarrier();
    let octet = min(lid, d4 / 2u - 1u);
    var units = params.units;
    if (lid > octet) { units = 0u; }
    quantize_octet(lid, row, units, h * d4 / 2u + octet, columns[2u * octet], columns[2u * octet + 1u], 1.0);
#else
    if (cut == 0u) {
        out[(params.out_offset + row * params.out_stride) / 4u + h * d4 + column] = result;
    }
#endif
}
