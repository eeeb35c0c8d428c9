// Softmax attention of packed texts, without a cache: a row sees rows of its own text, from `before` rows before it to `after`
// rows after it. A workgroup of 64 threads takes 64 / PARTS rows of one head and walks over keys, KEYS at a time in workgroup
// memory, of which GROUP at once are scored. PARTS threads share a row, D4 groups of four columns each; a row's query and sum
// stay in registers (FlashAttention, arXiv 2205.14135).
// BIAS adds to each score what the head learned for the distance (T5's buckets, both ways, 32 of them up to 128).
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    q_offset: u32,
    q_stride: u32,
    k_offset: u32,
    k_stride: u32,
    v_offset: u32,
    v_stride: u32,
    out_offset: u32,
    out_stride: u32,
    before: u32,
    after: u32,
    scale: f32,
    softcap: f32,
}
#import common/state
#import common/activation
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> state: State;
@group(0) @binding(6) var<storage, read> segments: array<vec2<u32>>;
#ifdef BIAS
@group(0) @binding(7) var<storage, read> relative: array<f32>;
#endif

const NONE = -1e30;
const ROWS = 64u / PARTS;
const TILE = KEYS * D4 * PARTS;

var<workgroup> keys: array<vec4<f32>, TILE>;
var<workgroup> values: array<vec4<f32>, TILE>;
#if PARTS >= 2
var<workgroup> shares: array<f32, 64u * GROUP>;
#endif

// The rows [x, y) that a row sees.
fn visible(row: u32) -> vec2<u32> {
    let own = segments[row];
    // Rows of another sequence may be fewer than those that look.
    let end = min(own.y, row + 1u + min(params.after, own.y));
    return vec2<u32>(max(own.x, row - min(row, params.before)), end);
}

#ifdef BIAS
fn bucket(query: u32, key: u32) -> u32 {
    var side = 0u;
    var far = query - min(query, key);
    if (key > query) { side = 16u; far = key - query; }
    if (far < 8u) { return side + far; }
    // Half octaves from 8 to 128.
    var b = 8u;
    if (far >= 12u) { b++; }
    if (far >= 16u) { b++; }
    if (far >= 23u) { b++; }
    if (far >= 32u) { b++; }
    if (far >= 46u) { b++; }
    if (far >= 64u) { b++; }
    if (far >= 91u) { b++; }
    return side + b;
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let d4 = params.head_dim / 4u;
    let h = wid.z;
    let kv_head = h / (params.heads / params.kv_heads);
    let row0 = wid.y * ROWS;
    let last = min(row0 + ROWS, state.rows) - 1u;
    // Texts follow one another, so what rows see begins and ends in their order.
    let first_key = visible(row0).x;
    let end_key = visible(last).y;
    let row = row0 + lid / PARTS;
    let part = lid % PARTS;
    let seen = visible(min(row, last));
    var query: array<vec4<f32>, D4>;
    var sum: array<vec4<f32>, D4>;
#for i in 0..D4
    query[$i] = vec4<f32>(0.0);
    sum[$i] = vec4<f32>(0.0);
    if (part * D4 + $iu < d4) {
        query[$i] = q[(params.q_offset + min(row, last) * params.q_stride) / 4u + h * d4 + part * D4 + $iu] * params.scale;
    }
#endfor
    var best = NONE;
    var weight = 0.0;
    for (var first = first_key; first < end_key; first += KEYS) {
        workgroupBarrier();
        for (var i = lid; i < TILE; i += 64u) {
            let key = first + i / (D4 * PARTS);
            let c = i % (D4 * PARTS);
            var a = vec4<f32>(0.0);
            var b = vec4<f32>(0.0);
            if (key < end_key && c < d4) {
                a = k[(params.k_offset + key * params.k_stride) / 4u + kv_head * d4 + c];
                b = v[(params.v_offset + key * params.v_stride) / 4u + kv_head * d4 + c];
            }
            keys[i] = a;
            values[i] = b;
        }
        workgroupBarrier();
        for (var group = 0u; group < KEYS; group += GROUP) {
            let key = first + group;
            let live = key < seen.y && key + GROUP > seen.x;
            var scores: array<f32, GROUP>;
            if (live) {
#for n in 0..GROUP
                {
                    let at = ((group + $nu) * PARTS + part) * D4;
                    var dots = 0.0;
#for i in 0..D4
                    dots += dot(query[$i], keys[at + $iu]);
#endfor
                    scores[$n] = dots;
                }
#endfor
            }
#if PARTS >= 2
            workgroupBarrier();
#for n in 0..GROUP
            shares[lid * GROUP + $nu] = scores[$n];
#endfor
            workgroupBarrier();
#for n in 0..GROUP
            scores[$n] = 0.0;
            for (var p = 0u; p < PARTS; p++) { scores[$n] += shares[(lid - part + p) * GROUP + $nu]; }
#endfor
#endif
            if (live) {
                var highest = best;
#for n in 0..GROUP
#ifdef SOFTCAP
                scores[$n] = params.softcap * safe_tanh(scores[$n] / params.softcap);
#endif
#ifdef BIAS
                scores[$n] += relative[bucket(row, key + $nu) * params.heads + h];
#endif
                if (key + $nu < seen.x || key + $nu >= seen.y) { scores[$n] = NONE; }
                highest = max(highest, scores[$n]);
#endfor
                let shrink = exp(max(best - highest, -80.0));
                best = highest;
                weight *= shrink;
#for i in 0..D4
                sum[$i] *= shrink;
#endfor
#for n in 0..GROUP
                if (scores[$n] > 0.5 * NONE) {
                    let p = exp(max(scores[$n] - best, -80.0));
                    let at = ((group + $nu) * PARTS + part) * D4;
                    weight += p;
#for i in 0..D4
                    sum[$i] += p * values[at + $iu];
#endfor
                }
#endfor
            }
        }
    }
    if (row <= last) {
        let at = (params.out_offset + row * params.out_stride) / 4u + h * d4 + part * D4;
#for i in 0..D4
        if (part * D4 + $iu < d4) { out[at + $iu] = sum[$i] / max(weight, 1e-30); }
#endfor
    }
}
